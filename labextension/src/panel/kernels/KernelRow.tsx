import { caretRightIcon } from '@jupyterlab/ui-components';
import * as React from 'react';
import { canStay, offered, Possible } from '../../actions';
import { keepIcon, residencyIcons } from '../../icons';
import { ActionButton } from '../../shell/ActionButton';
import { commandOf } from '../../shell/commandOf';
import { IKernel } from '../../status';
import {
  askedText,
  busyText,
  bytes,
  chipLabel,
  doneText,
  keptText,
  mainPath,
  onGpu,
  stateText,
  title
} from '../../words';
import { Details } from './KernelDetails';
import { done } from './howFar';
import { Asked, Progress } from './Progress';
import { Sparkline } from '../Sparkline';
import { face, Ticking, useTick } from './Ticking';
import { IView, swatchClass } from '../view';

/** What nearly all notebooks' names end with. */
const ENDING = /\.ipynb$/;

/** What a kernel's row shows. */
interface IRowProps {
  kernel: IKernel;
  /** Whether this kernel is the current notebook's. */
  isCurrent: boolean;
  /** Whether the kernel has ended, and only keeps its place while the list holds still. */
  isGone: boolean;
  /** Whether its details are shown. */
  isOpen: boolean;
  /** What was asked for it and is not answered yet. */
  pending: Possible | null;
  /** All kernels where what the row offers depends on others. */
  kernels?: IKernel[];
  onToggle: (id: string, isOpen: boolean) => void;
  view: IView;
}

/** One kernel: a line of fixed slots, and the details below it where they are wanted; drawn anew only if its props change. */
export const KernelRow = React.memo((props: IRowProps): JSX.Element => {
  const { isCurrent, isGone, isOpen, pending, kernel, view } = props;
  const { trans } = view;
  const classes = ['jp-affinode-kernel', `jp-mod-${kernel.residency}`];
  if (isCurrent) {
    classes.push('jp-mod-current');
  }
  const name = title(kernel, trans);
  if (isGone) {
    return (
      <li className="jp-affinode-kernel jp-mod-gone" data-kernel-id={kernel.id}>
        <div className="jp-affinode-line">
          <span />
          <span />
          <span className="jp-affinode-title">
            <bdi className="jp-affinode-nameText">{name}</bdi>
          </span>
          <span className="jp-affinode-words">{trans.__('Ended')}</span>
        </div>
      </li>
    );
  }
  const asked = pending && askedText(pending, trans);
  const state = [stateText(kernel, trans), keptText(kernel, trans), asked]
    .filter(Boolean)
    .join(', ');
  return (
    <li
      className={classes.join(' ')}
      aria-busy={pending !== null}
      aria-current={isCurrent || undefined}
      aria-label={`${name}, ${state}`}
      data-kernel-id={kernel.id}
      data-residency={kernel.residency}
    >
      <Line {...props} name={name} />
      {kernel.move ? (
        <Progress kernel={kernel} view={view} />
      ) : canStay(kernel) ? (
        <Asked label={stateText(kernel, trans)} />
      ) : (
        pending && <Asked label={askedText(pending, trans)} />
      )}
      {isOpen ? (
        <Details kernel={kernel} view={view} />
      ) : (
        <span className="jp-affinode-state jp-mod-unseen">{state}</span>
      )}
    </li>
  );
});

function Line(props: IRowProps & { name: string }): JSX.Element {
  const { isOpen, kernel, name, onToggle, pending, view } = props;
  const { affinode, trans } = view;
  const StateIcon = residencyIcons[kernel.residency].react;
  const kept = keptText(kernel, trans);
  const quick = isOpen ? [] : offered(kernel).slice(0, 2);
  return (
    <div className="jp-affinode-line">
      <button
        type="button"
        className="jp-affinode-caret"
        data-control="caret"
        aria-expanded={isOpen}
        aria-label={trans.__('Details of %1', name)}
        onClick={() => onToggle(kernel.id, !isOpen)}
      >
        <caretRightIcon.react tag="span" />
      </button>
      <span className={`jp-affinode-swatch ${swatchClass(kernel, affinode)}`} aria-hidden="true" />
      <StateIcon tag="span" className="jp-affinode-stateIcon" aria-hidden="true" />
      <span className="jp-affinode-title">
        <Name kernel={kernel} name={name} view={view} />
        {kept !== null && (
          <span className="jp-affinode-kept" role="img" aria-label={kept} title={kept}>
            <keepIcon.react tag="span" />
          </span>
        )}
        <Busy kernel={kernel} view={view} />
      </span>
      <Calls kernel={kernel} view={view} />
      <Figures kernel={kernel} pending={pending} view={view} />
      {quick.length > 0 && (
        <span className="jp-affinode-quick">
          {quick.map((action, index) => (
            <ActionButton
              key={action}
              action={action}
              commands={view.commands}
              kernel={kernel}
              slot={`action${index}`}
              trans={trans}
            />
          ))}
        </span>
      )}
    </div>
  );
}

/** The notebook's name, which opens it, and the folder where another has the same name. */
function Name(props: { kernel: IKernel; name: string; view: IView }): JSX.Element {
  const { kernel, name, view } = props;
  const { commands, folderOf, trans } = view;
  const path = mainPath(kernel);
  const folder = kernel.own && path !== null ? folderOf(path) : undefined;
  const shown = (
    <>
      {folder && (
        <span className="jp-affinode-folder">
          <bdi>{folder}</bdi>
        </span>
      )}
      <bdi className="jp-affinode-nameText">
        {name.replace(ENDING, '')}
        <span className="jp-affinode-ending">{ENDING.exec(name)?.[0]}</span>
      </bdi>
    </>
  );
  return kernel.own && path ? (
    <button
      type="button"
      className="jp-affinode-name"
      data-control="name"
      title={trans.__('Open %1', kernel.paths.length > 1 ? kernel.paths.join(', ') : path)}
      onClick={() => void commands.execute(commandOf.open, { kernelId: kernel.id })}
    >
      {shown}
    </button>
  ) : (
    <span className="jp-affinode-name" title={kernel.server ?? name}>
      {shown}
    </span>
  );
}

/** CUDA calls per second in the last minute. */
function Calls(props: { kernel: IKernel; view: IView }): JSX.Element {
  const { kernel, view } = props;
  const rates = view.affinode.rates(kernel.id);
  if (rates.length === 0) {
    return <span className="jp-affinode-calls" />;
  }
  const end = rates[rates.length - 1].to;
  const last = rates[rates.length - 1].perSecond;
  const said =
    last > 0 && last < 1
      ? view.trans.__('fewer than 1 CUDA call per second')
      : view.trans.__('%1 CUDA calls per second', Math.round(last));
  return (
    <span className="jp-affinode-calls" role="img" aria-label={said} title={said}>
      <Sparkline
        most={view.mostCalls}
        steps={rates.map(rate => ({
          from: end - rate.from,
          to: end - rate.to,
          value: rate.perSecond
        }))}
      />
    </span>
  );
}

/** How busy it keeps its GPU, where there is the room for it. */
function Busy(props: { kernel: IKernel; view: IView }): JSX.Element | null {
  const said = busyText(props.kernel, props.view.trans);
  return said === null ? null : (
    <span className="jp-affinode-rowBusy" role="img" aria-label={said} title={said}>
      {props.view.trans.__('%1 %', props.kernel.busy_percent)}
    </span>
  );
}

/** What it has where it is. */
function sizeText(kernel: IKernel): string {
  switch (kernel.residency) {
    case 'none':
    case 'lost':
      return '';
    case 'parked':
      return bytes(kernel.parked_bytes);
    case 'hibernated': {
      const size = kernel.hibernation?.bytes || kernel.image_bytes || 0;
      return size > 0 ? bytes(size) : '';
    }
    case 'queued':
      return bytes(kernel.wait?.args.bytes ?? kernel.footprint_bytes);
    default: {
      const size = kernel.move?.bytes ?? onGpu(kernel);
      return size > 0 ? bytes(size) : '';
    }
  }
}

/** Its size, and "Active", how far a move is, or for how long it has been idle or waiting; what needs more words, alone. */
function Figures(props: { kernel: IKernel; pending: Possible | null; view: IView }): JSX.Element {
  const { kernel, pending, view } = props;
  const isLate = useIsLate(kernel, view);
  const words = pending ? askedText(pending, view.trans) : isLate && doneText(null, view.trans);
  return words ? (
    <span className="jp-affinode-words" title={words}>
      {words}
    </span>
  ) : (
    <>
      <span className="jp-affinode-size">{sizeText(kernel)}</span>
      <ActivityClock kernel={kernel} view={view} />
    </>
  );
}

/** Whether a move should be over by what is known of its speed. */
function useIsLate(kernel: IKernel, view: IView): boolean {
  const { affinode, isStale } = view;
  const look = React.useCallback(
    () => kernel.move !== null && done(kernel, isStale ? 0 : affinode.age(kernel.id)) === null,
    [affinode, isStale, kernel]
  );
  const [, drawAgain] = React.useState(false);
  useTick(React.useCallback(() => drawAgain(look()), [look]));
  return look();
}

/** "Active", how far a move is, or for how long it has been idle or waiting. */
function ActivityClock(props: { kernel: IKernel; view: IView }): JSX.Element {
  const { kernel, view } = props;
  const { affinode, isStale, trans } = view;
  const since = kernel.residency === 'queued' ? kernel.waiting_s : kernel.idle_s;
  const text = React.useCallback(
    () => face((since ?? 0) + (isStale ? 0 : affinode.age(kernel.id))),
    [affinode, isStale, kernel.id, since]
  );
  const percent = React.useCallback(() => {
    const part = done(kernel, isStale ? 0 : affinode.age(kernel.id)) ?? 1;
    return trans.__('≈%1 %', Math.min(99, Math.floor(100 * part)));
  }, [affinode, isStale, kernel, trans]);
  if (kernel.move) {
    return clock(
      trans.__('How far it is, estimated by the speed of the last move'),
      <Ticking text={percent} />
    );
  }
  if (kernel.residency === 'queued' && since !== null) {
    return clock(trans.__('How long it has been waiting'), <Ticking text={text} />);
  }
  if (kernel.cell_open) {
    return clock(trans.__('A cell is running'), trans.__('Active'), ' jp-mod-active');
  }
  if (kernel.residency === 'hibernated') {
    return clock(stateText(kernel, trans), chipLabel(kernel, trans));
  }
  if (since === null || kernel.residency === 'lost') {
    return clock();
  }
  return clock(
    trans.__('How long it has been idle'),
    <>
      {trans.__('Idle')} <Ticking text={text} />
    </>
  );
}

function clock(title?: string, shown?: React.ReactNode, more = ''): JSX.Element {
  return (
    <span className={`jp-affinode-clock${more}`} title={title}>
      {shown}
    </span>
  );
}
