import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISessionContext, MainAreaWidget } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import { Title, Widget } from '@lumino/widgets';
import * as React from 'react';
import { remedies } from '../actions';
import { residencyIcons } from '../icons';
import { PATIENCE_MS } from '../notices/announcements';
import { ActionButton } from '../shell/ActionButton';
import { IKernel } from '../status';
import { IAffinode } from '../tokens';
import { aged, asOf, boundText, lostText, namesOf, span, stateText, waitText } from '../words';

/** The class of the tab of a notebook that waits. */
const TAB_CLASS = 'jp-affinode-waitingTab';

/** Says above a notebook that it waits, for which other one, and what resolves it; its tab has a badge meanwhile. */
export class Banner extends ReactWidget {
  constructor(private readonly _options: Banner.IOptions) {
    super();
    this.addClass('jp-affinode-bannerBox');
    this.hide();
    _options.affinode.changed.connect(this._onChanged, this);
    _options.commands.commandChanged.connect(this._onCommand, this);
    _options.session.kernelChanged.connect(this._onChanged, this);
  }

  override dispose(): void {
    window.clearTimeout(this._timer);
    window.clearInterval(this._clock);
    this._resizes.disconnect();
    super.dispose();
  }

  protected render(): JSX.Element | null {
    const { affinode } = this._options;
    const kernel = this._kernel();
    if (!kernel || this.isHidden) {
      return null;
    }
    const StateIcon = residencyIcons[kernel.residency].react;
    return (
      <div className={`jp-affinode-banner jp-mod-${kernel.residency}`} ref={this._measure}>
        <StateIcon tag="span" className="jp-affinode-bannerIcon" aria-hidden="true" />
        {kernel.residency === 'lost'
          ? this._lost(kernel)
          : this._waits(affinode.stale ? kernel : aged(kernel, affinode.age(kernel.id)))}
      </div>
    );
  }

  private _lost(kernel: IKernel): JSX.Element {
    const { commands, trans } = this._options;
    return (
      <>
        <span className="jp-affinode-bannerText">
          <b>{stateText(kernel, trans)}.</b> {lostText(trans)}
        </span>
        <ActionButton action="restart" commands={commands} kernel={kernel} trans={trans} />
      </>
    );
  }

  private _waits(kernel: IKernel): JSX.Element {
    const { affinode, commands, trans } = this._options;
    const nameOf = namesOf(id => affinode.kernel(id), trans);
    const { waiting_s } = kernel;
    const long = [span(waiting_s ?? 0, trans), asOf(affinode, trans)].filter(text => text !== null);
    const since = waiting_s === null ? '' : trans.__('Waiting for %1.', long.join(', '));
    return (
      <>
        <span className="jp-affinode-bannerText">
          <b>{stateText(kernel, trans)}.</b> {waitText(kernel.wait, nameOf, trans)}.{' '}
          {boundText(kernel, trans)} <span className="jp-affinode-since">{since}</span>
        </span>
        {remedies(kernel, id => affinode.kernel(id)).map((remedy, index) => (
          <ActionButton
            key={remedy.kernel.id}
            action={remedy.action}
            commands={commands}
            kernel={remedy.kernel}
            named={true}
            primary={index === 0}
            trans={trans}
          />
        ))}
        <ActionButton action="cancel-wait" commands={commands} kernel={kernel} trans={trans} />
      </>
    );
  }

  private _kernel(): IKernel | undefined {
    const id = this._options.session.session?.kernel?.id;
    return id === undefined ? undefined : this._options.affinode.kernel(id);
  }

  private _onChanged(): void {
    const state = this._kernel()?.residency;
    if (state === 'lost') {
      this._show(false);
    } else if (state !== 'queued') {
      this._hide();
    } else if (!this.isHidden) {
      this.update();
    } else if (this._timer === undefined) {
      this._timer = window.setTimeout(() => this._show(true), PATIENCE_MS);
    }
  }

  private _onCommand(): void {
    if (!this.isHidden) {
      this.update();
    }
  }

  private _show(isWait: boolean): void {
    badge(this._options.title, isWait);
    this.show();
    window.clearInterval(this._clock);
    this._clock = window.setInterval(() => this._tick(), 1000);
    this.update();
  }

  private _hide(): void {
    window.clearTimeout(this._timer);
    window.clearInterval(this._clock);
    this._timer = undefined;
    badge(this._options.title, false);
    if (!this.isHidden) {
      const hadFocus = this.node.contains(document.activeElement);
      this.hide();
      if (hadFocus) {
        this._options.refocus(); // else it would fall to the page's body
      }
    }
  }

  /** Lumino gives a widget the height that its style demands: as much as the text and the buttons take. */
  private _measure = (content: HTMLElement | null): void => {
    this._resizes.disconnect();
    if (content) {
      this._resizes.observe(content);
    }
  };

  private readonly _resizes = new ResizeObserver(entries => {
    const height = Math.ceil((entries[0].target as HTMLElement).offsetHeight);
    this.node.style.minHeight = `${height}px`;
    this.parent?.fit();
  });
  private _tick(): void {
    if (this.isVisible && !document.hidden) {
      this.update();
    }
  }

  private _clock: number | undefined;
  private _timer: number | undefined;
}

export namespace Banner {
  /** What a banner needs. */
  export interface IOptions {
    affinode: IAffinode;
    commands: CommandRegistry;
    /** Give the focus back to the notebook. */
    refocus: () => void;
    session: ISessionContext;
    /** Of the tab. */
    title: Title<Widget>;
    trans: TranslationBundle;
  }
}

/** Mark a tab, or no longer. */
function badge(title: Title<Widget>, isWaiting: boolean): void {
  const classes = title.className.split(' ').filter(name => name !== '' && name !== TAB_CLASS);
  title.className = (isWaiting ? [...classes, TAB_CLASS] : classes).join(' ');
}

/** Gives every notebook and console a banner and a badge. */
export const bannerPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:banner',
  description:
    'Says above a notebook or console that it waits for the GPU, and marks its tab meanwhile.',
  autoStart: true,
  requires: [IAffinode],
  optional: [INotebookTracker, IConsoleTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    affinode: IAffinode,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('jupyter_affinode');
    const add = (panel: MainAreaWidget & { sessionContext: ISessionContext }) => {
      const banner = new Banner({
        affinode,
        commands: app.commands,
        refocus: () => panel.content.activate(),
        session: panel.sessionContext,
        title: panel.title,
        trans
      });
      panel.contentHeader.addWidget(banner);
    };
    notebooks?.forEach(add);
    notebooks?.widgetAdded.connect((_, panel) => add(panel));
    consoles?.forEach(add);
    consoles?.widgetAdded.connect((_, panel) => add(panel));
  }
};
