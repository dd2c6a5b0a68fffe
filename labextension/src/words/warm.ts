/** What is said of kernels that no notebook has had yet. */

import { IWarmKernel, IWarmPool } from '../status';
import { bytes, IWords } from './figures';

/** "2 of 2 ready", "1 of 2 ready, 1 being made", "0 of 2 ready: its prelude failed". */
export function warmPoolText(pool: IWarmPool, trans: IWords): string {
  const { count, failed, making, note, ready } = pool;
  if (failed !== null && ready === 0) {
    return trans.__('%1 of %2 ready: its prelude failed', ready, count);
  }
  if (making > 0) {
    return trans.__('%1 of %2 ready, %3 being made', ready, count, making);
  }
  return note !== null && ready < count
    ? trans.__('%1 of %2 ready: %3', ready, count, note)
    : trans.__('%1 of %2 ready', ready, count);
}

/** When it was made, and what it takes: "made at 13:11 CET, 2 GiB of RAM". */
export function warmKernelText(
  { bytes: size, is_on_disk, since }: IWarmKernel,
  trans: IWords
): string {
  return is_on_disk
    ? trans.__('made at %1, %2 on disk', since, bytes(size))
    : trans.__('made at %1, %2 of RAM', since, bytes(size));
}
