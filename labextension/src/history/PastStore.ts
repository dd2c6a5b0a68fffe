import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';
import { AffinodeError } from '../api';
import { IAffinode, IChange } from '../tokens';
import { followed, IPast, later, sampled } from './past';

/** An answer that does not come, or not yet, is asked for again after this. */
const AGAIN_MS = 2000;

/** Other users' kernels are in no event: their counts are asked for anew at most so often. */
const OTHERS_MS = 60_000;

/**
 * What a picture of the last minutes shows, while it is seen: one request at the beginning, and then what the page's
 * store learns anyway. What was missed, because the page was hidden or the server away, is asked for.
 */
export class PastStore implements IDisposable {
  constructor(
    private readonly _affinode: IAffinode,
    readonly seconds: number
  ) {
    _affinode.changed.connect(this._onChanged, this);
    document.addEventListener('visibilitychange', this._onVisibility);
    void this._ask();
  }

  /** What is known; null before the first answer. */
  get past(): IPast | null {
    return this._past && later(this._past, this._now());
  }

  /** Why there is no answer. */
  get problem(): AffinodeError | null {
    return this._problem;
  }

  /** A kernel's lane changed, or an answer came. Time passes, and GPUs are measured, without it. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    window.clearTimeout(this._again);
    document.removeEventListener('visibilitychange', this._onVisibility);
    Signal.clearData(this);
  }

  private async _ask(): Promise<void> {
    this._asked = performance.now();
    this._missed = false;
    this._changedSince.clear();
    try {
      const past = await this._affinode.past(this.seconds);
      this._problem = null;
      this._shift = past.until - performance.now() / 1000;
      this._past = this._followed(past, this._changedSince);
      this._others = JSON.stringify(this._affinode.status?.node?.others ?? null);
    } catch (error) {
      if (!(error instanceof AffinodeError)) {
        throw error;
      }
      this._problem = error.status === 429 ? null : error;
      if (error.status === 429 && !this._isDisposed) {
        this._again = window.setTimeout(() => void this._ask(), AGAIN_MS);
      }
      this._missed = true;
    }
    if (!this._isDisposed) {
      this._changed.emit();
    }
  }

  private _onChanged(_: IAffinode, change: IChange): void {
    const { stale, status } = this._affinode;
    if (stale || !status?.node) {
      this._missed = true;
      return;
    }
    change.kernels.forEach(id => this._changedSince.add(id));
    const others = JSON.stringify(status.node.others);
    const hasOthers = others !== this._others && performance.now() - this._asked > OTHERS_MS;
    if (this._past === null || this._missed || hasOthers) {
      if (performance.now() - this._asked > AGAIN_MS) {
        void this._ask();
      }
      return;
    }
    const now = this._now();
    const before = later(this._past, now);
    const past = this._followed(before, change.kernels);
    this._past = change.machine ? sampled(past, status.node.gpus, now) : past;
    if (past !== before) {
      this._changed.emit();
    }
  }

  /** A past that goes on with what these kernels do now. */
  private _followed(past: IPast, ids: ReadonlySet<string>): IPast {
    const now = this._now();
    return [...ids].reduce((so, id) => followed(so, id, this._affinode.kernel(id), now), past);
  }

  /** Events are not followed while the page is hidden. */
  private _onVisibility = (): void => {
    if (document.hidden) {
      this._missed = true;
    }
  };

  /** The server's clock. */
  private _now(): number {
    return this._shift + performance.now() / 1000;
  }

  private readonly _changed = new Signal<this, void>(this);
  private _past: IPast | null = null;
  private _problem: AffinodeError | null = null;
  private _shift = 0;
  private _asked = 0;
  private _again: number | undefined;
  private _missed = false;
  private _others = '';
  /** The kernels that changed since the question, of which the answer may not tell. */
  private readonly _changedSince = new Set<string>();
  private _isDisposed = false;
}
