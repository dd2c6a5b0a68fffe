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

/** How busy a kernel keeps its GPU: "31 % of the GPU's time"; null where that is not told, or it is not there. */
export function busyText(kernel: IKernel, trans: IWords): string | null {
  return kernel.busy_percent === null || kernel.residency !== 'resident'
    ? null
    : trans.__('keeps the GPU %1 % busy', kernel.busy_percent);
}

/** A kernel's RAM and what freeing takes of it: "its RAM: 3.1 GiB, freeing takes 12 GiB more"; null where unknown. */
export function ramText(kernel: IKernel, trans: IWords): string | null {
  if (kernel.host_bytes === null) {
    return null;
  }
  const has = bytes(kernel.host_bytes);
  return kernel.park_takes_bytes
    ? trans.__('its RAM: %1, freeing takes %2 more', has, bytes(kernel.park_takes_bytes))
    : trans.__('its RAM: %1', has);
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
