import {
  ILabShell,
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { IDisposable } from '@lumino/disposable';
import { Message } from '@lumino/messaging';
import * as React from 'react';
import { gpuIcon } from '../icons';
import { IKernel } from '../status';
import { CommandIDs, IAffinode } from '../tokens';
import { Panel } from './Panel';

/** The sidebar's widget; it keeps the status fresh while it is seen. */
export class PanelWidget extends ReactWidget {
  constructor(
    private readonly _app: JupyterFrontEnd,
    private readonly _affinode: IAffinode,
    private readonly _notebooks: INotebookTracker | null,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.id = 'jp-affinode-panel';
    this.addClass('jp-affinode');
    this.title.icon = gpuIcon;
    this.title.caption = _trans.__('GPU');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', _trans.__('GPU'));
    _affinode.changed.connect(this._onChanged, this);
    _notebooks?.currentChanged.connect(this._onChanged, this);
  }

  override dispose(): void {
    this._stopWatching();
    super.dispose();
  }

  protected render(): JSX.Element {
    return (
      <Panel
        affinode={this._affinode}
        commands={this._app.commands}
        currentKernelId={this._notebooks?.currentWidget?.sessionContext.session?.kernel?.id}
        open={kernel => void this._open(kernel)}
        trans={this._trans}
      />
    );
  }

  protected override onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this._watchWhileVisible();
  }

  protected override onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this._watchWhileVisible();
  }

  protected override onAfterHide(msg: Message): void {
    super.onAfterHide(msg);
    this._stopWatching();
  }

  protected override onBeforeDetach(msg: Message): void {
    super.onBeforeDetach(msg);
    this._stopWatching();
  }

  private _watchWhileVisible(): void {
    if (this.isVisible) {
      this._watch ??= this._affinode.watch();
      this.update();
    }
  }

  private _stopWatching(): void {
    this._watch?.dispose();
    this._watch = null;
  }

  private _onChanged(): void {
    if (this.isVisible) {
      this.update();
    }
  }

  /** Focus the kernel's notebook, or open it; a console's path is no file. */
  private async _open(kernel: IKernel): Promise<void> {
    const { commands, serviceManager, shell } = this._app;
    const path = kernel.path ?? kernel.paths[0];
    const seen = this._notebooks?.find(
      panel => panel.sessionContext.session?.kernel?.id === kernel.id
    );
    if (seen) {
      shell.activateById(seen.id);
      return;
    }
    for (const session of serviceManager.sessions.running()) {
      if (session.kernel?.id === kernel.id && session.type === 'console') {
        await commands.execute('console:open', { path: session.path });
        return;
      }
    }
    await commands.execute('docmanager:open', { path });
  }

  private _watch: IDisposable | null = null;
}

/** Adds the panel to the left sidebar, and a command that shows it. */
export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:panel',
  description: 'The sidebar with the GPU’s memory and every kernel’s GPU state.',
  autoStart: true,
  requires: [IAffinode],
  optional: [INotebookTracker, ILabShell, ILayoutRestorer, ICommandPalette, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    affinode: IAffinode,
    notebooks: INotebookTracker | null,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('jupyter_affinode');
    const panel = new PanelWidget(app, affinode, notebooks, trans);
    app.shell.add(panel, 'left', { rank: 600, type: 'GPU' });
    restorer?.add(panel, 'jupyter-affinode-panel');
    app.commands.addCommand(CommandIDs.openPanel, {
      label: trans.__('Show the GPU Panel'),
      icon: gpuIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => (labShell ?? app.shell).activateById(panel.id)
    });
    palette?.addItem({ command: CommandIDs.openPanel, category: trans.__('GPU') });
  }
};
