import { TranslationBundle } from '@jupyterlab/translation';
import { refreshIcon } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import * as React from 'react';
import { IGpu, IKernel, INode } from '../status';
import { IAffinode } from '../tokens';
import { title } from '../words';
import { Empty, Problem } from './Empty';
import { KernelRow } from './KernelRow';
import { Gpu, HostMemory } from './Memory';

/** What the panel shows and acts through. */
export interface IPanelProps {
  affinode: IAffinode;
  commands: CommandRegistry;
  /** The kernel of the current notebook. */
  currentKernelId: string | undefined;
  open: (kernel: IKernel) => void;
  trans: TranslationBundle;
}

/** The whole panel. */
export function Panel(props: IPanelProps): JSX.Element {
  const { affinode, trans } = props;
  const { problem, status } = affinode;
  return (
    <>
      <header className="jp-affinode-header">
        <h2>{trans.__('GPU')}</h2>
        {status?.node?.simulated && (
          <span
            className="jp-affinode-badge"
            title={trans.__(
              'No real GPU is used: its memory and kernels are simulated on the processor.'
            )}
          >
            {trans.__('Simulated GPU')}
          </span>
        )}
        <button
          className="jp-affinode-refresh"
          title={trans.__('Look again')}
          aria-label={trans.__('Look again')}
          onClick={() => void affinode.refresh()}
        >
          <refreshIcon.react tag="span" />
        </button>
      </header>
      <div className="jp-affinode-body">
        {problem && <Problem affinode={affinode} problem={problem} trans={trans} />}
        {status?.node && <Machine {...props} node={status.node} kernels={status.kernels} />}
      </div>
    </>
  );
}

/** Memory and kernels. */
function Machine(props: IPanelProps & { node: INode; kernels: IKernel[] }): JSX.Element {
  const { affinode, node, trans } = props;
  const kernels = sorted(props.kernels, trans);
  if (node.gpus.length === 0) {
    return (
      <Empty title={trans.__('No GPU on this machine')}>
        <p>
          {trans.__('Notebooks run as always. To see what this panel does, on a simulated GPU:')}
        </p>
        <code>jupyter affinode simulate -- jupyter lab</code>
      </Empty>
    );
  }
  return (
    <>
      {node.gpus.map(gpu => (
        <Gpu
          key={gpu.uuid}
          affinode={affinode}
          gpu={gpu}
          gpus={node.gpus}
          kernels={kernels}
          trans={trans}
        />
      ))}
      <HostMemory affinode={affinode} node={node} kernels={kernels} trans={trans} />
      <Kernels {...props} gpus={node.gpus} kernels={kernels} />
    </>
  );
}

/** This server's kernels, then the others. */
function Kernels(props: IPanelProps & { gpus: IGpu[]; kernels: IKernel[] }): JSX.Element {
  const { affinode, commands, currentKernelId, gpus, kernels, open, trans } = props;
  const shown = affinode.settings.showOtherKernels ? kernels : kernels.filter(kernel => kernel.own);
  if (shown.length === 0) {
    return (
      <Empty title={trans.__('No kernels')}>
        <p>{trans.__('Start a notebook. Its GPU memory is shown here as soon as it has some.')}</p>
      </Empty>
    );
  }
  return (
    <section aria-label={trans.__('Kernels')}>
      <h3 className="jp-affinode-heading">{trans.__('Kernels')}</h3>
      <ul className="jp-affinode-kernels">
        {shown.map(kernel => (
          <KernelRow
            key={kernel.id}
            affinode={affinode}
            commands={commands}
            gpus={gpus}
            kernel={kernel}
            current={kernel.id === currentKernelId}
            open={open}
            trans={trans}
          />
        ))}
      </ul>
    </section>
  );
}

/** In an order that does not jump: one's own that use the GPU, the rest of one's own, others; each by name. */
function sorted(kernels: IKernel[], trans: TranslationBundle): IKernel[] {
  const rank = (kernel: IKernel) => (kernel.own ? (kernel.residency === 'none' ? 1 : 0) : 2);
  const name = (kernel: IKernel) => `${title(kernel, trans)}\0${kernel.id}`;
  return [...kernels].sort((a, b) => rank(a) - rank(b) || name(a).localeCompare(name(b)));
}
