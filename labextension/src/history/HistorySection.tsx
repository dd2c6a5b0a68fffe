import { Button } from '@jupyterlab/ui-components';
import * as React from 'react';
import { Section } from '../panel/Section';
import { IView } from '../panel/view';
import { pastTitle, span, sumsText } from '../words';
import { IPast, sums } from './past';
import { PastStore } from './PastStore';

/** The picture, and the library that it is drawn with, come when they are first shown. */
const Picture = React.lazy(() => import('./Picture'));

/** How far back a picture may go, in seconds. */
const WINDOWS = [600, 3600, 28_800];

/** A picture moves on so often, in parts of its width. */
const PARTS = 240;

/** Pictures follow each other no faster than this, however many kernels change. */
const APART_MS = 1000;

/** The last section of the panel: where kernels' memory was, closed at first. */
export function HistorySection(props: { view: IView }): JSX.Element {
  const { trans } = props.view;
  const [isOpen, setOpen] = React.useState(false);
  const [length, setLength] = React.useState(3600);
  return (
    <Section
      className="jp-affinode-history"
      id="past"
      isOpen={isOpen}
      onToggle={() => setOpen(!isOpen)}
      title={pastTitle(length, trans)}
    >
      <Body length={length} onLength={setLength} view={props.view} />
    </Section>
  );
}

function Body(props: {
  length: number;
  onLength: (length: number) => void;
  view: IView;
}): JSX.Element {
  const { length, onLength, view } = props;
  const { trans } = view;
  const [paused, setPaused] = React.useState<IPast | null>(null);
  const { isOld, past, problem } = usePast(view, length);
  const shown = paused ?? past;
  return (
    <>
      <div className="jp-affinode-historyBar">
        <span role="group" aria-label={trans.__('How far back')}>
          {WINDOWS.map(each => (
            <Button
              key={each}
              small
              minimal
              type="button"
              className="jp-affinode-button"
              data-control={`past ${each}`}
              aria-pressed={each === length}
              onClick={() => {
                setPaused(null);
                onLength(each);
              }}
            >
              {span(each, trans)}
            </Button>
          ))}
        </span>
        <Button
          small
          minimal
          type="button"
          className="jp-affinode-button"
          data-control="past pause"
          aria-pressed={paused !== null}
          disabled={shown === null}
          onClick={() => setPaused(paused === null ? past : null)}
        >
          {trans.__('Pause')}
        </Button>
      </div>
      {shown === null ? (
        <p className="jp-affinode-historyNote" role="status">
          {problem === null ? trans.__('Looking…') : problemText(problem, trans)}
        </p>
      ) : (
        <>
          <p className="jp-affinode-historySums">
            {isOld && paused === null ? trans.__('Looking…') : sumsText(sums(shown), trans)}
          </p>
          <React.Suspense
            fallback={
              <p className="jp-affinode-historyNote" role="status">
                {trans.__('Looking…')}
              </p>
            }
          >
            <Picture past={shown} trans={trans} />
          </React.Suspense>
        </>
      )}
    </>
  );
}

function problemText(problem: { status: number; slug: string }, trans: IView['trans']): string {
  if (problem.slug === 'no-ledger') {
    return trans.__('No history is kept here, or none yet.');
  }
  return problem.status === 404
    ? trans.__('The GPU controller is of a version that does not tell its past.')
    : trans.__('The past cannot be had now; it is asked for again.');
}

interface IShown {
  /** Whether it is of another time, which is shown until the answer comes. */
  isOld: boolean;
  past: IPast | null;
  problem: PastStore['problem'];
}

/** The past of so many seconds, kept up to date while the panel is seen. */
function usePast(view: IView, length: number): IShown {
  const { affinode, isVisible } = view;
  const [state, setState] = React.useState<IShown>({ isOld: true, past: null, problem: null });
  React.useEffect(() => {
    if (!isVisible) {
      return undefined;
    }
    // A picture that is drawn already is changed at less than half the cost of a new one.
    setState(before => ({ ...before, isOld: true, problem: null }));
    const store = new PastStore(affinode, length);
    let timer: number | undefined;
    let drawnAt = -APART_MS;
    const draw = () => {
      drawnAt = performance.now();
      window.clearTimeout(timer);
      timer = window.setTimeout(draw, (1000 * length) / PARTS);
      const { past, problem } = store;
      setState(before =>
        past === null && problem === null ? before : { isOld: false, past, problem }
      );
    };
    store.changed.connect(() => {
      window.clearTimeout(timer);
      timer = window.setTimeout(draw, Math.max(0, drawnAt + APART_MS - performance.now()));
    });
    return () => {
      window.clearTimeout(timer);
      store.dispose();
    };
  }, [affinode, isVisible, length]);
  return state;
}
