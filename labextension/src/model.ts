import { Event, ServiceManager } from '@jupyterlab/services';
import { TranslationBundle } from '@jupyterlab/translation';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { ISignal, Signal } from '@lumino/signaling';
import { AffinodeApi, AffinodeError } from './api';
import { Hues } from './hues';
import { DEFAULT_SETTINGS, ISettings } from './settings';
import {
  Action,
  IActionBody,
  IKernel,
  INoticeEvent,
  IResidencyEvent,
  IStatus,
  NODE_EVENT,
  NOTICE_EVENT,
  RESIDENCY_EVENT
} from './status';
import { IAffinode, IProblem } from './tokens';
import { VERSION } from './version';
import { sameRelease } from './words';

/** Events that come together lead to one request. */
const EVENT_PAUSE_MS = 150;

/** The one status store of the page; it asks at the start, on events, and on time only while someone watches. */
export class AffinodeModel implements IAffinode, IDisposable {
  constructor(services: ServiceManager.IManager, trans: TranslationBundle) {
    this._api = new AffinodeApi(services.serverSettings);
    this._trans = trans;
    this._poll = new Poll({
      name: 'jupyter-affinode:status',
      auto: false,
      factory: () => this.refresh(),
      frequency: { interval: DEFAULT_SETTINGS.refreshInterval * 1000, backoff: false },
      standby: 'when-hidden'
    });
    services.events.stream.connect(this._onEvent, this);
    services.sessions.runningChanged.connect(this._refreshSoon, this);
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  get status(): IStatus | null {
    return this._status;
  }

  get problem(): IProblem | null {
    return this._problem;
  }

  get settings(): ISettings {
    return this._settings;
  }

  set settings(settings: ISettings) {
    this._settings = settings;
    this._poll.frequency = { ...this._poll.frequency, interval: settings.refreshInterval * 1000 };
    this._changed.emit();
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get noticed(): ISignal<this, INoticeEvent> {
    return this._noticed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    document.removeEventListener('visibilitychange', this._onVisibility);
    window.clearTimeout(this._soon);
    this._poll.dispose();
    Signal.clearData(this);
  }

  kernel(id: string): IKernel | undefined {
    return this._status?.kernels.find(kernel => kernel.id === id);
  }

  hue(id: string): number {
    return this._hues.of(id);
  }

  pending(id: string): boolean {
    return this._pending.has(id);
  }

  refresh(): Promise<void> {
    this._again = true;
    this._asking ??= this._askUntilFresh().finally(() => {
      this._asking = null;
    });
    return this._asking;
  }

  async act(id: string, action: Action, body: IActionBody = {}): Promise<void> {
    const shown = action !== 'focus';
    if (shown) {
      this._pending.add(id);
      this._changed.emit();
    }
    try {
      const kernel = await this._api.act(id, action, body);
      if (shown) {
        this._take(kernel); // a hint's answer is from before its effect, which events may have told already
      }
    } finally {
      if (shown) {
        this._pending.delete(id);
        this._changed.emit();
        this._refreshSoon();
      }
    }
  }

  watch(): IDisposable {
    this._watchers += 1;
    if (this._watchers === 1) {
      void this._poll.start();
      void this._poll.refresh();
    }
    return new DisposableDelegate(() => {
      this._watchers -= 1;
      if (this._watchers === 0) {
        void this._poll.stop();
      }
    });
  }

  private async _askUntilFresh(): Promise<void> {
    while (this._again && !this._isDisposed) {
      this._again = false;
      await this._ask();
    }
  }

  private async _ask(): Promise<void> {
    try {
      this._status = await this._api.status();
      this._problem = this._problemOf(this._status);
      this._hues.keep(this._status.kernels.map(kernel => kernel.id));
    } catch (error) {
      if (!(error instanceof AffinodeError)) {
        throw error;
      }
      this._status = null;
      this._problem = this._problemOfError(error);
    }
    if (!this._isDisposed) {
      this._changed.emit();
    }
  }

  private _problemOf(status: IStatus): IProblem | null {
    const trans = this._trans;
    if (!status.available) {
      const message = status.message ?? trans.__('The GPU controller does not answer.');
      return { kind: 'controller', message };
    }
    if (!sameRelease(status.version, VERSION)) {
      const message = trans.__(
        'This page is of version %1, the server of version %2. Reload the page; if this stays, restart the server.',
        VERSION,
        status.version
      );
      return { kind: 'version', message };
    }
    return null;
  }

  private _problemOfError(error: AffinodeError): IProblem {
    const trans = this._trans;
    if (error.status === 404) {
      const message = trans.__(
        'The server that runs your notebooks has no jupyter-affinode, or has it switched off.'
      );
      return { kind: 'missing', message };
    }
    if (error.status === 401 || error.status === 403) {
      return {
        kind: 'refused',
        message: trans.__('This server does not let you see its kernels.')
      };
    }
    if (error.status === 0) {
      return { kind: 'unreachable', message: trans.__('The Jupyter server does not answer.') };
    }
    return { kind: 'controller', message: error.message };
  }

  /** Show what an action's answer or an event says at once; the next status confirms it. */
  private _take(change: Partial<IKernel> & { id: string }): void {
    if (this._status) {
      const kernels = this._status.kernels.map(kernel =>
        kernel.id === change.id ? { ...kernel, ...change } : kernel
      );
      this._status = { ...this._status, kernels };
      this._changed.emit();
    }
  }

  private _onEvent(_: unknown, emission: Event.Emission): void {
    if (emission.schema_id === RESIDENCY_EVENT) {
      const event = emission as unknown as IResidencyEvent;
      const { residency, text, reason, resident_bytes, parked_bytes, place, held_for_s } = event;
      this._take({
        id: event.kernel_id,
        residency,
        text,
        reason,
        resident_bytes,
        parked_bytes,
        copy_bytes: parked_bytes, // until the next status says what zeros have saved
        kept_bytes: 0,
        place,
        held_for_s
      });
      this._refreshSoon();
    } else if (emission.schema_id === NODE_EVENT) {
      this._refreshSoon();
    } else if (emission.schema_id === NOTICE_EVENT) {
      this._noticed.emit(emission as unknown as INoticeEvent);
      this._refreshSoon();
    }
  }

  private _refreshSoon(): void {
    if (this._soon === undefined) {
      this._soon = window.setTimeout(() => {
        this._soon = undefined;
        void this.refresh();
      }, EVENT_PAUSE_MS);
    }
  }

  /** Events are not followed while the page is hidden: look once when it is seen again. */
  private _onVisibility = (): void => {
    if (!document.hidden) {
      this._refreshSoon();
    }
  };

  private readonly _api: AffinodeApi;
  private readonly _trans: TranslationBundle;
  private readonly _poll: Poll;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _noticed = new Signal<this, INoticeEvent>(this);
  private readonly _hues = new Hues();
  private readonly _pending = new Set<string>();
  private _settings = DEFAULT_SETTINGS;
  private _status: IStatus | null = null;
  private _problem: IProblem | null = null;
  private _asking: Promise<void> | null = null;
  private _again = false;
  private _watchers = 0;
  private _soon: number | undefined;
  private _isDisposed = false;
}
