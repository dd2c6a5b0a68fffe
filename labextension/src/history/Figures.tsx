import { TranslationBundle } from '@jupyterlab/translation';
import { scaleLinear, ScaleLinear, ScaleTime } from 'd3-scale';
import * as React from 'react';
import { bytes } from '../words';
import { IOthersCounts, IPast, IPastGpu, SHOWN } from './past';

const CHART_HEIGHT = 44;
const OTHERS_HEIGHT = 12;

type Time = ScaleTime<number, number>;

/** Memory as an area, utilisation as a dashed line, and what their tops are. */
export function Figures(props: {
  gpu: IPastGpu;
  past: IPast;
  trans: TranslationBundle;
  width: number;
  x: Time;
}): JSX.Element {
  const { gpu, past, trans, width, x } = props;
  const total = gpu.total_bytes ?? Math.max(1, ...gpu.used_bytes.map(used => used ?? 0));
  const y = scaleLinear()
    .domain([0, 1])
    .range([CHART_HEIGHT - 1, 1]);
  const moment = (index: number) =>
    x(Math.min(past.until, past.since + index * past.step_s) * 1000);
  const used = steps(gpu.used_bytes, moment, figure => y(figure / total));
  const busy = steps(gpu.utilization_percent, moment, figure => y(figure / 100));
  return (
    <div className="jp-affinode-lane jp-affinode-figures">
      <span className="jp-affinode-laneName" aria-hidden="true">
        {gpu.total_bytes !== null && <span>{bytes(gpu.total_bytes)}</span>}
        <span>
          <svg width="14" height="8">
            <path className="jp-affinode-usedLine" d="M0 4H14" />
          </svg>
          {trans.__('Memory')}
        </span>
        <span>
          <svg width="14" height="8">
            <path className="jp-affinode-busyLine" d="M0 4H14" />
          </svg>
          {trans.__('Busy, to 100 %')}
        </span>
      </span>
      <svg
        className="jp-affinode-plot"
        role="img"
        aria-label={figuresText(gpu, trans)}
        height={CHART_HEIGHT}
      >
        <path className="jp-affinode-grid" d={grid(y, width)} />
        <path className="jp-affinode-usedArea" d={used.area} />
        <path className="jp-affinode-usedLine" d={used.line} />
        <path className="jp-affinode-busyLine" d={busy.line} />
      </svg>
    </div>
  );
}

/**
 * Figures as steps, each until the next and the last to the end of its own; one that is missing leaves a gap.
 *
 * A step takes two commands, and none where nothing changes. D3's shapes draw each point twice, which took longer
 * than all lanes.
 */
function steps(
  figures: readonly (number | null)[],
  moment: (index: number) => number,
  y: (figure: number) => number
): { area: string; line: string } {
  const paths = { area: '', line: '' };
  let run = '';
  let from = 0;
  let height: number | null = null;
  for (const [index, figure] of [...figures, null].entries()) {
    const left = tenths(moment(index));
    const top = figure === null ? null : tenths(y(figure));
    if (top === height) {
      continue;
    }
    if (height === null) {
      from = left;
      run = `M${left} ${top}`;
    } else {
      run += top === null ? `H${left}` : `H${left}V${top}`;
    }
    if (top === null) {
      paths.line += run;
      paths.area += `${run}V${y(0)}H${from}Z`;
    }
    height = top;
  }
  return paths;
}

function tenths(pixels: number): number {
  return Math.round(pixels * 10) / 10;
}

function grid(y: ScaleLinear<number, number>, width: number): string {
  return y
    .ticks(2)
    .map(tick => `M0 ${y(tick)}H${width}`)
    .join('');
}

/** What the figures say, for screen readers. */
function figuresText(gpu: IPastGpu, trans: TranslationBundle): string {
  const known = gpu.used_bytes.filter((used): used is number => used !== null);
  const busy = gpu.utilization_percent.filter((percent): percent is number => percent !== null);
  if (known.length === 0) {
    return trans.__('Memory and utilisation are not known');
  }
  const mean = busy.reduce((sum, one) => sum + one, 0) / Math.max(1, busy.length);
  return trans.__(
    'Used memory from %1 to %2; %3 % busy on average',
    bytes(Math.min(...known)),
    bytes(Math.max(...known)),
    Math.round(mean)
  );
}

/** All other users' kernels as one lane: how many were on the GPU, over how many there were. */
export function Others(props: {
  counts: IOthersCounts;
  past: IPast;
  trans: TranslationBundle;
  x: Time;
}): JSX.Element {
  const { counts, past, trans, x } = props;
  const all = counts.resident.map((_, index) =>
    SHOWN.reduce((sum, state) => sum + counts[state][index], 0)
  );
  const y = scaleLinear()
    .domain([0, Math.max(1, ...all)])
    .range([OTHERS_HEIGHT - 1, 1]);
  const moment = (index: number) =>
    x(Math.min(past.until, past.since + index * past.step_s) * 1000);
  const lastOf = (figures: readonly number[]) => figures[figures.length - 1] ?? 0;
  const said = trans.__(
    'Other users: %1 on the GPU, %2 freed, %3 waiting now',
    lastOf(counts.resident),
    lastOf(counts.parked),
    lastOf(counts.queued)
  );
  return (
    <div className="jp-affinode-lane" data-lane="others">
      <span className="jp-affinode-laneName">{trans.__('Other users')}</span>
      <svg className="jp-affinode-plot" role="img" aria-label={said} height={OTHERS_HEIGHT}>
        <title>{said}</title>
        <path className="jp-affinode-othersArea" d={steps(counts.resident, moment, y).area} />
        <path className="jp-affinode-othersLine" d={steps(all, moment, y).line} />
      </svg>
    </div>
  );
}
