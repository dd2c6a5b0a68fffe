/** What can be asked of a kernel in its state. Pure; the server has the last word and gives its reason. */

import { IBlocker, IKernel, IProcess } from './status';
import { NamedAction } from './words/actions';
import { onGpu } from './words/states';

/** What may become possible or impossible for a kernel. */
export type Possible = Exclude<NamedAction, 'open'>;

/** Whether there is something to move off the GPU; asking for it ends a hold. */
export function canPark(kernel: IKernel): boolean {
  return kernel.own && kernel.residency === 'resident' && kernel.resident_bytes > 0;
}

/** Whether there is something to bring back that is not yet asked for. */
export function canResume(kernel: IKernel): boolean {
  return kernel.own && kernel.residency === 'parked';
}

/** Whether there is a GPU to keep, or soon will be. */
export function canHold(kernel: IKernel): boolean {
  const hasSome = kernel.residency === 'resident' && onGpu(kernel) > 0;
  return kernel.own && (hasSome || ['queued', 'resuming'].includes(kernel.residency));
}

/** Whether it is kept. */
export function canRelease(kernel: IKernel): boolean {
  return kernel.own && kernel.held_for_s !== null;
}

/** Whether it is idle and runs, on a server whose kernels hibernate. */
export function canHibernate(kernel: IKernel): boolean {
  const isIdle = !kernel.cell_open && ['none', 'resident', 'parked'].includes(kernel.residency);
  return kernel.hibernation?.state === null && isIdle;
}

/** Whether it is hibernated. */
export function canWake(kernel: IKernel): boolean {
  return kernel.hibernation?.state === 'hibernated';
}

/** Whether it is on its way to disk or back. */
export function canStay(kernel: IKernel): boolean {
  const state = kernel.hibernation?.state;
  return state === 'hibernating' || state === 'waking';
}

/** Whether it waits for the GPU, so that an interrupt ends something. */
export function canStopWaiting(kernel: IKernel): boolean {
  return kernel.own && kernel.residency === 'queued';
}

/** Whether only a restart helps. */
export function canRestart(kernel: IKernel): boolean {
  return kernel.own && kernel.residency === 'lost';
}

/** The processes that can make no progress, and that may be ended from here: one's own, and those without a server. */
export function endable(kernel: IKernel): IProcess[] {
  return kernel.processes.filter(
    process => process.stuck && (kernel.own || process.stuck.reason === 'parent-gone')
  );
}

/** The actions to offer for a kernel, the most useful first. */
export function offered(kernel: IKernel): NamedAction[] {
  const possible: [NamedAction, boolean][] = [
    ['restart', canRestart(kernel)],
    ['cancel-wait', canStopWaiting(kernel)],
    ['park', canPark(kernel)],
    ['resume', canResume(kernel)],
    ['release', canRelease(kernel)],
    ['hold', canHold(kernel) && !canRelease(kernel) && !canStopWaiting(kernel)],
    ['stay', canStay(kernel)],
    ['wake', canWake(kernel)],
    ['hibernate', canHibernate(kernel)]
  ];
  return possible.filter(([, may]) => may).map(([action]) => action);
}

/** The user's kernels that are idle and not kept, so that freeing them disturbs nothing. */
export function idle(kernels: IKernel[]): IKernel[] {
  return kernels.filter(
    kernel =>
      canPark(kernel) &&
      !kernel.cell_open &&
      kernel.held_for_s === null &&
      (kernel.eligible || kernel.eligible_in_s !== null)
  );
}

/** What resolves a wait: an action on one of the user's own kernels. */
export interface IRemedy {
  action: NamedAction;
  kernel: IKernel;
}

/** What the user can do about the kernels that are in the way of a waiting one; at most one action for each. */
export function remedies(
  kernel: IKernel,
  kernelById: (id: string) => IKernel | undefined
): IRemedy[] {
  const found: IRemedy[] = [];
  for (const blocker of kernel.wait?.blockers ?? []) {
    const other = blocker.kernel_id === null ? undefined : kernelById(blocker.kernel_id);
    const action = other && remedy(blocker, other);
    if (other?.own && action && other.id !== kernel.id) {
      found.push({ action, kernel: other });
    }
  }
  return found;
}

function remedy(blocker: IBlocker, other: IKernel): NamedAction | null {
  if (blocker.why === 'held' && canRelease(other)) {
    return 'release';
  }
  if (blocker.why === 'computing') {
    return 'open'; // it is the user's to decide whether to interrupt it
  }
  return canPark(other) ? 'park' : null;
}

/** For which kernels each action is possible. */
export const RULES: Record<Possible, (kernel: IKernel) => boolean> = {
  park: canPark,
  resume: canResume,
  hold: canHold,
  release: canRelease,
  hibernate: canHibernate,
  wake: canWake,
  stay: canStay,
  'cancel-wait': canStopWaiting,
  restart: canRestart,
  end: kernel => endable(kernel).length > 0
};

/** What a kernel's state shows while it lasts: it is not waited for, and can be stopped. */
export const SHOWN: ReadonlySet<NamedAction> = new Set(['hibernate', 'wake', 'stay']);

/** What Jupyter itself does: the server's GPU part and the controller may be away. */
export const BY_JUPYTER: ReadonlySet<NamedAction> = new Set(['cancel-wait', 'restart', 'open']);

/** For each action, the kernels for which it is possible, as one string to compare; `isStale`: their state is from before. */
export function possibilities(kernels: IKernel[], isStale: boolean): Map<Possible, string> {
  return new Map(
    (Object.keys(RULES) as Possible[]).map(action => {
      const isAnswered = !isStale || BY_JUPYTER.has(action);
      const ids = kernels.filter(kernel => isAnswered && RULES[action](kernel)).map(({ id }) => id);
      return [action, ids.sort().join(' ')];
    })
  );
}
