/** Sizes, times and states in words for people. Pure; `trans` is the translation bundle's part that is needed. */

import { IKernel, IUnmanaged } from './status';

/** The part of a TranslationBundle that words need. */
export interface IWords {
  __(text: string, ...values: unknown[]): string;
  _n(one: string, many: string, count: number, ...values: unknown[]): string;
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
const SMALL = 64 * 1024 ** 2; // host memory is taken in slabs: less is not worth a word
const LONGEST_NOTICE = 140; // JupyterLab cuts longer notifications

/** Bytes with a binary unit, rounded as the server's words are: "512 MiB", "1.5 GiB", "139 GiB". */
export function bytes(count: number): string {
  let unit = 0;
  let value = Math.max(0, count);
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 10 ? 0 : 1;
  return `${Number(value.toFixed(digits))} ${UNITS[unit]}`;
}

/** A part and its whole, the unit once where it is the same: "3.7 of 4 GiB", "512 MiB of 4 GiB". */
export function bytesOf(part: number, whole: number, trans: IWords): string {
  const [one, all] = [bytes(part), bytes(whole)];
  const [number, unit] = one.split(' ');
  return trans.__('%1 of %2', all.endsWith(` ${unit}`) ? number : one, all);
}

/** A span of time, rounded to what a person cares about: "12 s", "4 min", "1 h", "1 h 30 min", "2 d". */
export function span(seconds: number, trans: IWords): string {
  const total = Math.max(0, Math.round(seconds));
  if (total < 60) {
    return trans.__('%1 s', total);
  }
  const minutes = Math.round(total / 60);
  if (minutes < 60) {
    return trans.__('%1 min', minutes);
  }
  if (minutes < 48 * 60) {
    const [hours, rest] = [Math.floor(minutes / 60), minutes % 60];
    return rest ? trans.__('%1 h %2 min', hours, rest) : trans.__('%1 h', hours);
  }
  return trans.__('%1 d', Math.round(minutes / 60 / 24));
}

/** A place in the line: "1st", "2nd", "11th". */
export function place(number: number): string {
  const teen = number % 100 >= 11 && number % 100 <= 13;
  const ending = teen ? 'th' : (['th', 'st', 'nd', 'rd'][number % 10] ?? 'th');
  return `${number}${ending}`;
}

/** The last part of a path. */
export function basename(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1);
}

/** Shorten a notice to what JupyterLab shows. */
export function notice(text: string): string {
  return text.length <= LONGEST_NOTICE ? text : `${text.slice(0, LONGEST_NOTICE - 1)}…`;
}

/** What a kernel is called in the panel: its notebook, else its name; others are only told apart from one's own. */
export function title(kernel: IKernel, trans: IWords): string {
  if (!kernel.own) {
    return kernel.server ? trans.__('Another server') : trans.__('Outside this server');
  }
  const path = kernel.path ?? kernel.paths[0];
  return path ? basename(path) : (kernel.name ?? trans.__('Kernel without a notebook'));
}

/** A process on a GPU that is not managed: "train.py (pid 12): 3 GiB", "Another user: 3 GiB". */
export function unmanaged(process: IUnmanaged, trans: IWords): string {
  const who =
    process.pid === null
      ? trans.__('Another user')
      : trans.__('%1 (pid %2)', process.command ?? trans.__('Process'), process.pid);
  return process.bytes === null ? who : trans.__('%1: %2', who, bytes(process.bytes));
}

/** All bytes that a kernel has on GPUs, also those that cannot move. */
export function onGpu(kernel: IKernel): number {
  return kernel.fixed.reduce((sum, fixed) => sum + fixed.bytes, kernel.resident_bytes);
}

/** The chip's few words; empty where the icon says enough. */
export function chipLabel(kernel: IKernel, trans: IWords): string {
  switch (kernel.residency) {
    case 'none':
      return '';
    case 'resident':
      return trans.__('GPU %1', bytes(onGpu(kernel)));
    case 'parking':
      return trans.__('Freeing GPU');
    case 'parked':
      return trans.__('GPU freed');
    case 'queued':
      return kernel.place ? trans.__('Waiting %1', place(kernel.place)) : trans.__('Waiting');
    case 'resuming':
      return trans.__('Getting GPU');
    case 'lost':
      return trans.__('GPU lost');
  }
}

/** What is worth knowing beside the state: how long idle or waiting, and what happens next. */
export function details(kernel: IKernel, trans: IWords): string[] {
  const lines: string[] = [];
  if (kernel.residency === 'queued' && kernel.waiting_s !== null) {
    lines.push(trans.__('waiting %1', span(kernel.waiting_s, trans)));
    if (kernel.estimate_s !== null) {
      lines.push(trans.__('probably %1 more', span(kernel.estimate_s, trans)));
    }
    if (kernel.wait_reason) {
      lines.push(kernel.wait_reason);
    }
  }
  if (kernel.residency === 'resident' || kernel.residency === 'parked') {
    if (kernel.cell_open) {
      lines.push(trans.__('a cell is running'));
    } else if (kernel.idle_s !== null) {
      lines.push(trans.__('idle %1', span(kernel.idle_s, trans)));
    }
  }
  if (kernel.residency === 'resident' && kernel.held_for_s === null) {
    if (kernel.eligible) {
      lines.push(trans.__('may be freed when others need room'));
    } else if (kernel.eligible_in_s !== null && !kernel.cell_open) {
      lines.push(trans.__('may be freed in %1', span(kernel.eligible_in_s, trans)));
    }
  }
  const ram = hostMemory(kernel, trans);
  return ram ? [...lines, ram] : lines;
}

/** What a kernel has in RAM, where its size on the GPU does not say it already. */
function hostMemory(kernel: IKernel, trans: IWords): string | null {
  const { copy_bytes, kept_bytes, parked_bytes } = kernel;
  if (kernel.residency === 'parked' && copy_bytes < parked_bytes - SMALL) {
    return trans.__('takes %1 of RAM, the rest is zeros', bytes(copy_bytes));
  }
  if (kernel.residency === 'resident' && kept_bytes > SMALL) {
    return trans.__('%1 of RAM kept for the next time', bytes(kept_bytes));
  }
  return null;
}

/** Whether two versions are of one release, whatever their build or development endings. */
export function sameRelease(one: string, other: string): boolean {
  const release = (version: string) => /^\d+\.\d+\.\d+/.exec(version)?.[0] ?? version;
  return release(one) === release(other);
}
