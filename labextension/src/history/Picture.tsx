import { TranslationBundle } from '@jupyterlab/translation';
import { scaleTime, ScaleTime } from 'd3-scale';
import * as React from 'react';
import { gpuName } from '../memory';
import { axisText, folders, laneTitle, spanText, stateName } from '../words';
import { Figures, Others } from './Figures';
import { ILane, IPast, IPastGpu, ISpan, SHOWN, spans } from './past';
import { found, IPlace, moved, pointed, stretchAt } from './places';

const BAR_HEIGHT = 10;
const AXIS_HEIGHT = 16;
/** Marks closer than this, in pixels, would hide each other: the keyboard and the pointer still find each. */
const MARK_GAP = 7;
const LABEL_WIDTH = 72;
/** Half of a moment's width under an axis: a tick that is closer to an edge has none. */
const HALF_LABEL = 25;

type Time = ScaleTime<number, number>;

/** Every GPU's memory and utilisation, and under it a lane for each kernel. */
export default function Picture(props: { past: IPast; trans: TranslationBundle }): JSX.Element {
  const { past, trans } = props;
  const root = React.useRef<HTMLDivElement>(null);
  const width = useWidth(root);
  const [place, setPlace] = React.useState<IPlace | null>(null);
  const [isByKey, setByKey] = React.useState(false);
  const x = React.useMemo(
    () =>
      scaleTime()
        .domain([past.since * 1000, past.until * 1000])
        .range([0, width]),
    [past, width]
  );
  const named = React.useMemo(() => foldersOf(past), [past]);
  const axis = React.useMemo(() => <Axis width={width} x={x} />, [width, x]);
  const at = place && found(past, place);
  return (
    <div
      ref={root}
      className="jp-affinode-picture"
      tabIndex={0}
      role="application"
      data-control="past picture"
      aria-label={trans.__('What was on the GPUs, by notebook')}
      aria-describedby="jp-affinode-pictureHelp"
      onKeyDown={event => {
        const next = moved(past, place, event.key);
        if (next !== undefined) {
          setByKey(true);
          setPlace(next);
          event.preventDefault();
          event.stopPropagation();
        }
      }}
      onPointerMove={event => {
        const lane = (event.target as Element).closest<HTMLElement>('[data-lane]');
        const left = lane?.querySelector('.jp-affinode-plot')?.getBoundingClientRect().left ?? 0;
        const at = x.invert(event.clientX - left).getTime() / 1000;
        setByKey(false);
        setPlace(pointed(past, lane?.dataset.lane ?? '', at));
      }}
      onPointerLeave={() => setPlace(null)}
      onBlur={() => setPlace(null)}
    >
      <Legend trans={trans} />
      {past.gpus.slice(0, width === 0 ? 1 : undefined).map((gpu, index) => (
        <GpuPicture
          key={gpu.uuid}
          axis={axis}
          gpu={gpu}
          named={named}
          number={index}
          past={past}
          place={place?.gpu === gpu.uuid ? place : null}
          trans={trans}
          width={width}
          x={x}
        />
      ))}
      <div
        className="jp-affinode-readout"
        role="status"
        aria-live={isByKey ? 'polite' : 'off'}
        data-empty={at === null}
      >
        {at === null ? (
          <span id="jp-affinode-pictureHelp">
            {trans.__('Point at a lane, or use the arrow keys, to see when and why.')}
          </span>
        ) : (
          <>
            <b>
              {named.get(at.lane.path ?? '')}
              {laneTitle(at.lane, trans)}
            </b>
            {past.gpus.length > 1 && trans.__(', GPU %1', at.gpu.index)}
            {': '}
            {spanText(at.span, past.until, trans)}
          </>
        )}
      </div>
    </div>
  );
}

/** The folders that tell the lanes' notebooks apart; a notebook whose kernel was ended has several lanes. */
function foldersOf(past: IPast): ReadonlyMap<string, string> {
  const paths = past.gpus.flatMap(gpu => gpu.lanes.map(lane => lane.path));
  return folders(paths.filter(path => path !== null));
}

/** The width that the lanes have; 0 before it was measured. */
function useWidth(root: React.RefObject<HTMLElement>): number {
  const [width, setWidth] = React.useState(0);
  React.useLayoutEffect(() => {
    const node = root.current;
    if (!node) {
      return undefined;
    }
    const measure = () => {
      const plot = node.querySelector('.jp-affinode-plot');
      setWidth(Math.max(40, Math.floor(plot?.clientWidth ?? node.clientWidth)));
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(node);
    return () => observer.disconnect();
  }, [root]);
  return width;
}

function Legend(props: { trans: TranslationBundle }): JSX.Element {
  const { trans } = props;
  return (
    <ul className="jp-affinode-historyLegend">
      {SHOWN.map(state => (
        <li key={state}>
          <svg width="16" height={BAR_HEIGHT} aria-hidden="true">
            <path className={`jp-mod-${state}`} d={rectangle(state, 0.5, 15.5)} />
          </svg>
          {stateName(state, trans)}
        </li>
      ))}
      <li>
        <svg width="9" height={BAR_HEIGHT} aria-hidden="true">
          <path className="jp-affinode-mark" d={mark('parked', 4)} />
        </svg>
        {trans.__('freed')}
      </li>
      <li>
        <svg width="9" height={BAR_HEIGHT} aria-hidden="true">
          <path className="jp-affinode-mark" d={mark('resident', 4)} />
        </svg>
        {trans.__('came back')}
      </li>
    </ul>
  );
}

/** One GPU; drawn anew only with what it shows. */
const GpuPicture = React.memo(
  (props: {
    axis: JSX.Element;
    gpu: IPastGpu;
    named: ReadonlyMap<string, string>;
    number: number;
    past: IPast;
    place: IPlace | null;
    trans: TranslationBundle;
    width: number;
    x: Time;
  }): JSX.Element => {
    const { axis, gpu, named, number, past, place, trans, width, x } = props;
    const name = gpuName(gpu, past.gpus, trans);
    return (
      <figure className="jp-affinode-pictureGpu" aria-label={name}>
        <figcaption>{name}</figcaption>
        <Figures gpu={gpu} past={past} trans={trans} width={width} x={x} />
        {gpu.lanes.map((lane, index) => (
          <LanePicture
            key={lane.kernel_id}
            at={place?.kernel === lane.kernel_id ? place.at : null}
            folder={named.get(lane.path ?? '')}
            id={`${number} ${index}`}
            lane={lane}
            trans={trans}
            until={past.until}
            x={x}
          />
        ))}
        {gpu.others && <Others counts={gpu.others} past={past} trans={trans} x={x} />}
        {axis}
      </figure>
    );
  }
);

/** A kernel's lane: a path for each state, however many changes there are. */
const LanePicture = React.memo(
  (props: {
    at: number | null;
    folder: string | undefined;
    id: string;
    lane: ILane;
    trans: TranslationBundle;
    until: number;
    x: Time;
  }): JSX.Element => {
    const { at, folder, id, lane, trans, until, x } = props;
    const all = React.useMemo(() => spans(lane, until), [lane, until]);
    const paths = React.useMemo(() => pathsOf(all, x), [all, x]);
    const name = laneTitle(lane, trans);
    const shown = at === null ? undefined : all[stretchAt(all, at)];
    return (
      <div className="jp-affinode-lane" data-lane={id}>
        <span className="jp-affinode-laneName" title={lane.path ?? name}>
          {folder !== undefined && (
            <span className="jp-affinode-folder">
              <bdi>{folder}</bdi>
            </span>
          )}
          <bdi className="jp-affinode-nameText">{name}</bdi>
        </span>
        <svg className="jp-affinode-plot" aria-hidden="true" height={BAR_HEIGHT + 2}>
          {SHOWN.map(state => (
            <path key={state} className={`jp-mod-${state}`} d={paths[state]} />
          ))}
          <path className="jp-affinode-mark" d={paths.marks} />
          {shown && (
            <rect
              className="jp-affinode-cursor"
              x={x(shown.from * 1000) - 1}
              y={0}
              width={Math.max(3, x(shown.to * 1000) - x(shown.from * 1000) + 2)}
              height={BAR_HEIGHT + 2}
            />
          )}
        </svg>
      </div>
    );
  }
);

function pathsOf(all: ISpan[], x: Time): Record<(typeof SHOWN)[number] | 'marks', string> {
  const paths = { resident: '', parked: '', queued: '', marks: '' };
  let marked = -Infinity;
  for (const { from, isFirst, state, to } of all) {
    const [begin, end] = [x(from * 1000), x(to * 1000)];
    if (state === 'none') {
      continue;
    }
    paths[state] += rectangle(state, begin, Math.max(end, begin + 1));
    if (!isFirst && state !== 'queued' && begin - marked >= MARK_GAP) {
      paths.marks += mark(state, begin);
      marked = begin;
    }
  }
  return paths;
}

/** States differ in height as well as in colour: full on the GPU, a line while freed, a frame while it waits. */
function rectangle(state: (typeof SHOWN)[number], from: number, to: number): string {
  const [top, bottom] =
    state === 'parked' ? [BAR_HEIGHT - 3, BAR_HEIGHT - 1] : state === 'queued' ? [2, 9] : [1, 9];
  return `M${from.toFixed(1)} ${top}H${to.toFixed(1)}V${bottom}H${from.toFixed(1)}Z`;
}

/** A triangle that points down where a kernel was freed, and up where it came back. */
function mark(state: 'parked' | 'resident', at: number): string {
  const [base, point] = state === 'parked' ? [1, 6] : [6, 1];
  return `M${(at - 3.5).toFixed(1)} ${base}h7L${at.toFixed(1)} ${point}Z`;
}

function Axis(props: { width: number; x: Time }): JSX.Element {
  const { width, x } = props;
  const ticks = x.ticks(Math.max(2, Math.floor(width / LABEL_WIDTH)));
  return (
    <div className="jp-affinode-lane" aria-hidden="true">
      <span className="jp-affinode-laneName" />
      <svg className="jp-affinode-plot jp-affinode-axis" height={AXIS_HEIGHT}>
        <path d={`M0 .5H${width}${ticks.map(tick => `M${x(tick).toFixed(1)} 0V4`).join('')}`} />
        {ticks
          .filter(tick => x(tick) >= HALF_LABEL && x(tick) <= width - HALF_LABEL)
          .map(tick => (
            <text key={tick.getTime()} x={x(tick)} y={AXIS_HEIGHT - 3} textAnchor="middle">
              {axisText(tick)}
            </text>
          ))}
      </svg>
    </div>
  );
}
