/** How far back rates are remembered. */
const REMEMBERED_S = 60;

/** CUDA calls per second between two looks, in seconds of the page's clock. */
export interface IRate {
  from: number;
  to: number;
  perSecond: number;
}

/** Makes rates of counters that are looked at now and then. */
export class Rates {
  /** A look at a kernel's counter; null where the server does not count. */
  add(id: string, calls: number | null, now: number): void {
    const last = this._last.get(id);
    if (calls === null) {
      this.forget(id);
      return;
    }
    this._last.set(id, { calls, at: now });
    if (last === undefined || now <= last.at) {
      return;
    }
    const rates = (this._rates.get(id) ?? []).filter(rate => now - rate.to < REMEMBERED_S);
    // A counter that fell is that of new processes, which began at nothing.
    const made = calls < last.calls ? calls : calls - last.calls;
    rates.push({ from: last.at, to: now, perSecond: made / (now - last.at) });
    this._rates.set(id, rates);
  }

  /** The rates of the last minute, the oldest first. */
  of(id: string): IRate[] {
    return this._rates.get(id) ?? [];
  }

  /** Forget all other kernels. */
  keep(ids: string[]): void {
    const alive = new Set(ids);
    [...this._last.keys()].filter(id => !alive.has(id)).forEach(id => this.forget(id));
  }

  /** Forget a kernel. */
  forget(id: string): void {
    this._last.delete(id);
    this._rates.delete(id);
  }

  private readonly _last = new Map<string, { calls: number; at: number }>();
  private readonly _rates = new Map<string, IRate[]>();
}
