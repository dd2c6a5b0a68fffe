import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISessionContext, IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, ToolbarButtonComponent } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import * as React from 'react';
import { canPark, canResume } from './actions';
import { residencyIcons } from './icons';
import { IKernel } from './status';
import { CommandIDs, IAffinode } from './tokens';
import { chipLabel, details } from './words';

/** The GPU state of one notebook's kernel, in its toolbar; a click frees the GPU or gets it back. */
export class Chip extends ReactWidget {
  constructor(options: Chip.IOptions) {
    super();
    this._options = options;
    this.addClass('jp-affinode-chipBox');
    options.affinode.changed.connect(this._onChanged, this);
    options.session.kernelChanged.connect(this._onChanged, this);
    options.session.statusChanged.connect(this._onKernelStatus, this);
  }

  protected render(): JSX.Element | null {
    const kernel = this._kernel();
    if (!kernel) {
      return null; // the kernel is none of ours, or the controller is away: the panel says why
    }
    const { affinode, commands, trans } = this._options;
    const command = canPark(kernel)
      ? CommandIDs.park
      : canResume(kernel)
        ? CommandIDs.resume
        : null;
    return (
      <ToolbarButtonComponent
        className={`jp-affinode-chip jp-mod-${kernel.residency}`}
        dataset={{ residency: kernel.residency }}
        icon={residencyIcons[kernel.residency]}
        iconLabel={kernel.text}
        label={chipLabel(kernel, trans)}
        tooltip={tooltip(kernel, command, trans)}
        enabled={command !== null && !affinode.pending(kernel.id)}
        onClick={() => {
          if (command) {
            void commands.execute(command, { kernelId: kernel.id });
          }
        }}
      />
    );
  }

  private _kernel(): IKernel | undefined {
    const { affinode, session } = this._options;
    const id = session.session?.kernel?.id;
    return id === undefined ? undefined : affinode.kernel(id);
  }

  private _onChanged(): void {
    this.update();
  }

  /** A cell that ended may have taken or freed memory, which is no change of state and so no event. */
  private _onKernelStatus(_: ISessionContext, status: string): void {
    if (status === 'idle' && this.isVisible) {
      void this._options.affinode.refresh();
    }
  }

  private readonly _options: Chip.IOptions;
}

export namespace Chip {
  /** What a chip needs. */
  export interface IOptions {
    affinode: IAffinode;
    session: ISessionContext;
    commands: CommandRegistry;
    trans: TranslationBundle;
  }
}

/** The state in full, what a click does, and what is in the way. */
function tooltip(kernel: IKernel, command: string | null, trans: TranslationBundle): string {
  const lines = [[kernel.text, ...details(kernel, trans)].join(' · ')];
  if (command === CommandIDs.park) {
    lines.push(
      kernel.held_for_s === null
        ? trans.__('Click to free the GPU. The next cell that computes gets it back.')
        : trans.__('Click to free the GPU all the same, and keep it no longer.')
    );
  } else if (command === CommandIDs.resume) {
    lines.push(trans.__('Click to get the GPU back now, or just run a cell.'));
  }
  if (kernel.refusal && kernel.residency === 'resident') {
    lines.push(trans.__('Not freed last time: %1', kernel.refusal));
  }
  return lines.join('\n');
}

/** Puts a chip into every notebook's toolbar; the schema `chip.json` says where. */
export const chipPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:chip',
  description:
    'The button in the notebook toolbar that shows the GPU state, frees the GPU and gets it back.',
  autoStart: true,
  requires: [IAffinode, IToolbarWidgetRegistry],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    affinode: IAffinode,
    toolbars: IToolbarWidgetRegistry,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('jupyter_affinode');
    toolbars.addFactory<NotebookPanel>(
      'Notebook',
      'affinode-chip',
      panel => new Chip({ affinode, session: panel.sessionContext, commands: app.commands, trans })
    );
  }
};
