import { TranslationBundle } from '@jupyterlab/translation';
import { Button, InputGroup, refreshIcon, searchIcon } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import * as React from 'react';
import { IKernel, INode } from '../status';
import { IAffinode } from '../tokens';
import { folders, mainPath, namesOf } from '../words';
import { HistorySection } from '../history/HistorySection';
import { Empty, Problem } from './Empty';
import { moveByArrow, useKeptFocus } from './focus';
import { KernelList } from './kernels/KernelList';
import { KeptKernels } from './keeping/KeptKernels';
import { Gpus, HostMemory } from './machine/Memory';
import { Policy } from './machine/Policy';
import { IFilter, MANY } from './kernels/rows';
import { IView } from './view';
import { WarmKernels } from './keeping/WarmKernels';

/** What the panel shows and acts through. */
export interface IPanelProps {
  affinode: IAffinode;
  commands: CommandRegistry;
  /** The kernel of the current notebook. */
  currentKernelId: string | undefined;
  isVisible: boolean;
  /** The kernels that notebooks and consoles of this page show. */
  shownKernels: ReadonlySet<string>;
  /** Go back to the current notebook. */
  leave: () => void;
  /** Ask the server now, and show the answer at once. */
  lookAgain: () => void;
  trans: TranslationBundle;
}

/** The whole panel. */
export function Panel(props: IPanelProps): JSX.Element {
  const { affinode, trans } = props;
  const { problem, settings, status } = affinode;
  const root = React.useRef<HTMLDivElement>(null);
  const kept = useKeptFocus(root);
  const [filter, setFilter] = React.useState<IFilter>({
    text: '',
    here: !settings.showOtherKernels
  });
  React.useEffect(
    () => setFilter(shown => ({ ...shown, here: !settings.showOtherKernels })),
    [settings.showOtherKernels]
  );
  const isDense = (status?.kernels.length ?? 0) > MANY;
  return (
    <div
      ref={root}
      className={`jp-affinode-root${isDense ? ' jp-mod-dense' : ' jp-mod-sparse'}`}
      {...kept}
      onKeyDown={event => {
        moveByArrow(event, root.current);
        if (event.key === 'Escape' && !event.defaultPrevented) {
          props.leave();
        }
      }}
    >
      <Toolbar filter={filter} lookAgain={props.lookAgain} onFilter={setFilter} trans={trans} />
      <div className="jp-affinode-body">
        {!problem && !status && <Empty title={trans.__('Looking…')} role="status" />}
        {problem && <Problem affinode={affinode} problem={problem} trans={trans} />}
        <KeptKernels {...props} />
        <WarmKernels {...props} />
        {status?.node && (
          <Machine {...props} filter={filter} node={status.node} kernels={status.kernels} />
        )}
      </div>
    </div>
  );
}

/** The filter, by name and by server, and the button that asks the server now. */
const Toolbar = React.memo(
  (props: {
    filter: IFilter;
    lookAgain: () => void;
    onFilter: (filter: IFilter) => void;
    trans: TranslationBundle;
  }): JSX.Element => {
    const { filter, onFilter, trans } = props;
    return (
      <div className="jp-affinode-toolbar" role="toolbar" aria-label={trans.__('GPU')}>
        <InputGroup
          type="search"
          className="jp-affinode-filter"
          data-control="filter"
          aria-label={trans.__('Filter kernels')}
          placeholder={trans.__('Filter')}
          rightIcon={searchIcon}
          value={filter.text}
          onChange={event => onFilter({ ...filter, text: event.currentTarget.value })}
        />
        <Button
          small
          minimal
          type="button"
          className="jp-affinode-button jp-affinode-here"
          data-control="here"
          aria-pressed={filter.here}
          title={trans.__('Only the kernels of this server')}
          onClick={() => onFilter({ ...filter, here: !filter.here })}
        >
          {trans.__('Here')}
        </Button>
        <Button
          small
          minimal
          type="button"
          className="jp-affinode-button jp-affinode-refresh"
          data-control="refresh"
          title={trans.__('Refresh')}
          aria-label={trans.__('Refresh')}
          onClick={props.lookAgain}
        >
          <refreshIcon.react tag="span" />
        </Button>
      </div>
    );
  }
);

/** Policy, memory and kernels. */
function Machine(
  props: IPanelProps & { filter: IFilter; node: INode; kernels: IKernel[] }
): JSX.Element {
  const { kernels, node, trans } = props;
  const view = useView(props);
  if (node.gpus.length === 0) {
    return (
      <Empty title={trans.__('No GPU on this machine')}>
        <p>
          {trans.__(
            'Notebooks run as always. To see what this panel does on a simulated GPU, run:'
          )}
        </p>
        <code tabIndex={0}>jupyter affinode simulate -- jupyter lab</code>
      </Empty>
    );
  }
  return (
    <>
      <MemoryAndPolicy kernels={kernels} node={node} view={view} />
      <KernelList
        currentKernelId={props.currentKernelId}
        filter={props.filter}
        kernels={kernels}
        view={view}
      />
      <HistorySection view={view} />
    </>
  );
}

/** What every part draws from: another object only after a look at the machine, or when memory moved. */
function useView(props: IPanelProps & { node: INode; kernels: IKernel[] }): IView {
  const { affinode, commands, isVisible, node, trans } = props;
  const isStale = affinode.stale;
  const kernels = React.useRef(props.kernels);
  kernels.current = props.kernels;
  return React.useMemo(() => {
    const own = kernels.current.filter(kernel => kernel.own).map(mainPath);
    const named = folders(own.filter(path => path !== null));
    const rates = kernels.current.flatMap(({ id }) => affinode.rates(id));
    return {
      affinode,
      commands,
      node,
      folderOf: path => named.get(path),
      nameOf: namesOf(id => affinode.kernel(id), trans),
      mostCalls: Math.max(1, ...rates.map(rate => rate.perSecond)),
      isVisible,
      isStale,
      trans
    };
  }, [affinode, commands, isStale, isVisible, node, trans]);
}

/** Drawn anew only with the machine: an event about a kernel whose memory stays leaves it as it is. */
const MemoryAndPolicy = React.memo(
  (props: { kernels: IKernel[]; node: INode; view: IView }): JSX.Element => (
    <>
      <Policy {...props} />
      <Gpus {...props} />
      <HostMemory {...props} />
    </>
  ),
  (before, now) => before.node === now.node && before.view === now.view
);
