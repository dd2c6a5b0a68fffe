import {
  ILabShell,
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, SidePanel } from '@jupyterlab/ui-components';
import { IDisposable } from '@lumino/disposable';
import { Message, MessageLoop } from '@lumino/messaging';
import { Panel as LuminoPanel, Widget } from '@lumino/widgets';
import * as React from 'react';
import { gpuIcon } from '../icons';
import { kernelIdOf } from '../shell/openKernel';
import { CommandIDs, IAffinode } from '../tokens';
import { Panel } from './Panel';

/** Changes that come within this time are drawn together; each drawing costs a frame of the whole page. */
const PAUSE_MS = 500;

/** What the panel's widgets are made of. */
interface IPanelOptions {
  app: JupyterFrontEnd;
  affinode: IAffinode;
  notebooks: INotebookTracker | null;
  trans: TranslationBundle;
}

/** The sidebar's widget; it keeps the status fresh while it is seen. */
export class PanelWidget extends SidePanel {
  constructor(options: IPanelOptions) {
    super({ content: new LuminoPanel() });
    const { trans } = options;
    this._affinode = options.affinode;
    this._body = new PanelBody(options);
    this.addWidget(this._body);
    this.id = 'jp-affinode-panel';
    this.addClass('jp-affinode');
    this.title.icon = gpuIcon;
    this.title.caption = trans.__('GPU');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('GPU'));
    this.content.node.removeAttribute('role'); // the region is the panel
    this.content.node.removeAttribute('aria-label');
  }

  override dispose(): void {
    this._stopWatching();
    super.dispose();
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

  /** The focus goes to the current notebook's row, so that the keyboard reaches "Get back" from the notebook. */
  protected override onActivateRequest(msg: Message): void {
    super.onActivateRequest(msg);
    this._body.focusCurrent();
  }

  private _watchWhileVisible(): void {
    if (this.isVisible) {
      this._watch ??= this._affinode.watch();
    }
  }

  private _stopWatching(): void {
    this._watch?.dispose();
    this._watch = null;
  }

  private readonly _affinode: IAffinode;
  private readonly _body: PanelBody;
  private _watch: IDisposable | null = null;
}

/** What the panel shows. */
class PanelBody extends ReactWidget {
  constructor(private readonly _options: IPanelOptions) {
    super();
    this.addClass('jp-affinode-content');
    _options.affinode.changed.connect(this._onChanged, this);
    _options.notebooks?.currentChanged.connect(this._draw, this);
  }

  override dispose(): void {
    window.clearTimeout(this._timer);
    super.dispose();
  }

  /** Give the focus to the current notebook's row, else to the first control. */
  focusCurrent(): void {
    MessageLoop.sendMessage(this, Widget.Msg.UpdateRequest);
    void this.renderPromise?.then(() => this._focusCurrent()); // there is no row before the first rendering
  }

  protected render(): JSX.Element {
    const { affinode, app, notebooks, trans } = this._options;
    const current = notebooks?.currentWidget;
    return (
      <Panel
        affinode={affinode}
        commands={app.commands}
        currentKernelId={kernelIdOf(current)}
        isVisible={this.isVisible}
        leave={() => {
          if (current) {
            app.shell.activateById(current.id);
          }
        }}
        lookAgain={this._lookAgain}
        shownKernels={new Set([...app.shell.widgets('main')].map(each => kernelIdOf(each) ?? ''))}
        trans={trans}
      />
    );
  }

  protected override onUpdateRequest(msg: Message): void {
    super.onUpdateRequest(msg);
    this._drawn = performance.now();
  }

  protected override onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this.update();
  }

  protected override onAfterHide(msg: Message): void {
    super.onAfterHide(msg);
    this.update(); // what asks while it is seen has to stop
  }

  private _focusCurrent(): void {
    const controls = (selector: string) => this.node.querySelector<HTMLElement>(selector);
    const control =
      controls('.jp-mod-current [data-control="name"]') ??
      controls('[data-kernel-id] [data-control="name"]') ??
      controls('[data-control]');
    if (control) {
      control.focus();
    } else {
      this.node.tabIndex = -1;
      this.node.focus();
    }
  }

  private _onChanged(): void {
    if (this.isVisible) {
      this._timer ??= window.setTimeout(
        () => {
          this._timer = undefined;
          this.update();
        },
        this._drawn + PAUSE_MS - performance.now()
      );
    }
  }

  /** At once: the user has turned to another notebook, or asked for a look. */
  private _draw(): void {
    if (this.isVisible) {
      this.update();
    }
  }

  private _lookAgain = (): void => {
    void this._options.affinode.refresh().then(() => this._draw());
  };

  private _drawn = 0;
  private _timer: number | undefined;
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
    const panel = new PanelWidget({ app, affinode, notebooks, trans });
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
