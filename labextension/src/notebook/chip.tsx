import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISessionContext, IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import { Message } from '@lumino/messaging';
import * as React from 'react';
import { keepIcon, residencyIcons } from '../icons';
import { IKernel } from '../status';
import { IAffinode, IChange } from '../tokens';
import { askedText, asOf, chipLabel, keptText, stateText } from '../words';
import { Popover } from './popover';

/** A toolbar that is narrower shows the chip's icon alone. */
const NARROW_PX = 640;

/** The GPU state of one notebook's kernel, in its toolbar; a click opens its details and actions. */
export class Chip extends ReactWidget {
  constructor(options: Chip.IOptions) {
    super();
    this._options = options;
    this.addClass('jp-affinode-chipBox');
    this._tabStops.observe(this.node, { attributeFilter: ['tabindex'], subtree: true });
    options.affinode.changed.connect(this._onChanged, this);
    options.session.kernelChanged.connect(this._onKernelChanged, this);
  }

  override dispose(): void {
    this._popover?.close();
    this._resizes.disconnect();
    this._tabStops.disconnect();
    super.dispose();
  }

  protected override onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    const toolbar = this._options.toolbar();
    if (toolbar) {
      this._resizes.observe(toolbar);
    }
  }

  protected override onBeforeDetach(msg: Message): void {
    this._resizes.disconnect();
    super.onBeforeDetach(msg);
  }

  /** A chip that goes, as with its kernel, takes the focus with it. */
  protected override onUpdateRequest(msg: Message): void {
    const hadFocus = this.node.contains(document.activeElement);
    super.onUpdateRequest(msg);
    void this.renderPromise?.then(() => {
      if (hadFocus && document.activeElement === document.body) {
        this._options.refocus();
      }
    });
  }

  protected render(): JSX.Element | null {
    const kernel = this._kernel();
    if (!kernel) {
      return null; // nothing to manage, or no controller: the panel says why
    }
    const { affinode, trans } = this._options;
    const { residency } = kernel;
    const StateIcon = residencyIcons[residency].react;
    const pending = affinode.pending(kernel.id);
    const asked = pending && askedText(pending, trans);
    const label = asked ?? chipLabel(kernel, trans);
    const kept = keptText(kernel, trans);
    const state = [stateText(kernel, trans), kept, asked, asOf(affinode, trans)]
      .filter(text => text !== null)
      .join(', ');
    return (
      <button
        type="button"
        className={`jp-affinode-chip jp-mod-${residency}${affinode.stale ? ' jp-mod-stale' : ''}`}
        data-residency={residency}
        aria-busy={pending !== null}
        aria-haspopup="dialog"
        aria-expanded={this._popover !== null}
        aria-label={trans.__('GPU: %1', state)}
        title={trans.__('%1. Click for details.', state)}
        onClick={event => this._toggle(event.currentTarget)}
      >
        <StateIcon tag="span" className="jp-affinode-chipIcon" aria-hidden="true" />
        {label !== '' && !this._isNarrow && <span className="jp-affinode-chipLabel">{label}</span>}
        {kept !== null && (
          <keepIcon.react tag="span" className="jp-affinode-pin" aria-hidden="true" />
        )}
      </button>
    );
  }

  /** The kernel, where there is a GPU that it could use. */
  private _kernel(): IKernel | undefined {
    const { affinode, session } = this._options;
    const id = session.session?.kernel?.id;
    const hasGpu = (affinode.status?.node?.gpus.length ?? 0) > 0;
    return id === undefined || !hasGpu ? undefined : affinode.kernel(id);
  }

  private _toggle(anchor: HTMLElement): void {
    if (this._popover) {
      this._popover.close();
      return;
    }
    const { affinode, commands, trans } = this._options;
    this._popover = new Popover({
      affinode,
      anchor,
      commands,
      kernel: () => this._kernel(),
      onClosed: () => {
        this._popover = null;
        this.update();
      },
      refocus: this._options.refocus,
      trans
    });
    this._popover.open();
    this.update();
  }

  private _onChanged(_: IAffinode, change: IChange): void {
    const id = this._options.session.session?.kernel?.id;
    if (change.machine || (id !== undefined && change.kernels.has(id))) {
      this.update();
    }
  }

  private _onKernelChanged(): void {
    this._popover?.close();
    this.update();
  }

  private readonly _options: Chip.IOptions;
  private _popover: Popover | null = null;
  private _isNarrow = false;
  /**
   * A toolbar takes plain buttons that it shows out of the Tab key's way, since its arrow keys reach them, but those that
   * come into its "More commands" while that is closed neither key would reach.
   */
  private readonly _tabStops = new MutationObserver(() => {
    const button = this.node.querySelector('button');
    if (button && button.tabIndex !== 0) {
      button.tabIndex = 0;
    }
  });
  private readonly _resizes = new ResizeObserver(entries => {
    const isNarrow = (entries[0]?.contentRect.width ?? NARROW_PX) < NARROW_PX;
    if (isNarrow !== this._isNarrow) {
      this._isNarrow = isNarrow;
      this.update();
    }
  });
}

export namespace Chip {
  /** What a chip needs. */
  export interface IOptions {
    affinode: IAffinode;
    commands: CommandRegistry;
    /** Give the focus to the notebook. */
    refocus: () => void;
    session: ISessionContext;
    /** The toolbar whose width counts. */
    toolbar: () => HTMLElement | null;
    trans: TranslationBundle;
  }
}

/** Puts a chip into every notebook's toolbar; the schema `chip.json` says where. */
export const chipPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:chip',
  description:
    'The button in the notebook toolbar that shows the GPU state, with details and actions.',
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
      panel =>
        new Chip({
          affinode,
          commands: app.commands,
          refocus: () => panel.content.activate(),
          session: panel.sessionContext,
          toolbar: () => panel.toolbar.node,
          trans
        })
    );
  }
};
