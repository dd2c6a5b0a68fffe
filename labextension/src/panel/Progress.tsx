import * as React from 'react';
import { IKernel } from '../status';
import { doneText, moveText } from '../words';
import { done } from './howFar';
import { useTick } from './Ticking';
import { IView } from './view';

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
    bar.style.transform = `scaleX(${done(kernel, age + 1)})`; // the transition to there takes a second
    track.current?.setAttribute('aria-valuenow', String(Math.round(100 * done(kernel, age))));
    track.current?.setAttribute('aria-valuetext', doneText(done(kernel, age), trans));
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
      className="jp-affinode-progress"
      role="progressbar"
      aria-label={moveText(kernel.move, trans)}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(100 * now)}
      aria-valuetext={doneText(now, trans)}
    >
      <div style={{ transform: `scaleX(${now})` }} />
    </div>
  ) : null;
}
