import { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { IKernel } from '../../status';
import { othersText } from '../../words';
import { Empty } from '../Empty';
import { Section } from '../Section';
import { IView } from '../view';
import { useFreeIdle } from './FreeIdle';
import { KernelRow } from './KernelRow';
import {
  IFilter,
  inPlace,
  isOpenAtFirst,
  isProblem,
  SECTIONS,
  SectionId,
  sections,
  sectionTitle
} from './rows';
import { useStill } from './still';

interface IListProps {
  currentKernelId: string | undefined;
  filter: IFilter;
  kernels: IKernel[];
  view: IView;
}

/** What is open and closed, by section and kernel, and the function that changes it. */
interface IOpen {
  open: ReadonlyMap<string, boolean>;
  toggle: (id: string, isOpen: boolean) => void;
}

/** The kernels by where their memory is, and other users' as a sum. */
export function KernelList(props: IListProps): JSX.Element {
  const { filter, kernels, view } = props;
  const { node, trans } = view;
  const [open, setOpen] = React.useState<ReadonlyMap<string, boolean>>(new Map());
  const toggle = React.useCallback(
    (id: string, isOpen: boolean) => setOpen(before => new Map(before).set(id, isOpen)),
    []
  );
  const offers = useFreeIdle(kernels, view);
  const still = useStill();
  const placed = React.useRef({ filter, found: sections(kernels, filter, trans) });
  const now = sections(kernels, filter, trans);
  const isSameList = still.isHeld && placed.current.filter === filter;
  const found = isSameList ? inPlace(placed.current.found, now) : now;
  placed.current = { filter, found };
  const shown = SECTIONS.filter(section => found.get(section)?.length);
  const isAll = filter.text === '' && !filter.here;
  const others = isAll && !found.get('others')?.length ? othersText(node.others, trans) : null;
  return (
    <div className="jp-affinode-list" {...still.props}>
      {shown.length === 0 && <NoKernels filter={filter} kernels={kernels} trans={trans} />}
      {shown.map(section => (
        <KernelSection
          {...props}
          key={section}
          offer={offers(section)}
          open={open}
          rows={found.get(section) ?? []}
          section={section}
          toggle={toggle}
        />
      ))}
      {others !== null && <p className="jp-affinode-others">{others}</p>}
    </div>
  );
}

/** What an empty list says. */
function NoKernels(props: {
  filter: IFilter;
  kernels: IKernel[];
  trans: TranslationBundle;
}): JSX.Element {
  const { filter, kernels, trans } = props;
  if (kernels.length === 0) {
    return (
      <Empty title={trans.__('You have no kernels')}>
        <p>{trans.__('Start a notebook. Its GPU memory is shown here as soon as it has some.')}</p>
      </Empty>
    );
  }
  const title =
    filter.text === '' ? trans.__('No kernel of this server') : trans.__('No kernel of this name');
  return <Empty title={title} role="status" />;
}

/** One section with its kernels. */
function KernelSection(
  props: IListProps & IOpen & { offer: JSX.Element | null; rows: IKernel[]; section: SectionId }
): JSX.Element {
  const { currentKernelId, filter, kernels, offer, open, rows, section, toggle, view } = props;
  const isOpen =
    open.get(section) ?? (filter.text !== '' || isOpenAtFirst(section, kernels.length));
  const known = new Set(kernels.map(kernel => kernel.id));
  const isOpenByItself = (kernel: IKernel) =>
    (kernel.id === currentKernelId && kernel.residency !== 'none') ||
    section === 'waiting' ||
    isProblem(kernel);
  return (
    <Section
      count={rows.length}
      id={section}
      isOpen={isOpen}
      offer={offer}
      onToggle={() => toggle(section, !isOpen)}
      title={sectionTitle(section, view.trans)}
    >
      <ul className="jp-affinode-kernels">
        {rows.map(kernel => (
          <KernelRow
            key={kernel.id}
            isCurrent={kernel.id === currentKernelId}
            isGone={!known.has(kernel.id)}
            isOpen={open.get(kernel.id) ?? isOpenByItself(kernel)}
            pending={view.affinode.pending(kernel.id)}
            kernel={kernel}
            kernels={section === 'waiting' ? kernels : undefined}
            onToggle={toggle}
            view={view}
          />
        ))}
      </ul>
    </Section>
  );
}
