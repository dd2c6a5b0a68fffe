import * as React from 'react';
import { IKernel } from '../../status';
import { doneText, moveText } from '../../words';
import { done } from './howFar';
import { useTick } from './Ticking';
import { IView } from '../view';

/** How far a kernel's memory is on its way, estimated by the speed of the last move. */
export function Progress(props: { kernel: IKernel; view: IView }): JSX.Element | null {
  const { kernel, view } = props;
  const { affinode, isStale, trans } = view;
  const track = React.useRef<HTMLDivElement>(null);
  const show = React.useCallback(() => {
    const bar = track.current?.firstElementChild as HTMLElement | null | undefined;
    if (!bar || isStale) {
      return;
    }
    const age = affinode.age(kernel.id);
    const now = done(kernel, age);
    bar.style.transform = `scaleX(${done(kernel, age + 1) ?? 1})`; // the transition to there takes a second
    track.current?.classList.toggle('jp-mod-late', now === null);
    setValue(track.current, now);
    track.current?.setAttribute('aria-valuetext', doneText(now, trans));
  }, [affinode, isStale, kernel, trans]);
  useTick(show);
  React.useEffect(() => {
    const frame = requestAnimationFrame(show);
    return () => cancelAnimationFrame(frame);
  }, [show]);
  const now = done(kernel, affinode.age(kernel.id));
  return kernel.move ? (
    <div
      ref={track}
      className={`jp-affinode-progress${now === null ? ' jp-mod-late' : ''}`}
      role="progressbar"
      aria-label={moveText(kernel.move, trans)}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={now === null ? undefined : Math.floor(100 * now)}
      aria-valuetext={doneText(now, trans)}
    >
      <div style={{ transform: `scaleX(${now ?? 1})` }} />
    </div>
  ) : null;
}

/** Of a bar without a value it is not known how far it is. */
function setValue(track: HTMLElement | null, now: number | null): void {
  if (now === null) {
    track?.removeAttribute('aria-valuenow');
  } else {
    track?.setAttribute('aria-valuenow', String(Math.floor(100 * now)));
  }
}

/** Something was asked for, and there is no answer yet. */
export function Asked(props: { label: string }): JSX.Element {
  return (
    <div className="jp-affinode-progress jp-mod-late" role="progressbar" aria-label={props.label} />
  );
}
