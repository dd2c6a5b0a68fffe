import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import * as React from 'react';
import { canHold, canPark, canRelease, canResume, endable } from '../actions';
import { keepIcon, residencyIcons } from '../icons';
import { whichGpu } from '../memory';
import { IGpu, IKernel } from '../status';
import { CommandIDs, IAffinode } from '../tokens';
import { hueClass } from './MemoryBar';
import { bytes, details, span, title } from '../words';

/** What a kernel's row shows, and what it can do. */
interface IKernelRowProps {
  affinode: IAffinode;
  commands: CommandRegistry;
  /** All of the machine. */
  gpus: IGpu[];
  kernel: IKernel;
  /** Whether this kernel is the current notebook's. */
  current: boolean;
  /** Bring the kernel's notebook to the front. */
  open: (kernel: IKernel) => void;
  trans: TranslationBundle;
}

/** One kernel: whose it is, where its GPU state is and why, and what can be done about it. */
export function KernelRow(props: IKernelRowProps): JSX.Element {
  const { affinode, kernel, trans } = props;
  const StateIcon = residencyIcons[kernel.residency].react;
  const pending = affinode.pending(kernel.id);
  const classes = ['jp-affinode-kernel', `jp-mod-${kernel.residency}`];
  if (props.current) {
    classes.push('jp-mod-current');
  }
  return (
    <li
      className={classes.join(' ')}
      aria-busy={pending}
      data-kernel-id={kernel.id}
      data-residency={kernel.residency}
    >
      <div className="jp-affinode-kernelTitle">
        <Name {...props} />
        {kernel.held_for_s !== null && (
          <span
            className="jp-affinode-kept"
            title={trans.__('Kept for %1', span(kernel.held_for_s, trans))}
          >
            <keepIcon.react tag="span" />
          </span>
        )}
      </div>
      <div className="jp-affinode-state">
        <StateIcon tag="span" className="jp-affinode-stateIcon" aria-hidden="true" />
        <span>{stateText(kernel)}</span>
      </div>
      <Details gpus={props.gpus} kernel={kernel} trans={trans} />
      {kernel.own && <Buttons {...props} pending={pending} />}
      <Stuck {...props} pending={pending} />
    </li>
  );
}

/** The notebook's name, which opens it; with the swatch of its share in the bars. */
function Name(props: IKernelRowProps): JSX.Element {
  const { affinode, kernel, open, trans } = props;
  const name = title(kernel, trans);
  const path = kernel.path ?? kernel.paths[0];
  const swatch =
    kernel.residency === 'none'
      ? 'jp-mod-absent'
      : kernel.own
        ? hueClass(affinode.hue(kernel.id))
        : 'jp-mod-others';
  return (
    <>
      <span className={`jp-affinode-swatch ${swatch}`} aria-hidden="true" />
      {kernel.own && path ? (
        <button
          className="jp-affinode-name"
          title={trans.__('Open %1', kernel.paths.length > 1 ? kernel.paths.join(', ') : path)}
          onClick={() => open(kernel)}
        >
          {name}
        </button>
      ) : (
        <span className="jp-affinode-name" title={kernel.server ?? undefined}>
          {name}
        </span>
      )}
    </>
  );
}

/** Times, the reason of the last change, what refuses to move, and why the last try was refused. */
function Details(props: { gpus: IGpu[]; kernel: IKernel; trans: TranslationBundle }): JSX.Element {
  const { gpus, kernel, trans } = props;
  const gpu = whichGpu(kernel, gpus, trans);
  const times = gpu === null ? details(kernel, trans) : [gpu, ...details(kernel, trans)];
  return (
    <>
      {times.length > 0 && <div className="jp-affinode-muted">{times.join(' · ')}</div>}
      {kernel.reason && (
        <div className="jp-affinode-muted">{trans.__('Why: %1', kernel.reason)}</div>
      )}
      {kernel.fixed.length > 0 && (
        <ul className="jp-affinode-fixed" aria-label={trans.__('Stays on the GPU')}>
          {kernel.fixed.map(fixed => (
            <li key={fixed.reason}>
              {trans.__('%1 cannot move: %2', bytes(fixed.bytes), fixed.text)}
            </li>
          ))}
        </ul>
      )}
      {kernel.depth === 'memory' && kernel.depth_refusal && (
        <div className="jp-affinode-muted">
          {trans.__('Its CUDA context stays on the GPU: %1', kernel.depth_refusal)}
        </div>
      )}
      {kernel.refusal && (
        <div className="jp-affinode-refusal">{trans.__('Not freed: %1', kernel.refusal)}</div>
      )}
    </>
  );
}

/** Only the buttons that do something now; a kernel that never used the GPU has none. */
function Buttons(props: IKernelRowProps & { pending: boolean }): JSX.Element | null {
  const { affinode, commands, kernel, pending, trans } = props;
  if (kernel.residency === 'none' && kernel.held_for_s === null) {
    return null;
  }
  const name = title(kernel, trans);
  const keepFor = span(affinode.settings.holdMinutes * 60, trans);
  const button = (command: string, label: string, primary = false) => (
    <button
      key={command}
      className={`jp-affinode-button${primary ? ' jp-mod-primary' : ''}`}
      disabled={pending}
      aria-label={`${label}: ${name}`}
      title={commands.caption(command)}
      onClick={() => void commands.execute(command, { kernelId: kernel.id })}
    >
      {label}
    </button>
  );
  const buttons: JSX.Element[] = [];
  if (canPark(kernel)) {
    buttons.push(button(CommandIDs.park, trans.__('Free GPU'), true));
  }
  if (canResume(kernel)) {
    buttons.push(button(CommandIDs.resume, trans.__('Get GPU back'), true));
  }
  if (canRelease(kernel)) {
    buttons.push(button(CommandIDs.release, trans.__('Release')));
  } else if (canHold(kernel)) {
    buttons.push(button(CommandIDs.hold, trans.__('Keep GPU (%1)', keepFor)));
  }
  return buttons.length ? <div className="jp-affinode-buttons">{buttons}</div> : null;
}

/** Processes that can make no progress any more, each with its reason, and a way to end it where one may. */
function Stuck(props: IKernelRowProps & { pending: boolean }): JSX.Element | null {
  const { commands, kernel, pending, trans } = props;
  const stuck = kernel.processes.filter(process => process.stuck);
  const mayEnd = endable(kernel);
  return stuck.length === 0 ? null : (
    <ul className="jp-affinode-stuck" aria-label={trans.__('Stuck')}>
      {stuck.map(process => (
        <li key={process.number}>
          <div className="jp-affinode-refusal">
            {trans.__('Stuck (pid %1): %2', process.pid, process.stuck?.text)}
          </div>
          {mayEnd.includes(process) && (
            <div className="jp-affinode-buttons">
              <button
                className="jp-affinode-button"
                disabled={pending}
                aria-label={trans.__('End process %1', process.pid)}
                title={commands.caption(CommandIDs.endProcess)}
                onClick={() =>
                  void commands.execute(CommandIDs.endProcess, {
                    kernelId: kernel.id,
                    process: process.number
                  })
                }
              >
                {trans.__('End process')}
              </button>
            </div>
          )}
        </li>
      ))}
    </ul>
  );
}

/** The state in the server's words; the panel's badge already says that the GPU is simulated. */
function stateText(kernel: IKernel): string {
  return kernel.text.replace(/ \(simulated\)$/, '');
}
