import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import * as React from 'react';
import { gpuIcon } from '../icons';
import { usedMemory } from '../memory';
import { CommandIDs, IAffinode } from '../tokens';
import { asOf, bytes, bytesPer, usedText } from '../words';

/** One element for all renderings, which React then leaves as it is: a LabIcon works each time it is rendered. */
const ICON = <gpuIcon.react tag="span" className="jp-affinode-statusIcon" aria-hidden="true" />;

/** "GPU 71/80 GiB · 1 waiting"; a click opens the panel. Nothing where there is no GPU. */
class StatusItem extends ReactWidget {
  constructor(
    private readonly _affinode: IAffinode,
    private readonly _commands: CommandRegistry,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-affinode-statusItem');
    _affinode.changed.connect(this._onChanged, this);
  }

  protected render(): JSX.Element | null {
    const { _affinode: affinode, _trans: trans } = this;
    const node = affinode.status?.node;
    if (!node || node.gpus.length === 0) {
      return null;
    }
    const memory = usedMemory(node);
    const { used, total } = memory;
    const waiting = (affinode.status?.kernels ?? []).filter(
      kernel => kernel.own && kernel.residency === 'queued'
    ).length;
    const parts = [
      total === null ? trans.__('GPU %1', bytes(used)) : trans.__('GPU %1', bytesPer(used, total))
    ];
    if (waiting > 0) {
      parts.push(trans.__('%1 waiting', waiting));
    }
    const full = [
      usedText(memory, trans),
      waiting > 0
        ? trans._n('%1 notebook of yours waits', '%1 notebooks of yours wait', waiting)
        : null,
      asOf(affinode, trans)
    ].filter(text => text !== null);
    const classes = [
      'jp-affinode-statusButton',
      waiting > 0 ? 'jp-mod-queued' : '',
      affinode.stale ? 'jp-mod-stale' : ''
    ];
    return (
      <button
        type="button"
        className={classes.filter(name => name !== '').join(' ')}
        aria-label={trans.__('%1. Show the GPU panel', full.join(', '))}
        title={trans.__('%1. Click to show the GPU panel.', full.join(', '))}
        onClick={() => void this._commands.execute(CommandIDs.openPanel)}
        onPointerEnter={() => void affinode.refresh()}
      >
        {ICON}
        {parts.join(' · ')}
      </button>
    );
  }

  private _onChanged(): void {
    this.update();
  }
}

/** Adds the item to JupyterLab's status bar, where there is one. */
export const statusBarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:status-bar',
  description: 'GPU memory in use and how many notebooks wait, in the status bar.',
  autoStart: true,
  requires: [IAffinode],
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    affinode: IAffinode,
    statusBar: IStatusBar | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('jupyter_affinode');
    statusBar?.registerStatusItem(statusBarPlugin.id, {
      item: new StatusItem(affinode, app.commands, trans),
      align: 'left',
      rank: 10
    });
  }
};
