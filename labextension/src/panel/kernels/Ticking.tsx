import * as React from 'react';

type Tick = () => void;

/** Runs what is registered once a second, and only while something is. */
class Clock {
  add(tick: Tick): () => void {
    this._ticks.add(tick);
    this._timer ??= window.setInterval(() => this._run(), 1000);
    return () => {
      this._ticks.delete(tick);
      if (this._ticks.size === 0) {
        window.clearInterval(this._timer);
        this._timer = undefined;
      }
    };
  }

  private _run(): void {
    if (!document.hidden) {
      this._ticks.forEach(tick => tick());
    }
  }

  private readonly _ticks = new Set<Tick>();
  private _timer: number | undefined;
}

const clock = new Clock();

/** Runs something once a second while the component is there. */
export function useTick(tick: Tick): void {
  React.useEffect(() => clock.add(tick), [tick]);
}

/** Text that changes by the second, written without rendering anything anew. */
export function Ticking(props: { text: () => string }): JSX.Element {
  const { text } = props;
  const node = React.useRef<HTMLSpanElement>(null);
  const write = React.useCallback(() => {
    const shown = text();
    // The text node is React's: its data may change, its place may not.
    const child = node.current?.firstChild as Text | null | undefined;
    if (child && child.data !== shown) {
      child.data = shown;
    }
  }, [text]);
  useTick(write);
  return <span ref={node}>{text() || '\u00a0'}</span>;
}

/** A clock's face: "0:07", "12:40", "3:05:00". */
export function face(seconds: number): string {
  const total = Math.max(0, Math.floor(seconds));
  const two = (value: number) => String(value).padStart(2, '0');
  const [hours, minutes] = [Math.floor(total / 3600), Math.floor(total / 60) % 60];
  return hours > 0
    ? `${hours}:${two(minutes)}:${two(total % 60)}`
    : `${minutes}:${two(total % 60)}`;
}
