/** GPU memory in use on the whole machine, between two looks at it. Pure. */

import { INode, IStatus } from '../status';
import { onGpu } from '../words';

/** What is in use, of how much (null where a GPU does not say), on how many GPUs. */
export interface IUsedMemory {
  used: number;
  total: number | null;
  gpus: number;
}

/**
 * Adds to the last look what events have told since: they tell of the user's own kernels, and carry no figures of the
 * machine, for which a page that shows no panel does not ask.
 */
export class UsedMemory {
  /** Null where there is no GPU. */
  of(status: IStatus | null): IUsedMemory | null {
    const node = status?.node;
    if (!status || !node || node.gpus.length === 0) {
      return null;
    }
    const kernels = status.kernels.reduce((sum, kernel) => sum + onGpu(kernel), 0);
    if (node !== this._node) {
      this._node = node;
      this._then = kernels;
    }
    const totals = node.gpus.map(gpu => gpu.total_bytes);
    const total = totals.some(each => each === null)
      ? null
      : totals.reduce<number>((sum, each) => sum + (each ?? 0), 0);
    const looked = node.gpus.reduce((sum, gpu) => sum + gpu.used_bytes, 0);
    const used = Math.max(0, looked + kernels - this._then);
    return { used: Math.min(used, total ?? used), total, gpus: node.gpus.length };
  }

  private _node: INode | null = null;
  private _then = 0;
}
