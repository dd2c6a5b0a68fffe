import { IKernel } from './status';

/**
 * For how long the figures of kernels have been true.
 *
 * They are of a moment of the machine's monotonic clock, and come a little later. The quickest that came shows best what
 * that clock says now; with slower ones nothing that counts up falls back.
 */
export class Ages {
  /** Figures of a kernel have just come. */
  hear({ id, as_of_s }: Pick<IKernel, 'id' | 'as_of_s'>): void {
    this._came.set(id, pageClock());
    if (as_of_s !== null) {
      this._ahead = Math.min(this._ahead, pageClock() - as_of_s);
    }
  }

  /** Seconds since a kernel's figures were true; of an earlier version's, since they came. */
  of({ id, as_of_s }: Pick<IKernel, 'id' | 'as_of_s'>): number {
    const now = pageClock();
    const then = as_of_s === null ? (this._came.get(id) ?? now) : this._ahead + as_of_s;
    return Math.max(0, now - then);
  }

  /** Forget all other kernels. */
  keep(ids: string[]): void {
    const alive = new Set(ids);
    [...this._came.keys()].filter(id => !alive.has(id)).forEach(id => this._came.delete(id));
  }

  /** What comes next may be of another machine's clock. */
  reset(): void {
    this._ahead = Infinity;
  }

  private readonly _came = new Map<string, number>();
  /** How far the page's clock is ahead of the machine's. */
  private _ahead = Infinity;
}

/** Seconds of a clock that never jumps. */
export function pageClock(): number {
  return performance.now() / 1000;
}
