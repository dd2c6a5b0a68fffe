import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IRunningSessionManagers, IRunningSessions } from '@jupyterlab/running';
import { ITranslator, nullTranslator, TranslationBundle } from '@jupyterlab/translation';
import { LabIcon } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import { ISignal, Signal } from '@lumino/signaling';
import { canPark, offered } from '../actions';
import { residencyIcons } from '../icons';
import { IKernel } from '../status';
import { CommandIDs, IAffinode } from '../tokens';
import { actionLabel, keptText, NamedAction, stateName, stateText, title } from '../words';
import { commandOf } from './commandOf';

/** One kernel in the section. */
class Item implements IRunningSessions.IRunningItem {
  constructor(
    readonly kernel: IKernel,
    private readonly _commands: CommandRegistry,
    private readonly _trans: TranslationBundle
  ) {
    this.action = offered(kernel)[0] ?? null;
    this.context = kernel.id;
    this.className = `jp-affinode-running jp-mod-${kernel.residency}`;
    if (this.action !== null) {
      const command = commandOf[this.action];
      this.shutdown = () => void _commands.execute(command, { kernelId: kernel.id });
    }
  }

  open = (): void => {
    void this._commands.execute(CommandIDs.openKernel, { kernelId: this.kernel.id });
  };

  icon = (): LabIcon => residencyIcons[this.kernel.residency];

  label = (): string => title(this.kernel, this._trans);

  detail = (): string => stateName(this.kernel.residency, this._trans);

  labelTitle = (): string =>
    [
      this.kernel.path ?? this.kernel.name,
      stateText(this.kernel, this._trans),
      keptText(this.kernel, this._trans)
    ]
      .filter(text => text)
      .join(', ');

  /** The most useful action now. */
  readonly action: NamedAction | null;
  readonly className: string;
  readonly context: string;
  readonly shutdown?: () => void;
}

/** The user's kernels that use the GPU, in "Running Terminals and Kernels". */
class RunningGpu implements IRunningSessions.IManager {
  constructor(
    private readonly _affinode: IAffinode,
    private readonly _commands: CommandRegistry,
    private readonly _trans: TranslationBundle
  ) {
    this.name = _trans.__('GPU');
    this.shutdownAllLabel = _trans.__('Free All');
    this.shutdownAllConfirmationText = _trans.__(
      'Free the GPU of all your notebooks? Their next cells that use CUDA get it back.'
    );
    _affinode.changed.connect(this._onChanged, this);
  }

  readonly name: string;
  readonly shutdownAllLabel: string;
  readonly shutdownAllConfirmationText: string;
  readonly shutdownItemIcon = residencyIcons.parked;
  readonly shutdownLabel = (item: IRunningSessions.IRunningItem): string =>
    item instanceof Item && item.action !== null ? actionLabel(item.action, this._trans) : '';

  get runningChanged(): ISignal<this, void> {
    return this._runningChanged;
  }

  running(): Item[] {
    return this._kernels().map(kernel => new Item(kernel, this._commands, this._trans));
  }

  refreshRunning(): void {
    void this._affinode.refresh();
  }

  shutdownAll(): void {
    for (const { id } of this._kernels().filter(canPark)) {
      void this._commands.execute(CommandIDs.park, { kernelId: id });
    }
  }

  private _kernels(): IKernel[] {
    const kernels = this._affinode.status?.kernels ?? [];
    return kernels.filter(kernel => kernel.own && kernel.residency !== 'none');
  }

  /** The section is made anew at each signal: only what it shows counts. */
  private _onChanged(): void {
    const shown = this.running()
      .map(item => `${item.context} ${item.label()} ${item.labelTitle()} ${item.action}`)
      .join('\n');
    if (shown !== this._shown) {
      this._shown = shown;
      this._runningChanged.emit();
    }
  }

  private readonly _runningChanged = new Signal<this, void>(this);
  private _shown = '';
}

/** Adds the section, where the application has such a panel. */
export const runningPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-affinode:running',
  description: 'The kernels that use the GPU in the panel of running terminals and kernels.',
  autoStart: true,
  requires: [IAffinode],
  optional: [IRunningSessionManagers, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    affinode: IAffinode,
    managers: IRunningSessionManagers | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('jupyter_affinode');
    managers?.add(new RunningGpu(affinode, app.commands, trans));
  }
};
