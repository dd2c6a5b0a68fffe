/** Nothing comes so late: what is further behind is of another machine's clock, or of this one's after a reboot. */
export const OTHER_CLOCK_S = 300;

/**
 * For how long the figures of kernels have been true.
 *
 * They are of a moment of the machine's monotonic clock, and come a little later. The quickest that came shows best what
 * that clock says now; with slower ones nothing that counts up falls back.
 */
export class Ages {
  /** Figures of that moment have just come. */
  hear(as_of_s: number): void {
    const ahead = pageClock() - as_of_s;
    const isOther = ahead > this._ahead + OTHER_CLOCK_S;
    this._ahead = isOther ? ahead : Math.min(this._ahead, ahead);
  }

  /** Seconds since figures of that moment were true. */
  of(as_of_s: number): number {
    return Math.max(0, pageClock() - this._ahead - as_of_s);
  }

  /** What comes next may be of another machine's clock. */
  reset(): void {
    this._ahead = Infinity;
  }

  /** How far the page's clock is ahead of the machine's. */
  private _ahead = Infinity;
}

/** Seconds of a clock that never jumps. */
export function pageClock(): number {
  return performance.now() / 1000;
}
