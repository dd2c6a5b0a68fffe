import * as React from 'react';
import { gpuModel, gpuName, gpuSegments, ISegment, parkedSegments, usedMemory } from '../../memory';
import { IGpu, IKernel, INode } from '../../status';
import { bytes, bytesOf, bytesPer, unmanaged, usedText } from '../../words';
import { MemoryBar, segmentClass } from './MemoryBar';
import { percentSteps, Sparkline } from '../Sparkline';
import { IView } from '../view';

/** From this number of GPUs on, each has one line. */
const FEW = 2;

/** How many processes that are not managed are named. */
const NAMED = 3;

/** The GPUs: how full each is, and of what, and how busy it was in the last minute. */
export function Gpus(props: { kernels: IKernel[]; node: INode; view: IView }): JSX.Element {
  const { kernels, node, view } = props;
  const { trans } = view;
  const names = new Set(node.gpus.map(gpu => gpu.name));
  const isFew = node.gpus.length <= FEW;
  return (
    <section className="jp-affinode-gpus" aria-label={trans.__('GPUs')}>
      {!isFew && (
        <div className="jp-affinode-gpusTitle">
          {names.size === 1
            ? trans.__('%1 × %2', node.gpus.length, gpuModel(node.gpus[0]))
            : trans.__('%1 GPUs', node.gpus.length)}
          <Total node={node} view={view} />
          <Simulated node={node} view={view} />
        </div>
      )}
      <div className={isFew ? undefined : 'jp-affinode-gpuGrid'}>
        {node.gpus.map((gpu, index) => (
          <Gpu
            key={gpu.uuid}
            badge={isFew && index === 0 ? <Simulated node={node} view={view} /> : null}
            gpu={gpu}
            isCompact={!isFew}
            kernels={kernels}
            view={view}
          />
        ))}
      </div>
    </section>
  );
}

/** What is in use of all GPUs together. */
function Total(props: { node: INode; view: IView }): JSX.Element {
  const memory = usedMemory(props.node);
  const { used, total } = memory;
  return (
    <span className="jp-affinode-number" title={usedText(memory, props.view.trans)}>
      {total === null ? bytes(used) : bytesPer(used, total)}
    </span>
  );
}

function Simulated(props: { node: INode; view: IView }): JSX.Element | null {
  const { trans } = props.view;
  return props.node.simulated ? (
    <span
      className="jp-affinode-badge"
      title={trans.__(
        'No real GPU is used: its memory and kernels are simulated on the processor.'
      )}
    >
      {trans.__('Simulated')}
    </span>
  ) : null;
}

function Gpu(props: {
  badge: JSX.Element | null;
  gpu: IGpu;
  isCompact: boolean;
  kernels: IKernel[];
  view: IView;
}): JSX.Element {
  const { gpu, isCompact, kernels, view } = props;
  const { affinode, node, trans } = view;
  const name = gpuName(gpu, node.gpus, trans);
  const segments = gpuSegments(gpu, kernels, trans);
  const busy = gpu.utilization_percent;
  const busyText = busy === null ? '' : trans.__('%1 %', busy);
  const used =
    gpu.total_bytes === null
      ? bytes(gpu.used_bytes)
      : isCompact
        ? bytesPer(gpu.used_bytes, gpu.total_bytes)
        : bytesOf(gpu.used_bytes, gpu.total_bytes, trans);
  const busySaid = trans.__('%1 % busy', busy ?? 0);
  return (
    <section
      className={`jp-affinode-gpu${isCompact ? ' jp-mod-compact' : ''}`}
      aria-label={trans.__('Memory of %1', name)}
    >
      <div className="jp-affinode-gpuTitle">
        <span className="jp-affinode-gpuName" title={`${name} (${gpu.uuid})`}>
          {isCompact ? gpu.index : name}
        </span>
        {isCompact && <Busy gpu={gpu} said={busySaid} />}
        {isCompact && <span className="jp-affinode-number jp-affinode-percent">{busyText}</span>}
        <span className="jp-affinode-number" title={trans.__('Used memory')}>
          {used}
        </span>
        {props.badge}
      </div>
      <MemoryBar
        affinode={affinode}
        name={isCompact ? trans.__('Memory of GPU %1', gpu.index) : trans.__('GPU memory')}
        segments={segments}
        total={gpu.total_bytes ?? gpu.used_bytes}
        trans={trans}
      />
      {!isCompact && (
        <>
          <div className="jp-affinode-gpuBusy">
            <Busy gpu={gpu} said={busySaid} />
            <span className="jp-affinode-number">{busyText}</span>
          </div>
          <Legend segments={segments} view={view} />
          <Unmanaged gpu={gpu} view={view} />
        </>
      )}
      {gpu.total_bytes === null && (
        <div className="jp-affinode-muted">
          {trans.__('How much the GPU has is not known: NVML is not available.')}
        </div>
      )}
    </section>
  );
}

/** How busy the GPU was in the last minute. */
function Busy(props: { gpu: IGpu; said: string }): JSX.Element {
  const { gpu, said } = props;
  return gpu.utilization_percent === null ? (
    <span />
  ) : (
    <span className="jp-affinode-busy" role="img" aria-label={said} title={said}>
      <Sparkline most={100} steps={percentSteps(gpu.utilization_history ?? [])} />
    </span>
  );
}

/** What the bar holds besides one's own kernels, whose colours stand in their rows. */
function Legend(props: { segments: ISegment[]; view: IView }): JSX.Element | null {
  const { segments, view } = props;
  const shown = segments.filter(segment => segment.kind !== 'kernel' && segment.kind !== 'free');
  return shown.length === 0 ? null : (
    <ul className="jp-affinode-legend">
      {shown.map(segment => (
        <li key={segment.key}>
          <span
            className={`jp-affinode-swatch ${segmentClass(segment, view.affinode)}`}
            aria-hidden="true"
          />
          {view.trans.__('%1 %2', segment.label, bytes(segment.bytes))}
        </li>
      ))}
    </ul>
  );
}

/** The processes that are not managed, the largest first. */
function Unmanaged(props: { gpu: IGpu; view: IView }): JSX.Element | null {
  const { gpu, view } = props;
  const { trans } = view;
  const found = gpu.unmanaged ?? [];
  if (found.length === 0) {
    return null;
  }
  return (
    <ul
      className="jp-affinode-unmanaged"
      aria-label={trans.__('Not managed')}
      title={trans.__('These programs run without the shim: they make no room for others.')}
    >
      {found.slice(0, NAMED).map((process, index) => (
        <li key={process.pid ?? `other-${index}`}>{unmanaged(process, trans)}</li>
      ))}
      {found.length > NAMED && <li>{trans.__('and %1 more', found.length - NAMED)}</li>}
    </ul>
  );
}

/** Host memory, and disk, that hold what was moved off the GPUs; nothing when nothing is there. */
export function HostMemory(props: {
  kernels: IKernel[];
  node: INode;
  view: IView;
}): JSX.Element | null {
  const { kernels, node, view } = props;
  const { affinode, trans } = view;
  const parked = parkedSegments(node, kernels, trans);
  const disk = kernels.reduce((sum, kernel) => sum + kernel.disk_bytes, 0);
  if (parked.length === 0 && disk === 0) {
    return null;
  }
  const { available_bytes, copy_bytes, total_bytes } = node.host;
  const used = Math.max(0, total_bytes - available_bytes - copy_bytes);
  const inUse = { key: 'used', kind: 'unmanaged' as const, label: trans.__('In use'), bytes: used };
  const free = {
    key: 'free',
    kind: 'free' as const,
    label: trans.__('Free'),
    bytes: available_bytes
  };
  return (
    <section
      className="jp-affinode-gpu jp-affinode-host"
      aria-label={trans.__('GPU memory kept in RAM')}
    >
      <div className="jp-affinode-gpuTitle">
        <span className="jp-affinode-gpuName">
          {disk > 0 ? trans.__('Safe in RAM; %1 on disk', bytes(disk)) : trans.__('Safe in RAM')}
        </span>
        <span className="jp-affinode-number">{bytesOf(copy_bytes, total_bytes, trans)}</span>
      </div>
      <MemoryBar
        affinode={affinode}
        name={trans.__('RAM')}
        segments={[...parked, inUse, free]}
        total={total_bytes}
        trans={trans}
      />
    </section>
  );
}
