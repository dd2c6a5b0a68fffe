import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, Notification, showDialog } from '@jupyterlab/apputils';
import { ServerConnection } from '@jupyterlab/services';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { LabIcon } from '@jupyterlab/ui-components';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { BY_JUPYTER, canPark, endable, offered, Possible, RULES } from '../actions';
import { AffinodeError } from '../api';
import { gpuIcon, keepIcon, residencyIcons } from '../icons';
import { Action, IKeptKernel, IKernel } from '../status';
import { CommandIDs, IAffinode } from '../tokens';
import {
  actionCaption,
  actionLabel,
  errorText,
  givesText,
  keptTitle,
  mainPath,
  NamedAction,
  notice,
  span,
  stuckText,
  title
} from '../words';
import { commandOf } from './commandOf';
import { kernelIdOf, openKernel } from './openKernel';

/** The arguments that all kernel commands take, for `describedBy`. */
const KERNEL_ARGUMENT = {
  kernelId: {
    type: 'string',
    description: "The kernel's id; by default the kernel of the current notebook or console."
  },
  short: { type: 'boolean', description: 'Whether the label is one word, for a button.' },
  isMenu: {
    type: 'boolean',
    description: 'Whether the command is hidden where it is not possible.'
  }
};

/** One command that acts on a kernel. */
interface IKernelCommand {
  action: Possible;
  /** In palette and menus, where no notebook's name stands beside it. */
  label: () => string;
  icon: LabIcon;
  execute: (kernel: IKernel, args: ReadonlyPartialJSONObject) => Promise<void>;
}

/** The commands of one page. */
class KernelCommands {
  constructor(
    private readonly _app: JupyterFrontEnd,
    private readonly _affinode: IAffinode,
    private readonly _trans: TranslationBundle
  ) {}

  /** Add all; returns those for the palette. */
  add(): string[] {
    const commands = this._list();
    commands.forEach(command => this._add(command));
    this._addEndProcess();
    this._addOpen();
    this._addEnd();
    this._affinode.actionsChanged.connect((_, actions) => this._notify(commands, actions));
    this._app.shell.currentChanged?.connect(() => this._notify(commands));
    return commands.map(({ action }) => commandOf[action]);
  }

  private _list(): IKernelCommand[] {
    const trans = this._trans;
    return [
      {
        action: 'park',
        label: () => trans.__('Free the GPU of This Notebook'),
        icon: residencyIcons.parked,
        execute: kernel => this._act(kernel, 'park')
      },
      {
        action: 'resume',
        label: () => trans.__('Get the GPU Back for This Notebook'),
        icon: residencyIcons.resident,
        execute: kernel => this._act(kernel, 'resume')
      },
      {
        action: 'hold',
        label: () => trans.__('Keep the GPU for This Notebook (%1)', span(this._holdS, trans)),
        icon: keepIcon,
        execute: (kernel, args) =>
          this._act(kernel, 'hold', {
            duration_s: typeof args.minutes === 'number' ? args.minutes * 60 : this._holdS
          })
      },
      {
        action: 'release',
        label: () => trans.__('Stop Keeping the GPU for This Notebook'),
        icon: gpuIcon,
        execute: kernel => this._act(kernel, 'release')
      },
      {
        action: 'hibernate',
        label: () => trans.__('Hibernate the Kernel of This Notebook'),
        icon: residencyIcons.hibernated,
        execute: kernel => this._act(kernel, 'hibernate')
      },
      {
        action: 'wake',
        label: () => trans.__('Wake the Kernel of This Notebook'),
        icon: residencyIcons.resident,
        execute: kernel => this._act(kernel, 'wake')
      },
      {
        action: 'stay',
        label: () => trans.__('Leave the Kernel of This Notebook Where It Was'),
        icon: residencyIcons.resuming,
        execute: kernel => this._act(kernel, 'stay')
      },
      {
        action: 'cancel-wait',
        label: () => trans.__('Stop Waiting for the GPU'),
        icon: residencyIcons.queued,
        execute: kernel => this._affinode.interrupt(kernel.id)
      },
      {
        action: 'restart',
        label: () => trans.__('Restart the Kernel Whose GPU State Is Lost'),
        icon: residencyIcons.lost,
        execute: kernel => this._restart(kernel)
      }
    ];
  }

  private _add(command: IKernelCommand): void {
    this._app.commands.addCommand(commandOf[command.action], {
      describedBy: {
        args: {
          type: 'object',
          properties:
            command.action === 'hold'
              ? {
                  ...KERNEL_ARGUMENT,
                  minutes: {
                    type: 'number',
                    description: 'For how long; by default as the settings say.'
                  }
                }
              : KERNEL_ARGUMENT
        }
      },
      label: args => (args.short ? actionLabel(command.action, this._trans) : command.label()),
      caption: args => this._caption(command.action, this._kernelOf(args)),
      icon: command.icon,
      isVisible: args => {
        const kernel = this._kernelOf(args);
        return !args.isMenu || (kernel !== undefined && offered(kernel).includes(command.action));
      },
      isEnabled: args => {
        const kernel = this._kernelOf(args);
        return (
          kernel !== undefined &&
          RULES[command.action](kernel) &&
          this._mayAct &&
          (!this._affinode.stale || BY_JUPYTER.has(command.action)) &&
          this._affinode.pending(kernel.id) === null
        );
      },
      execute: async args => {
        const kernel = this._kernelOf(args);
        if (kernel) {
          await this._try(title(kernel, this._trans), () => command.execute(kernel, args));
        }
      }
    });
  }

  private _addEndProcess(): void {
    const trans = this._trans;
    this._app.commands.addCommand(CommandIDs.endProcess, {
      label: trans.__('End a Process That Is Stuck'),
      caption: () => this._caption('end'),
      isEnabled: args =>
        this._mayAct &&
        !this._affinode.stale &&
        this._affinode.pending(this._kernelOf(args)?.id ?? '') === null,
      describedBy: {
        args: {
          type: 'object',
          properties: {
            ...KERNEL_ARGUMENT,
            process: { type: 'integer', description: 'Its number.' }
          }
        }
      },
      execute: async args => {
        const kernel = this._kernelOf(args);
        const process = kernel && endable(kernel).find(each => each.number === args.process);
        if (!kernel || !process) {
          return;
        }
        const sure = await this._isSure(
          trans.__('End process %1?', process.pid),
          trans.__(
            '%1: %2. The process ends, and what it has in GPU memory is lost.',
            title(kernel, trans),
            stuckText(process.stuck?.reason ?? '', trans)
          ),
          actionLabel('end', trans)
        );
        if (sure) {
          await this._try(title(kernel, trans), () =>
            this._act(kernel, 'end', { process: process.number })
          );
        }
      }
    });
  }

  private _addOpen(): void {
    this._app.commands.addCommand(CommandIDs.openKernel, {
      label: this._trans.__('Open the Notebook of a Kernel'),
      describedBy: { args: { type: 'object', properties: KERNEL_ARGUMENT } },
      execute: async args => {
        const kernel = this._kernelOf(args);
        const path = kernel ? mainPath(kernel) : this._keptOf(args)?.path;
        const id = args.kernelId ?? kernel?.id;
        if (typeof id === 'string' && path !== undefined) {
          await openKernel(this._app, id, path);
        }
      }
    });
  }

  private _addEnd(): void {
    const trans = this._trans;
    this._app.commands.addCommand(CommandIDs.endKernel, {
      label: trans.__('End a Kernel That No Notebook Shows'),
      isEnabled: args => {
        const kept = this._keptOf(args);
        return kept !== undefined && this._mayAct && this._affinode.pending(kept.id) === null;
      },
      describedBy: { args: { type: 'object', properties: KERNEL_ARGUMENT } },
      execute: async args => {
        const kept = this._keptOf(args);
        const name = kept && keptTitle(kept, trans);
        const sure =
          name &&
          (await this._isSure(
            trans.__('End the kernel of %1?', name),
            trans.__('All its variables, and what it has in GPU memory, are lost.'),
            trans.__('End kernel')
          ));
        if (sure) {
          await this._try(name, () => this._affinode.end(kept));
        }
      }
    });
  }

  private get _mayAct(): boolean {
    return this._affinode.status?.may_act ?? true;
  }

  private _caption(action: NamedAction, kernel?: IKernel): string {
    if (!this._mayAct) {
      return this._trans.__('You may look but not change anything here.');
    }
    const caption = actionCaption(action, this._holdS, this._trans);
    return action === 'park' && kernel && canPark(kernel)
      ? this._trans.__('%1 It %2.', caption, givesText(kernel, this._trans))
      : caption;
  }

  private get _holdS(): number {
    return this._affinode.settings.holdMinutes * 60;
  }

  private _kernelOf(args: ReadonlyPartialJSONObject): IKernel | undefined {
    const id = args.kernelId ?? kernelIdOf(this._app.shell.currentWidget);
    return typeof id === 'string' ? this._affinode.kernel(id) : undefined;
  }

  private _keptOf(args: ReadonlyPartialJSONObject): IKeptKernel | undefined {
    return this._affinode.status?.kept.find(kept => kept.id === args.kernelId);
  }

  private _act(kernel: IKernel, action: Action, body = {}): Promise<void> {
    return this._affinode.act(kernel.id, action, body);
  }

  /** The variables of a kernel whose GPU state is lost may still matter: ask first. */
  private async _restart(kernel: IKernel): Promise<void> {
    const trans = this._trans;
    const sure = await this._isSure(
      trans.__('Restart the kernel of %1?', title(kernel, trans)),
      trans.__('What it had on the GPU is lost already; all its other variables will be, too.'),
      actionLabel('restart', trans)
    );
    if (sure) {
      await this._affinode.restart(kernel.id);
    }
  }

  private async _isSure(question: string, body: string, accept: string): Promise<boolean> {
    const asked = await showDialog({
      title: question,
      body,
      buttons: [
        Dialog.cancelButton({ label: this._trans.__('Cancel') }),
        Dialog.warnButton({ label: accept })
      ],
      defaultButton: 0
    });
    return asked.button.accept;
  }

  /** Do it, and tell a refusal with its reason. */
  private async _try(name: string, act: () => Promise<void>): Promise<void> {
    let refused: { slug: string; status: number; message?: string };
    try {
      await act();
      return;
    } catch (error) {
      const response = (error as { response?: Response }).response; // of Jupyter's own API
      if (error instanceof AffinodeError) {
        refused = error;
      } else if (response) {
        refused = { slug: 'http', status: response.status };
      } else if (error instanceof ServerConnection.NetworkError) {
        refused = { slug: 'unreachable', status: 0 };
      } else {
        throw error;
      }
    }
    if (refused.status === 403) {
      void this._affinode.refresh(); // says whether the user may only look by now
    }
    const message = notice(short => `${short(name)}: ${errorText(refused, this._trans)}`);
    Notification.warning(message, { autoClose: 8000 });
  }

  /** Tell of each command alone, and only of those that changed. */
  private _notify(commands: IKernelCommand[], actions?: ReadonlySet<NamedAction>): void {
    for (const { action } of commands) {
      if (actions === undefined || actions.has(action)) {
        this._app.commands.notifyCommandChanged(commandOf[action]);
      }
    }
  }
}

/** Free, get back, keep, stop keeping, stop waiting: by a kernel's id, or for the current notebook or console. */
export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:commands',
  description:
    'Commands to free a notebook’s GPU, get it back, keep it, and to stop waiting for it; also in the Kernel menu.',
  autoStart: true,
  requires: [IAffinode],
  optional: [ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    affinode: IAffinode,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('jupyter_affinode');
    for (const command of new KernelCommands(app, affinode, trans).add()) {
      palette?.addItem({ command, category: trans.__('GPU') });
    }
  }
};
