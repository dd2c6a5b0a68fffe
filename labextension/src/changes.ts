import { possibilities, Possible } from './actions';
import { IKernel } from './status';
import { IChange } from './tokens';

/** Collects what changes in one turn of the page's loop, and tells of it once, at the turn's end. */
export class Changes {
  constructor(private readonly _tell: (change: IChange) => void) {}

  /** These kernels changed, or more than kernels. */
  add(kernels: Iterable<string>, machine: boolean): void {
    if (this._change === null) {
      this._change = { kernels: new Set(), machine: false };
      queueMicrotask(() => {
        const change = this._change;
        this._change = null;
        if (change) {
          this._tell(change);
        }
      });
    }
    for (const id of kernels) {
      this._change.kernels.add(id);
    }
    this._change.machine ||= machine;
  }

  private _change: { kernels: Set<string>; machine: boolean } | null = null;
}

/** Compares which actions are possible with what was told last. */
export class PossibleActions {
  /** The actions that became possible or impossible for some of these kernels; `isStale`: their state is from before. */
  changed(kernels: IKernel[], isStale: boolean): ReadonlySet<Possible> {
    const possible = possibilities(kernels, isStale);
    const changed = [...possible].filter(([action, ids]) => this._told.get(action) !== ids);
    this._told = possible;
    return new Set(changed.map(([action]) => action));
  }

  private _told = possibilities([], false);
}
