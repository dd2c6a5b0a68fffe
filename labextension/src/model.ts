import { Event, KernelAPI, ServiceManager } from '@jupyterlab/services';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';
import { Possible, SHOWN } from './actions';
import { Ages, pageClock } from './ages';
import { AffinodeApi, AffinodeError } from './api';
import { Changes, PossibleActions } from './changes';
import { IPast } from './history/past';
import { Hues } from './hues';
import { changedKernels, differs, follow, isOlder, isUnheard, merge } from './merge';
import { PacedLooks } from './pace';
import { passes, problemOf, problemOfError } from './problems';
import { IRate, Rates } from './rates';
import { DEFAULT_SETTINGS, ISettings } from './settings';
import {
  Action,
  IActionBody,
  IActivity,
  IKeptKernel,
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

/**
 * The one status store of the page.
 *
 * It asks at the start, when kernels come or go and when the controller does, and on time: often while a view watches, else
 * about once a minute. What changes meanwhile is told by events, which it merges. Of answers and events about a kernel the
 * newest counts, in whatever order they come. While the server does not answer it keeps the last status, marks it stale and
 * tries again.
 */
export class AffinodeModel implements IAffinode, IDisposable {
  constructor(
    private readonly _services: AffinodeModel.IServices,
    private readonly _trans: IWords,
    private readonly _page: AffinodeModel.IPage = document
  ) {
    this._api = new AffinodeApi(_services.serverSettings);
    _services.events.stream.connect(this._onEvent, this);
    _services.sessions.runningChanged.connect(this._onRunning, this);
    _page.addEventListener('visibilitychange', this._onVisibility);
    _page.defaultView?.addEventListener('online', this._onOnline);
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
    this._keepPace();
    this._changes.add([], true);
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
    this._page.defaultView?.removeEventListener('online', this._onOnline);
    clearTimeout(this._soon);
    this._looks.dispose();
    Signal.clearData(this);
  }

  kernel(id: string): IKernel | undefined {
    return this._status?.kernels.find(kernel => kernel.id === id);
  }

  age(id: string): number {
    const kernel = this.kernel(id);
    return kernel ? this._ages.of(kernel.as_of_s) : 0;
  }

  rates(id: string): IRate[] {
    return this._rates.of(id);
  }

  hue(id: string): number {
    return this._hues.of(id);
  }

  pending(id: string): Possible | null {
    return this._pending.get(id) ?? null;
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
    const act = async () => void this._take(id, await this._api.act(id, action, body));
    await (SHOWN.has(action) ? act() : this._during(id, action, act));
  }

  interrupt(id: string): Promise<void> {
    return this._during(id, 'cancel-wait', () =>
      KernelAPI.interruptKernel(id, this._services.serverSettings)
    );
  }

  restart(id: string): Promise<void> {
    return this._during(id, 'restart', async () => {
      await KernelAPI.restartKernel(id, this._services.serverSettings);
      this._refreshSoon();
    });
  }

  end({ here, id }: IKeptKernel): Promise<void> {
    return this._during(id, 'end', async () => {
      await (here
        ? KernelAPI.shutdownKernel(id, this._services.serverSettings)
        : this._api.endKept(id));
      await this.refresh();
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
    this._keepPace();
    if (this._watchers === 1) {
      this._looks.now();
    }
    return new DisposableDelegate(() => {
      this._watchers -= 1;
      this._keepPace();
    });
  }

  /** One look of the poll; rejects while the server does not answer, for the pauses to grow. */
  private async _look(): Promise<void> {
    await this.refresh();
    if (this._problem && passes(this._problem)) {
      throw new Error(this._problem.message);
    }
  }

  private _keepPace(): void {
    this._looks.keep({
      hasGpu: (this._status?.node?.gpus.length ?? 0) > 0,
      isWatched: this._watchers > 0,
      problem: this._problem,
      refreshInterval: this._settings.refreshInterval
    });
  }

  private async _askUntilFresh(): Promise<void> {
    while (this._again && !this._isDisposed) {
      this._again = false;
      await this._ask();
    }
  }

  private async _ask(): Promise<void> {
    let answer: IStatus | null = null;
    let problem: IProblem | null;
    try {
      answer = await this._api.status();
      problem = problemOf(answer, this._trans);
      if (problem?.kind === 'version') {
        answer = null; // it may mean something else than this page reads in it
      }
    } catch (error) {
      if (!(error instanceof AffinodeError)) {
        throw error;
      }
      problem = problemOfError(error, this._trans, this._status !== null);
    }
    if (!this._isDisposed) {
      this._answered(answer, problem);
    }
  }

  /** What the server said (null: nothing), and what is wrong with it. */
  private _answered(answer: IStatus | null, problem: IProblem | null): void {
    const before = this._status; // events may have changed it since the question
    const isOther = problem?.message !== this._problem?.message;
    if (passes(this._problem) && !passes(problem)) {
      this._ages.reset();
    }
    this._problem = problem;
    if (passes(problem)) {
      const { message = null, code = null } = answer ?? {};
      this._status = answer && before ? { ...before, available: false, message, code } : before;
      this._status ??= answer;
    } else {
      this._status = answer && follow(before, answer);
    }
    const kernels = this._status?.kernels ?? [];
    if (this._status?.available && !this.stale) {
      this._updated = Date.now();
      this._seen(answer?.kernels ?? []);
    }
    this._keepPace();
    this._changes.add(
      changedKernels(before?.kernels ?? [], kernels),
      isOther || differs({ ...before, kernels: null }, { ...this._status, kernels: null })
    );
  }

  /** New figures of all kernels. */
  private _seen(kernels: IKernel[]): void {
    const ids = (this._status?.kernels ?? []).map(kernel => kernel.id);
    const moment = pageClock();
    this._hues.keep(ids);
    this._rates.keep(ids);
    for (const kernel of kernels) {
      this._ages.hear(kernel.as_of_s);
      this._rates.add(kernel.id, kernel.calls, moment);
    }
  }

  /** Run a user's action on a kernel, which is pending meanwhile. */
  private async _during(id: string, action: Possible, run: () => Promise<void>): Promise<void> {
    this._pending.set(id, action);
    this._changes.add([id], false);
    try {
      await run();
    } finally {
      this._pending.delete(id);
      this._changes.add([id], false);
    }
  }

  /** Show what an action's answer or an event says, unless more is known; whether the kernel was known. */
  private _take(id: string, change: Partial<IKernel>): boolean {
    const [status, before] = [this._status, this.kernel(id)];
    if (!status || !before) {
      return false;
    }
    if (isOlder(change, before) || isUnheard(before, change, status.node)) {
      return true;
    }
    this._status = merge(status, id, change);
    if (change.as_of_s !== undefined) {
      this._ages.hear(change.as_of_s);
    }
    const isQueue = this._status.node?.queue !== status.node?.queue;
    if (isQueue || differs(before, this.kernel(id))) {
      this._changes.add([id], isQueue);
    }
    if (isQueue && this._watchers > 0) {
      this._refreshSoon(); // when the others may be freed depends on it
    }
    return true;
  }

  private _onEvent(_: unknown, emission: Event.Emission): void {
    if (emission.schema_id === RESIDENCY_EVENT) {
      const event = emission as unknown as IResidencyEvent;
      const known = this._take(event.kernel_id, event.kernel);
      if (!known || this.stale) {
        this._refreshSoon(); // a kernel's name, or that the server is back
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

  private _onOnline = (): void => this._looks.now();

  /** Events are not followed while the page is hidden: look once when it is seen again. */
  private _onVisibility = (): void => {
    if (!this._page.hidden) {
      this._refreshSoon();
    }
  };

  private _tell(change: IChange): void {
    if (this._isDisposed) {
      return;
    }
    this._changed.emit(change);
    const shown = this._status?.may_act ? this._status.kernels : [];
    const free = shown.filter(kernel => !this._pending.has(kernel.id));
    const actions = this._possible.changed(free, this.stale);
    if (actions.size > 0) {
      this._actionsChanged.emit(actions);
    }
  }

  private readonly _api: AffinodeApi;
  private readonly _looks = new PacedLooks(() => this._look());
  private readonly _changed = new Signal<this, IChange>(this);
  private readonly _actionsChanged = new Signal<this, ReadonlySet<Possible>>(this);
  private readonly _noticed = new Signal<this, INoticeEvent>(this);
  private readonly _hues = new Hues();
  private readonly _rates = new Rates();
  private readonly _ages = new Ages();
  private readonly _changes = new Changes(change => this._tell(change));
  private readonly _pending = new Map<string, Possible>();
  private readonly _possible = new PossibleActions();
  private _settings = DEFAULT_SETTINGS;
  private _status: IStatus | null = null;
  private _updated: number | null = null;
  private _problem: IProblem | null = null;
  private _running = '';
  private _asking: Promise<void> | null = null;
  private _again = false;
  private _watchers = 0;
  private _soon: ReturnType<typeof setTimeout> | undefined;
  private _isDisposed = false;
}

export namespace AffinodeModel {
  /** What the model needs of JupyterLab. */
  export interface IServices {
    serverSettings: ServiceManager.IManager['serverSettings'];
    events: Pick<ServiceManager.IManager['events'], 'stream'>;
    sessions: Pick<ServiceManager.IManager['sessions'], 'running' | 'runningChanged'>;
  }

  /** What it needs of the page: whether it is hidden, and whether the network is back. */
  export type IPage = Pick<Document, 'hidden' | 'addEventListener' | 'removeEventListener'> &
    Partial<Pick<Document, 'defaultView'>>;
}
