import * as React from 'react';

const WIDTH = 60;
const HEIGHT = 16;

/** A part of the line, in seconds before now. */
export interface IStep {
  from: number;
  to: number;
  value: number;
}

/** The last minute as a filled line; what it shows is said by the text beside it. */
export function Sparkline(props: { steps: IStep[]; most: number }): JSX.Element {
  const most = Math.max(props.most, 1e-9);
  const x = (ago: number) => (WIDTH * (1 - Math.min(60, Math.max(0, ago)) / 60)).toFixed(1);
  const y = (value: number) => (HEIGHT - 1 - (HEIGHT - 2) * Math.min(1, value / most)).toFixed(1);
  let path = '';
  for (const step of props.steps.filter(step => step.to < 60)) {
    path += `${path ? 'L' : 'M'}${x(step.from)},${y(step.value)}L${x(step.to)},${y(step.value)}`;
  }
  const first = props.steps.find(step => step.to < 60);
  const last = props.steps[props.steps.length - 1];
  return (
    <svg
      className="jp-affinode-spark"
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      aria-hidden="true"
    >
      <path className="jp-affinode-sparkBase" d={`M0,${HEIGHT - 0.5}H${WIDTH}`} />
      {path && first && last && (
        <>
          <path
            className="jp-affinode-sparkArea"
            d={`${path}L${x(last.to)},${HEIGHT}L${x(first.from)},${HEIGHT}Z`}
          />
          <path className="jp-affinode-sparkLine" d={path} />
        </>
      )}
    </svg>
  );
}

/** Percentages of the last minute, one each two seconds; a moment that is not known is left out. */
export function percentSteps(history: (number | null)[]): IStep[] {
  const all = history.map((value, index) => ({
    from: 2 * (history.length - index),
    to: 2 * (history.length - index - 1),
    value
  }));
  return all.filter((step): step is IStep => step.value !== null);
}
