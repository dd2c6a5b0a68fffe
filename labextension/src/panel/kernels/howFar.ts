/** How far memory is on its way, between two looks. Pure. */

import { IKernel } from '../../status';

/** A move without any figure about its speed; slower than any bus, so that the bar does not end too soon. */
const USUAL_SPEED = 4 * 2 ** 30;

/**
 * How much of a move is done, 0 to 1, some seconds after the server said how long it had lasted; by the speed of the last one.
 * Null: it should be over by that, so that nothing is known but that it is slower.
 */
export function done(kernel: IKernel, age_s: number): number | null {
  const { move } = kernel;
  if (!move || move.bytes <= 0) {
    return 0;
  }
  const part = Math.max(0, (speedBefore(kernel) * (move.age_s + age_s)) / move.bytes);
  return part < 1 ? part : null;
}

function speedBefore(kernel: IKernel): number {
  const { last_park, last_resume, move, resume_estimate_s } = kernel;
  if (move?.kind === 'resume' && resume_estimate_s) {
    return move.bytes / resume_estimate_s;
  }
  const last = move?.kind === 'park' ? last_park : last_resume;
  return last && last.duration_s > 0 ? last.bytes / last.duration_s : USUAL_SPEED;
}
