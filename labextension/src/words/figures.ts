/** Sizes, times, places and names. */

import { TranslationBundle } from '@jupyterlab/translation';
import { IKernel, ownership } from '../status';

/** The part of a translation bundle that words need; `_n` gives the count as the first value. */
export type IWords = Pick<TranslationBundle, '__' | '_n'>;

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
const LONGEST_NOTICE = 140; // JupyterLab cuts longer notifications
const NAME_LENGTHS = [Infinity, 60, 40, 28, 20, 14]; // of each name in a notice, until it fits
const [ISOLATE, END] = ['\u2068', '\u2069']; // what is between them does not turn what is around
const CONTROLS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g; // they turn what follows
const TURNS =
  /[\u0590-\u08ff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufdff\ufe70-\ufefc]/;

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
  return trans.__('%1 of %2', ...inOneUnit(part, whole));
}

/** The same where there is little room: "3.7/4 GiB", "512 MiB/4 GiB". */
export function bytesPer(part: number, whole: number): string {
  return inOneUnit(part, whole).join('/');
}

function inOneUnit(part: number, whole: number): [string, string] {
  const [one, all] = [bytes(part), bytes(whole)];
  const [number, unit] = one.split(' ');
  return [all.endsWith(` ${unit}`) ? number : one, all];
}

/** How much is in use on how many GPUs: "8 GPUs: 312 of 640 GiB in use". */
export function usedText(
  { used, total, gpus }: { used: number; total: number | null; gpus: number },
  trans: IWords
): string {
  const size = total === null ? bytes(used) : bytesOf(used, total, trans);
  return trans._n('%1 GPU: %2 in use', '%1 GPUs: %2 in use', gpus, size);
}

/** A span of time, rounded to what a user cares about: "12 s", "4 min", "1 h", "1 h 30 min", "2 d". */
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

/** The same, rounded up, for what must not last longer than it says. */
export function atMost(seconds: number, trans: IWords): string {
  const unit = seconds <= 59 ? 1 : seconds <= 47 * 3600 ? 60 : 86400;
  return span(Math.max(1, Math.ceil(seconds / unit)) * unit, trans);
}

/** A short time to the tenth of a second, a longer one as `span` says it: "0.4 s", "12 s". */
export function seconds(count: number, trans: IWords): string {
  return count < 10 ? trans.__('%1 s', Number(count.toFixed(1))) : span(count, trans);
}

/** A moment as a time of day, for what an earlier server does not put into words: "13:11". */
export function clockIn(seconds: number, now = Date.now()): string {
  const moment = new Date(now + 1000 * seconds);
  return moment.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });
}

/** Since when what is shown is not confirmed: "as of 12:03"; null while it is true now. */
export function asOf(
  { stale, updated }: { stale: boolean; updated: number | null },
  trans: IWords
): string | null {
  if (!stale || updated === null) {
    return null;
  }
  return trans.__('as of %1', clockIn(0, updated));
}

/** A place in the line: "1st", "2nd", "11th". */
export function place(number: number, trans: IWords): string {
  const isTeen = number % 100 >= 11 && number % 100 <= 13;
  switch (isTeen ? 0 : number % 10) {
    case 1:
      return trans.__('%1st', number);
    case 2:
      return trans.__('%1nd', number);
    case 3:
      return trans.__('%1rd', number);
    default:
      return trans.__('%1th', number);
  }
}

/** The last part of a path. */
export function basename(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1);
}

/** A notice that is no longer than what JupyterLab shows: its names give way, in the middle, before what it says of them. */
export function notice(make: (short: (name: string) => string) => string): string {
  const texts = NAME_LENGTHS.map(most => make(name => shortened(name, most)));
  const shortest = texts[texts.length - 1];
  const fit = texts.find(text => text.length <= LONGEST_NOTICE);
  return fit ?? `${shortest.slice(0, LONGEST_NOTICE - 1)}…`;
}

/** A name of at most so many characters: its begin and its end, which tell most names apart. */
function shortened(name: string, most: number): string {
  if (name.startsWith(ISOLATE)) {
    return isolated(shortened(name.slice(1, -1), most));
  }
  const characters = [...name];
  if (characters.length <= most) {
    return name;
  }
  const end = Math.floor(most / 2);
  return [...characters.slice(0, most - 1 - end), '…', ...characters.slice(-end)].join('');
}

/** A name that begins at its own side wherever it stands, as those written from right to left do. */
export function isolated(name: string): string {
  return TURNS.test(name) ? `${ISOLATE}${name.replace(CONTROLS, '')}${END}` : name;
}

/** What a kernel is called in the panel: its notebook, else its name; of others only where or whose they are. */
export function title(kernel: IKernel, trans: IWords): string {
  if (ownership(kernel) === 'others') {
    return isolated(kernel.user ?? trans.__('Another user'));
  }
  if (!kernel.own && kernel.server) {
    return trans.__('Another server');
  }
  if (!kernel.own) {
    return isolated(kernel.name ?? trans.__('Outside this server'));
  }
  const path = mainPath(kernel);
  const name = isolated(
    path ? basename(path) : (kernel.name ?? trans.__('Kernel without a notebook'))
  );
  const more = kernel.paths.filter(one => one !== path).length;
  return more > 0 && kernel.paths.length > 1 ? trans.__('%1 + %2', name, more) : name;
}

/** The path of a kernel's notebook, else of what else it belongs to; a console on the same kernel is not what it is known by. */
export function mainPath({ path, paths }: Pick<IKernel, 'path' | 'paths'>): string | null {
  const all = path === null ? paths : [path, ...paths];
  return all.find(one => one.endsWith('.ipynb')) ?? all[0] ?? null;
}

/** The folders that tell notebooks of one name apart, as few as are needed, by path; none of all others. */
export function folders(paths: Iterable<string>): Map<string, string> {
  const named = new Map<string, string[]>();
  for (const path of new Set(paths)) {
    named.set(basename(path), [...(named.get(basename(path)) ?? []), path]);
  }
  const found = new Map<string, string>();
  for (const same of [...named.values()].filter(each => each.length > 1)) {
    const parts = same.map(path => path.split('/').slice(0, -1));
    const deepest = Math.max(...parts.map(each => each.length));
    let depth = 1;
    const tail = (each: string[]) => each.slice(-depth).join('/');
    while (depth < deepest && new Set(parts.map(tail)).size < same.length) {
      depth += 1;
    }
    same.forEach((path, index) => found.set(path, `${tail(parts[index])}/`));
  }
  return found;
}

/** Whether two versions are of one release, whatever their build or development endings. */
export function sameRelease(one: string, other: string): boolean {
  const release = (version: string) => /^\d+\.\d+\.\d+/.exec(version)?.[0] ?? version;
  return release(one) === release(other);
}
