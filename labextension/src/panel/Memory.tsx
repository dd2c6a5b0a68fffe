import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { gpuName, gpuSegments, parkedSegments } from '../memory';
import { IGpu, IKernel, INode } from '../status';
import { IAffinode } from '../tokens';
import { bytes, bytesOf, unmanaged } from '../words';
import { Legend, MemoryBar } from './MemoryBar';

/** One GPU: its name, how full it is, and of what. */
export function Gpu(props: {
  affinode: IAffinode;
  gpu: IGpu;
  /** All of the machine. */
  gpus: IGpu[];
  kernels: IKernel[];
  trans: TranslationBundle;
}): JSX.Element {
  const { affinode, gpu, kernels, trans } = props;
  const name = gpuName(gpu, props.gpus, trans);
  const segments = gpuSegments(gpu, kernels, trans);
  const busy = gpu.utilization_percent;
  return (
    <section className="jp-affinode-memory" aria-label={trans.__('Memory of %1', name)}>
      <div className="jp-affinode-memoryTitle">
        <span className="jp-affinode-memoryName" title={`${name} (${gpu.uuid})`}>
          {name}
        </span>
        <span className="jp-affinode-number">
          {gpu.total_bytes === null
            ? bytes(gpu.used_bytes)
            : bytesOf(gpu.used_bytes, gpu.total_bytes, trans)}
        </span>
      </div>
      <MemoryBar
        affinode={affinode}
        name={trans.__('GPU memory')}
        segments={segments}
        total={gpu.total_bytes ?? gpu.used_bytes}
        trans={trans}
      />
      <Legend affinode={affinode} segments={segments} trans={trans} />
      {gpu.total_bytes === null && (
        <div className="jp-affinode-muted">
          {trans.__('How much the GPU has is not known: NVML is not available.')}
        </div>
      )}
      {gpu.unmanaged !== null && gpu.unmanaged.length > 0 && (
        <ul
          className="jp-affinode-unmanaged"
          aria-label={trans.__('Not managed')}
          title={trans.__('These programs run without the shim: they make no room for anyone.')}
        >
          {gpu.unmanaged.map((process, index) => (
            <li key={process.pid ?? `other-${index}`}>{unmanaged(process, trans)}</li>
          ))}
        </ul>
      )}
      {busy !== null && busy > 0 && (
        <div className="jp-affinode-muted">{trans.__('%1 % busy', busy)}</div>
      )}
    </section>
  );
}

/** Host memory that holds what was moved off the GPUs; nothing when nothing is there. */
export function HostMemory(props: {
  affinode: IAffinode;
  node: INode;
  kernels: IKernel[];
  trans: TranslationBundle;
}): JSX.Element | null {
  const { affinode, node, kernels, trans } = props;
  const parked = parkedSegments(node, kernels, trans);
  if (parked.length === 0) {
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
    <section className="jp-affinode-memory" aria-label={trans.__('GPU memory kept in RAM')}>
      <div className="jp-affinode-memoryTitle">
        <span className="jp-affinode-memoryName">{trans.__('Safe in RAM')}</span>
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
