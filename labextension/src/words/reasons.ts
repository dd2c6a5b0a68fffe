/** Why a kernel is where it is, and what of it cannot be moved. */

import { CallClass, Cause, StuckReason, UnmovableReason } from '../controllerTypes';
import { ICodeArgs, IUnmanaged } from '../status';
import { bytes, IWords } from './figures';

/** A sentence for each code of one kind; the compiler says which are missing, and which no part of the server has. */
export type Sentences<Code extends string> = Readonly<
  Record<Code, (trans: IWords, args?: ICodeArgs | null) => string>
>;

/** The sentence for a code; undefined for one of a later version. */
export function sentence(
  sentences: Sentences<string>,
  code: string | null | undefined,
  trans: IWords,
  args?: ICodeArgs | null
): string | undefined {
  return code && Object.keys(sentences).includes(code) ? sentences[code](trans, args) : undefined;
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

const REASONS: Sentences<Exclude<Cause, 'other'>> = {
  idle: trans => trans.__('it was idle'),
  room: (trans, args) => trans.__('it made room for %1', forWhom(args, trans)),
  'time-slice': (trans, args) => trans.__('it takes turns with %1', forWhom(args, trans)),
  asked: trans => trans.__('you asked for it'),
  'low-memory': trans => trans.__('GPU memory was low'),
  limit: trans => trans.__('your limit of GPU memory was reached'),
  prefetch: trans => trans.__('you turned to the notebook, and there was room'),
  cell: trans => trans.__('a cell needed it'),
  failed: trans => trans.__('the last try failed'),
  'failed-again': trans => trans.__('the last tries failed'),
  full: trans => trans.__('the GPU is full of busy kernels'),
  split: trans => trans.__('the rest of the kernel is on the GPU'),
  'too-large': trans => trans.__('it cannot fit, whatever is freed'),
  undone: trans => trans.__('the rest of the kernel could not be moved')
};

/** Why a kernel's residency changed last; null where there is nothing to say. */
export function reasonText(
  code: string | null | undefined,
  args: ICodeArgs | null | undefined,
  trans: IWords
): string | null {
  return code
    ? (sentence(REASONS, code, trans, args) ?? trans.__('the GPU controller decided so'))
    : null;
}

const UNMOVABLE: Sentences<UnmovableReason> = {
  small: trans => trans.__('small allocations under 2 MiB'),
  managed: trans => trans.__('managed (unified) memory'),
  mapped: trans => trans.__('memory that the program maps itself'),
  pool: trans => trans.__('stream-ordered memory pools'),
  array: trans => trans.__('CUDA arrays and textures'),
  shared: trans => trans.__('memory shared with another process'),
  unbacked: trans =>
    trans.__('memory on a device without virtual memory management, or limited by another library'),
  integrated: trans =>
    trans.__("memory on a GPU that uses the host's memory: freeing it would gain nothing"),
  device: trans => trans.__('memory that a network card or disk may write to')
};

/** Why bytes stay on the GPU: "small allocations under 2 MiB". */
export function unmovableText(reason: UnmovableReason | string, trans: IWords): string {
  return sentence(UNMOVABLE, reason, trans) ?? trans.__('memory of another kind');
}

const STUCK: Sentences<StuckReason> = {
  lost: trans => trans.__('its GPU state is lost'),
  'resume-failed': trans => trans.__('its GPU memory cannot be brought back'),
  'gpu-gone': trans => trans.__('the GPU that its memory belongs to is gone'),
  'gpu-too-small': trans => trans.__('its memory no longer fits on the GPU'),
  'peer-gone': trans => trans.__('it waits for a process of the kernel that has ended'),
  'parent-gone': trans => trans.__('the process that started it has ended'),
  stopped: trans => trans.__('it is stopped and holds GPU memory')
};

/** Why a process can make no progress any more: "its GPU state is lost". */
export function stuckText(reason: StuckReason | string, trans: IWords): string {
  return sentence(STUCK, reason, trans) ?? trans.__('it makes no progress');
}

const CALLS: Sentences<CallClass> = {
  launch: trans => trans.__('Launches'),
  copy: trans => trans.__('Copies and fills'),
  alloc: trans => trans.__('Allocations'),
  free: trans => trans.__('Frees'),
  sync: trans => trans.__('Waits for the GPU'),
  module: trans => trans.__('Loading of GPU code'),
  query: trans => trans.__('Queries'),
  host: trans => trans.__('Bookkeeping')
};

/** What CUDA calls of a class do: "Launches". */
export function callClassText(callClass: CallClass | string, trans: IWords): string {
  return sentence(CALLS, callClass, trans) ?? trans.__('Other calls');
}

/** A process on a GPU that is not managed: "train.py (pid 12): 3 GiB", "Another user: 3 GiB". */
export function unmanaged(process: IUnmanaged, trans: IWords): string {
  const name =
    process.pid === null
      ? trans.__('Another user')
      : trans.__('%1 (pid %2)', process.command ?? trans.__('Process'), process.pid);
  return process.bytes === null ? name : trans.__('%1: %2', name, bytes(process.bytes));
}
