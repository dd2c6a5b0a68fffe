/** The last hour in words. */

import { ILane, ISpan } from '../history/past';
import { basename, IWords, seconds, span } from './figures';
import { reasonText } from './reasons';
import { stateName } from './states';

/** What a picture is of: "The last hour", "The last 10 min". */
export function pastTitle(length: number, trans: IWords): string {
  return length === 3600 ? trans.__('The last hour') : trans.__('The last %1', span(length, trans));
}

/** "42 GPU minutes given back, 11 s waited". */
export function sumsText(
  { givenBack, waited }: { givenBack: number; waited: number },
  trans: IWords
): string {
  return trans.__('%1 given back, %2 waited', gpuTime(givenBack, trans), seconds(waited, trans));
}

/** "42 GPU seconds", "12 GPU minutes", "3.3 GPU hours". */
export function gpuTime(count: number, trans: IWords): string {
  if (count < 120) {
    const whole = Math.round(count);
    return trans._n('%1 GPU second', '%1 GPU seconds', whole);
  }
  const minutes = Math.round(count / 60);
  return minutes < 120
    ? trans.__('%1 GPU minutes', minutes)
    : trans.__('%1 GPU hours', Number((count / 3600).toFixed(1)));
}

/** What a lane is of: its notebook, or its kernel, or whose it is. */
export function laneTitle(lane: ILane, trans: IWords): string {
  if (lane.path !== null) {
    return basename(lane.path);
  }
  if (lane.own) {
    return lane.name ?? trans.__('Kernel without a notebook');
  }
  if (lane.kernel_id.includes('/')) {
    return lane.user ?? trans.__('Another user');
  }
  const change = lane.changes[lane.changes.length - 1];
  return change?.state === 'none' ? trans.__('A kernel that ended') : trans.__('Another server');
}

/** A moment: "14:02:11". */
export function clockText(at: number): string {
  return new Date(at * 1000).toLocaleTimeString([], {
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit'
  });
}

/** Making a format takes longer than using it many times. */
const AXIS = new Intl.DateTimeFormat([], { hour: '2-digit', minute: '2-digit' });

/** A moment under an axis: "14:02". */
export function axisText(at: Date): string {
  return AXIS.format(at);
}

/** One stretch of a lane: "GPU freed from 14:02:11 to 14:09:30 (7 min): it made room for another notebook". */
export function spanText(shown: ISpan, until: number, trans: IWords): string {
  const state = stateName(shown.state, trans);
  const length = span(shown.to - shown.from, trans);
  const isNow = shown.to >= until;
  const [from, to] = [clockText(shown.from), clockText(shown.to)];
  const when = shown.isFirst
    ? isNow
      ? trans.__('%1 all the time', state)
      : trans.__('%1 until %2', state, to)
    : isNow
      ? trans.__('%1 since %2 (%3)', state, from, length)
      : trans.__('%1 from %2 to %3 (%4)', state, from, to, length);
  const why = shown.state === 'queued' ? null : reasonText(shown.cause, null, trans);
  return why === null ? when : trans.__('%1: %2', when, why);
}
