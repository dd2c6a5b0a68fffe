/** What can be asked of a kernel in its state. Pure; the server has the last word and gives its reason. */

import { IKernel, IProcess } from './status';

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
