/** What freeing gives, and until when a notebook can be kept. */

import { IKernel } from '../status';
import { bytes, IWords } from './figures';
import { resumeEstimateText } from './moves';

/** What freeing a kernel gives: "gives 1.5 GiB, back in about 0.7 s". */
export function givesText(kernel: IKernel, trans: IWords): string {
  const gives = trans.__('gives %1', bytes(kernel.resident_bytes));
  const back = resumeEstimateText(kernel.resume_estimate_s, trans);
  return back === null ? gives : trans.__('%1, %2', gives, back);
}

/** The button that frees all that is idle: "Free all my idle (6.2 GiB)". */
export function freeIdleText(size: number, trans: IWords): string {
  return trans.__('Free all my idle (%1)', bytes(size));
}

/** How long a notebook may be kept with one click. */
export interface IKeepChoice {
  label: string;
  minutes: number;
}

const WORKDAY_ENDS = 17;

/** An hour, the end of the working day unless it is near or over, and tonight. */
export function keepChoices(now: Date, trans: IWords): IKeepChoice[] {
  const at = (hours: number, minutes: number) => {
    const moment = new Date(now);
    moment.setHours(hours, minutes, 0, 0);
    return moment;
  };
  const clock = (moment: Date) =>
    moment.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
  const until = (moment: Date) => Math.round((moment.getTime() - now.getTime()) / 60_000);
  const evening = at(WORKDAY_ENDS, 0);
  const night = at(23, 59);
  return [
    { label: trans.__('1 h'), minutes: 60 },
    ...(until(evening) > 60 ? [{ label: clock(evening), minutes: until(evening) }] : []),
    ...(until(night) > 60 ? [{ label: trans.__('tonight'), minutes: until(night) }] : [])
  ];
}
