/** What can be asked of a kernel in its state. Pure; the server has the last word and gives its reason. */

import { IKernel, IProcess } from './status';

/** What may become possible or impossible for a kernel. */
export type Possible = 'park' | 'resume' | 'hold' | 'release' | 'cancel-wait' | 'restart' | 'end';

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
  return kernel.own && ['resident', 'queued', 'resuming'].includes(kernel.residency);
}

/** Whether it is kept. */
export function canRelease(kernel: IKernel): boolean {
  return kernel.own && kernel.held_for_s !== null;
}

/** The processes that can make no progress, and that may be ended from here: one's own, and those nobody has any more. */
export function endable(kernel: IKernel): IProcess[] {
  return kernel.processes.filter(
    process => process.stuck && (kernel.own || process.stuck.reason === 'parent-gone')
  );
}

/** Whether there is a wait to give up. */
export function canCancelWait(kernel: IKernel): boolean {
  return kernel.own && kernel.residency === 'queued';
}

/** Whether only a restart helps. */
export function canRestart(kernel: IKernel): boolean {
  return kernel.own && kernel.residency === 'lost';
}

const RULES: Record<Possible, (kernel: IKernel) => boolean> = {
  park: canPark,
  resume: canResume,
  hold: canHold,
  release: canRelease,
  'cancel-wait': canCancelWait,
  restart: canRestart,
  end: kernel => endable(kernel).length > 0
};

/** For each action, the kernels for which it is possible, as one string to compare. */
export function possibilities(kernels: IKernel[]): Map<Possible, string> {
  return new Map(
    (Object.keys(RULES) as Possible[]).map(action => {
      const ids = kernels.filter(kernel => RULES[action](kernel)).map(kernel => kernel.id);
      return [action, ids.sort().join(' ')];
    })
  );
}
