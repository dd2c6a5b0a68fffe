import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, Notification, showDialog } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { canHold, canPark, canRelease, canResume, endable } from './actions';
import { AffinodeError } from './api';
import { gpuIcon, keepIcon, residencyIcons } from './icons';
import { Action, IKernel } from './status';
import { CommandIDs, IAffinode } from './tokens';
import { notice, span, title } from './words';

/** The arguments that all kernel commands take, for `describedBy`. */
const KERNEL_ARGUMENT = {
  kernelId: {
    type: 'string',
    description: "The kernel's id; by default the current notebook's kernel."
  }
};

/** Free, get back, keep and release a kernel's GPU: by id, or for the current notebook. */
export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:commands',
  description: 'Commands to free a notebook’s GPU, get it back, keep it and release it.',
  autoStart: true,
  requires: [IAffinode],
  optional: [INotebookTracker, ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    affinode: IAffinode,
    notebooks: INotebookTracker | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('jupyter_affinode');
    const { commands } = app;

    const kernelOf = (args: ReadonlyPartialJSONObject): IKernel | undefined => {
      const id = args.kernelId ?? notebooks?.currentWidget?.sessionContext.session?.kernel?.id;
      return typeof id === 'string' ? affinode.kernel(id) : undefined;
    };

    const act = async (kernel: IKernel, action: Action, body = {}): Promise<void> => {
      try {
        await affinode.act(kernel.id, action, body);
      } catch (error) {
        if (!(error instanceof AffinodeError)) {
          throw error;
        }
        Notification.warning(notice(`${title(kernel, trans)}: ${error.message}`), {
          autoClose: 8000
        });
      }
    };

    const add = (
      id: string,
      action: Action,
      possible: (kernel: IKernel) => boolean,
      options: Omit<CommandRegistry.ICommandOptions, 'execute'>,
      body: (args: ReadonlyPartialJSONObject) => object = () => ({}),
      extraArguments: ReadonlyPartialJSONObject = {}
    ): void => {
      commands.addCommand(id, {
        describedBy: {
          args: { type: 'object', properties: { ...KERNEL_ARGUMENT, ...extraArguments } }
        },
        isEnabled: args => {
          const kernel = kernelOf(args);
          return kernel !== undefined && !affinode.pending(kernel.id) && possible(kernel);
        },
        execute: async args => {
          const kernel = kernelOf(args);
          if (kernel) {
            await act(kernel, action, body(args));
          }
        },
        ...options
      });
      palette?.addItem({ command: id, category: trans.__('GPU') });
    };

    add(CommandIDs.park, 'park', canPark, {
      label: trans.__('Free the GPU of This Notebook'),
      caption: trans.__('Move the GPU memory to RAM; the next cell that computes brings it back'),
      icon: residencyIcons.parked
    });
    add(CommandIDs.resume, 'resume', canResume, {
      label: trans.__('Get the GPU Back for This Notebook'),
      caption: trans.__('Bring the GPU memory back now, without waiting for the next cell'),
      icon: residencyIcons.resident
    });
    add(
      CommandIDs.hold,
      'hold',
      canHold,
      {
        label: () =>
          trans.__(
            'Keep the GPU for This Notebook (%1)',
            span(affinode.settings.holdMinutes * 60, trans)
          ),
        caption: trans.__('While kept, the GPU memory is not moved when the notebook is idle'),
        icon: keepIcon
      },
      args => ({
        duration_s:
          typeof args.minutes === 'number' ? args.minutes * 60 : affinode.settings.holdMinutes * 60
      }),
      { minutes: { type: 'number', description: 'For how long; by default as the settings say.' } }
    );
    add(CommandIDs.release, 'release', canRelease, {
      label: trans.__('Stop Keeping the GPU for This Notebook'),
      icon: gpuIcon
    });

    commands.addCommand(CommandIDs.endProcess, {
      label: trans.__('End a Process That Is Stuck'),
      caption: trans.__('End this process; what it has in GPU memory is lost'),
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
        const kernel = kernelOf(args);
        const process = kernel && endable(kernel).find(process => process.number === args.process);
        if (!kernel || !process) {
          return;
        }
        const asked = await showDialog({
          title: trans.__('End process %1?', process.pid),
          body: trans.__(
            '%1: %2. The process ends, and what it has in GPU memory is lost.',
            title(kernel, trans),
            process.stuck?.text
          ),
          buttons: [
            Dialog.cancelButton({ label: trans.__('Cancel') }),
            Dialog.warnButton({ label: trans.__('End process') })
          ],
          defaultButton: 0
        });
        if (asked.button.accept) {
          await act(kernel, 'end', { process: process.number });
        }
      }
    });

    affinode.changed.connect(() => commands.notifyCommandChanged());
  }
};
