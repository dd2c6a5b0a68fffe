import { Event, KernelAPI, ServiceManager } from '@jupyterlab/services';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { ISignal, Signal } from '@lumino/signaling';
import { Possible, possibilities } from './actions';
import { AffinodeApi, AffinodeError } from './api';
import { IPast } from './history/past';
import { Hues } from './hues';
import { changedKernels, complete, differs, merge, told } from './merge';
import { passes, problemOf, problemOfError } from './problems';
import { IRate, Rates } from './rates';
import { DEFAULT_SETTINGS, ISettings } from './settings';
import {
  Action,
  IActionBody,
  IActivity,
  IKernel,
  INoticeEvent,
  IPolicy,
  IResidencyEvent,
  IStatus,
  NODE_EVENT,
  NOTICE_EVENT,
  RESIDENCY_EVENT
} from './status';
import { IAffinode, IChange, IProblem } from './tokens';
import { IWords } from './words';

/** What comes together leads to one request, or to one signal. */
const PAUSE_MS = 150;

/** The longest pause between tries while the server does not answer. */
const LONGEST_PAUSE_MS = 60_000;

/**
 * The one status store of the page.
 *
 * It asks at the start, when kernels come or go and when the controller does, and on time only while a view watches. What
 * changes meanwhile is told by events, which it merges. While the server does not answer it keeps the last status, marks
 * it stale and tries again, each time after a longer pause.
 */
export class AffinodeModel implements IAffinode, IDisposable {
  constructor(
    services: AffinodeModel.IServices,
    trans: IWords,
    page: Pick<Document, 'hidden' | 'addEventListener' | 'removeEventListener'> = document
  ) {
    this._page = page;
    this._services = services;
    this._api = new AffinodeApi(services.serverSettings);
    this._trans = trans;
    this._poll = new Poll({
      name: 'jupyter-affinode:status',
      auto: false,
      factory: () => this._look(),
      frequency: frequency(DEFAULT_SETTINGS),
      standby: 'when-hidden'
    });
    services.events.stream.connect(this._onEvent, this);
    services.sessions.runningChanged.connect(this._onRunning, this);
    page.addEventListener('visibilitychange', this._onVisibility);
  }

  get status(): IStatus | null {
    return this._status;
  }

  get stale(): boolean {
    return this._status !== null && passes(this._problem);
  }

  get updated(): number | null {
    return this._updated;
  }

  get problem(): IProblem | null {
    return this._problem;
  }

  get settings(): ISettings {
    return this._settings;
  }

  set settings(settings: ISettings) {
    this._settings = settings;
    this._poll.frequency = frequency(settings);
    this._emit([], true);
  }

  get changed(): ISignal<this, IChange> {
    return this._changed;
  }

  get actionsChanged(): ISignal<this, ReadonlySet<Possible>> {
    return this._actionsChanged;
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
    this._page.removeEventListener('visibilitychange', this._onVisibility);
    clearTimeout(this._soon);
    this._poll.dispose();
    Signal.clearData(this);
  }

  kernel(id: string): IKernel | undefined {
    return this._status?.kernels.find(kernel => kernel.id === id);
  }

  age(id: string): number {
    return now() - (this._taken.get(id) ?? now());
  }

  rates(id: string): IRate[] {
    return this._rates.of(id);
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
    if (action === 'focus') {
      await this._api.act(id, action, body); // a hint's answer is from before its effect, which events tell
      return;
    }
    await this._during(id, async () => {
      this._take(id, await this._api.act(id, action, body));
      this._refreshSoon(); // an event may have told more than the answer, which may be from before it
    });
  }

  interrupt(id: string): Promise<void> {
    return this._during(id, () => KernelAPI.interruptKernel(id, this._services.serverSettings));
  }

  restart(id: string): Promise<void> {
    return this._during(id, async () => {
      await KernelAPI.restartKernel(id, this._services.serverSettings);
      this._refreshSoon();
    });
  }

  async changePolicy(change: Partial<IPolicy>): Promise<void> {
    await this._api.changePolicy(change);
    await this.refresh();
  }

  activity(id: string): Promise<IActivity> {
    return this._api.activity(id);
  }

  readonly past = (seconds: number): Promise<IPast> => this._api.past(seconds);

  watch(): IDisposable {
    this._watchers += 1;
    if (this._watchers === 1) {
      void this._poll.start();
      void this._poll.refresh();
    }
    return new DisposableDelegate(() => {
      this._watchers -= 1;
      this._rest();
    });
  }

  /** One look of the poll; rejects while the server does not answer, for the pauses to grow. */
  private async _look(): Promise<void> {
    await this.refresh();
    this._rest();
    if (this._problem && passes(this._problem)) {
      throw new Error(this._problem.message);
    }
  }

  /** Ask no more on time, unless a view watches or the server has to be found again. */
  private _rest(): void {
    if (this._watchers === 0 && this._problem?.kind !== 'unreachable') {
      void this._poll.stop();
    }
  }

  private async _askUntilFresh(): Promise<void> {
    while (this._again && !this._isDisposed) {
      this._again = false;
      await this._ask();
    }
  }

  private async _ask(): Promise<void> {
    const [before, problem] = [this._status, this._problem];
    try {
      const status = complete(await this._api.status());
      this._problem = problemOf(status, this._trans);
      this._status =
        passes(this._problem) && before !== null
          ? { ...before, available: false, message: status.message, code: status.code }
          : status;
    } catch (error) {
      if (!(error instanceof AffinodeError)) {
        throw error;
      }
      this._problem = problemOfError(error, this._trans);
      this._status = passes(this._problem) ? before : null;
    }
    if (this._isDisposed) {
      return;
    }
    const kernels = this._status?.kernels ?? [];
    if (this._status?.available && !this.stale) {
      this._updated = Date.now();
      this._seen(kernels);
    }
    if (this._problem?.kind === 'unreachable' && this._watchers === 0) {
      void this._poll.start(); // or a server that was restarted would not be found again
    }
    const machine =
      problem?.message !== this._problem?.message ||
      differs({ ...before, kernels: null }, { ...this._status, kernels: null });
    this._emit(changedKernels(before?.kernels ?? [], kernels), machine);
  }

  /** New figures of all kernels. */
  private _seen(kernels: IKernel[]): void {
    const ids = kernels.map(kernel => kernel.id);
    const moment = now();
    this._hues.keep(ids);
    this._rates.keep(ids);
    this._taken.clear();
    for (const kernel of kernels) {
      this._taken.set(kernel.id, moment);
      this._rates.add(kernel.id, kernel.calls, moment);
    }
  }

  /** Run a user's action on a kernel, which is pending meanwhile. */
  private async _during(id: string, action: () => Promise<void>): Promise<void> {
    this._pending.add(id);
    this._emit([id], false);
    try {
      await action();
    } finally {
      this._pending.delete(id);
      this._emit([id], false);
    }
  }

  /** Show what an action's answer or an event says; whether the kernel was known. */
  private _take(id: string, change: Partial<IKernel>): boolean {
    const before = this.kernel(id);
    if (!this._status || !before) {
      return false;
    }
    this._status = merge(this._status, id, change);
    this._taken.set(id, now());
    if (differs(before, this.kernel(id))) {
      this._emit([id], false);
    }
    return true;
  }

  private _onEvent(_: unknown, emission: Event.Emission): void {
    if (emission.schema_id === RESIDENCY_EVENT) {
      const event = emission as unknown as IResidencyEvent;
      const known = this._take(event.kernel_id, told(event));
      if (!known || !event.kernel) {
        this._refreshSoon(); // a kernel's name, or what an earlier version's events leave out
      }
    } else if (emission.schema_id === NODE_EVENT) {
      this._refreshSoon();
    } else if (emission.schema_id === NOTICE_EVENT) {
      this._noticed.emit(emission as unknown as INoticeEvent);
    }
  }

  /** Sessions change with every cell; only kernels that come, go or are renamed lead to a request. */
  private _onRunning(): void {
    const sessions = [...this._services.sessions.running()];
    const running = sessions.map(each => `${each.kernel?.id} ${each.path}`).sort();
    const said = running.join('\n');
    if (said !== this._running) {
      this._running = said;
      this._refreshSoon();
    }
  }

  private _refreshSoon(): void {
    this._soon ??= setTimeout(() => {
      this._soon = undefined;
      void this.refresh();
    }, PAUSE_MS);
  }

  /** Events are not followed while the page is hidden: look once when it is seen again. */
  private _onVisibility = (): void => {
    if (!this._page.hidden) {
      this._refreshSoon();
    }
  };

  /** Tell of a change at the end of this turn of the page's loop, with all others of the turn. */
  private _emit(kernels: Iterable<string>, machine: boolean): void {
    this._change ??= { kernels: new Set(), machine: false };
    for (const id of kernels) {
      this._change.kernels.add(id);
    }
    this._change.machine ||= machine;
    if (!this._isEmitting) {
      this._isEmitting = true;
      queueMicrotask(() => {
        this._isEmitting = false;
        const change = this._change;
        this._change = null;
        if (change && !this._isDisposed) {
          this._changed.emit(change);
          this._tellActions();
        }
      });
    }
  }

  private _tellActions(): void {
    const shown = this._status?.may_act && !this.stale ? this._status.kernels : [];
    const possible = possibilities(shown.filter(kernel => !this._pending.has(kernel.id)));
    const changed = [...possible].filter(([action, ids]) => this._possible.get(action) !== ids);
    this._possible = possible;
    if (changed.length > 0) {
      this._actionsChanged.emit(new Set(changed.map(([action]) => action)));
    }
  }

  private readonly _page: Pick<Document, 'hidden' | 'addEventListener' | 'removeEventListener'>;
  private readonly _services: AffinodeModel.IServices;
  private readonly _api: AffinodeApi;
  private readonly _trans: IWords;
  private readonly _poll: Poll;
  private readonly _changed = new Signal<this, IChange>(this);
  private readonly _actionsChanged = new Signal<this, ReadonlySet<Possible>>(this);
  private readonly _noticed = new Signal<this, INoticeEvent>(this);
  private readonly _hues = new Hues();
  private readonly _rates = new Rates();
  private readonly _pending = new Set<string>();
  /** When each kernel's figures came, in seconds of the page's clock. */
  private readonly _taken = new Map<string, number>();
  private _possible = possibilities([]);
  private _settings = DEFAULT_SETTINGS;
  private _status: IStatus | null = null;
  private _updated: number | null = null;
  private _problem: IProblem | null = null;
  private _running = '';
  private _asking: Promise<void> | null = null;
  private _again = false;
  private _watchers = 0;
  private _soon: ReturnType<typeof setTimeout> | undefined;
  private _change: { kernels: Set<string>; machine: boolean } | null = null;
  private _isEmitting = false;
  private _isDisposed = false;
}

export namespace AffinodeModel {
  /** What the model needs of JupyterLab. */
  export interface IServices {
    serverSettings: ServiceManager.IManager['serverSettings'];
    events: Pick<ServiceManager.IManager['events'], 'stream'>;
    sessions: Pick<ServiceManager.IManager['sessions'], 'running' | 'runningChanged'>;
  }
}

function frequency(settings: ISettings) {
  return { interval: settings.refreshInterval * 1000, backoff: true, max: LONGEST_PAUSE_MS };
}

/** Seconds of a clock that never jumps. */
function now(): number {
  return performance.now() / 1000;
}
