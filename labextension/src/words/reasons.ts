/** Why a kernel is where it is, and what of it cannot be moved. */

import { IUnmanaged } from '../status';
import { StuckReason, UnmovableReason } from '../reasons';
import { bytes, IWords } from './figures';

/** Arguments of a code; none of them must be there. */
export interface ICodeArgs {
  /** For which notebooks: the user's own or another user's. */
  for?: 'own' | 'other' | null;
  bytes?: number | null;
  [name: string]: unknown;
}

/** For which notebooks something happened: "another notebook of yours". */
export function forWhom(args: ICodeArgs | null | undefined, trans: IWords): string {
  switch (args?.for) {
    case 'own':
      return trans.__('another notebook of yours');
    case 'other':
      return trans.__('another user’s notebook');
    default:
      return trans.__('another notebook');
  }
}

/** Why a kernel's residency changed last; null where there is nothing to say. */
export function reasonText(
  code: string | null | undefined,
  args: ICodeArgs | null | undefined,
  trans: IWords
): string | null {
  switch (code) {
    case null:
    case undefined:
    case '':
      return null;
    case 'idle':
      return trans.__('it was idle');
    case 'room':
      return trans.__('it made room for %1', forWhom(args, trans));
    case 'time-slice':
      return trans.__('it takes turns with %1', forWhom(args, trans));
    case 'asked':
      return trans.__('you asked for it');
    case 'low-memory':
      return trans.__('GPU memory was low');
    case 'limit':
      return trans.__('your limit of GPU memory was reached');
    case 'prefetch':
    case 'focus':
      return trans.__('you turned to the notebook, and there was room');
    case 'cell':
      return trans.__('a cell needed it');
    case 'failed':
      return trans.__('the last try failed');
    case 'failed-again':
      return trans.__('the last tries failed');
    case 'full':
      return trans.__('the GPU is full of busy kernels');
    case 'split':
      return trans.__('the rest of the kernel is on the GPU');
    case 'too-large':
      return trans.__('it cannot fit, whatever is freed');
    case 'undone':
      return trans.__('the rest of the kernel could not be moved');
    default:
      return trans.__('the GPU controller decided so');
  }
}

/** Why bytes stay on the GPU: "small allocations under 2 MiB". */
export function unmovableText(reason: UnmovableReason | string, trans: IWords): string {
  switch (reason) {
    case 'small':
      return trans.__('small allocations under 2 MiB');
    case 'managed':
      return trans.__('managed (unified) memory');
    case 'mapped':
      return trans.__('memory that the program maps itself');
    case 'pool':
      return trans.__('stream-ordered memory pools');
    case 'array':
      return trans.__('CUDA arrays and textures');
    case 'shared':
      return trans.__('memory shared with another process');
    case 'unbacked':
      return trans.__('memory on a device without virtual memory management');
    case 'device':
      return trans.__('memory that a network card or disk may write to');
    default:
      return trans.__('memory of another kind');
  }
}

/** Why a process can make no progress any more: "its GPU state is lost". */
export function stuckText(reason: StuckReason | string, trans: IWords): string {
  switch (reason) {
    case 'lost':
      return trans.__('its GPU state is lost');
    case 'resume-failed':
      return trans.__('its GPU memory cannot be brought back');
    case 'gpu-gone':
      return trans.__('the GPU that its memory belongs to is gone');
    case 'gpu-too-small':
      return trans.__('its memory no longer fits on the GPU');
    case 'peer-gone':
      return trans.__('it waits for a process of the kernel that has ended');
    case 'parent-gone':
      return trans.__('the process that started it has ended');
    case 'stopped':
      return trans.__('it is stopped and holds GPU memory');
    default:
      return trans.__('it makes no progress');
  }
}

/** A process on a GPU that is not managed: "train.py (pid 12): 3 GiB", "Another user: 3 GiB". */
export function unmanaged(process: IUnmanaged, trans: IWords): string {
  const name =
    process.pid === null
      ? trans.__('Another user')
      : trans.__('%1 (pid %2)', process.command ?? trans.__('Process'), process.pid);
  return process.bytes === null ? name : trans.__('%1: %2', name, bytes(process.bytes));
}
