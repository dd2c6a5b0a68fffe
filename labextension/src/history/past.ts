/** The last minutes or hours: one answer of the server, and what events and looks add to it. Pure. */

import { IGpu, IKernel } from '../status';
import { mainPath } from '../words';

/** Where a kernel's memory is, as far as a picture shows it. */
export type PastState = 'none' | 'resident' | 'parked' | 'queued';

/** The states that are drawn. */
export const SHOWN = ['resident', 'parked', 'queued'] as const;

/** From `at` on it was so, until the next change. Moments are seconds since 1970 by the server's clock. */
export interface IPastChange {
  at: number;
  state: PastState;
  cause: string | null;
}

/** A kernel on one GPU. */
export interface ILane {
  kernel_id: string;
  own: boolean;
  user: string | null;
  name: string | null;
  path: string | null;
  changes: readonly IPastChange[];
}

/** How many of the other users' kernels were in each state, one figure each step. */
export type IOthersCounts = Record<(typeof SHOWN)[number], readonly number[]>;

/** One GPU; figures are means of each step, null where no controller looked. */
export interface IPastGpu {
  uuid: string;
  index: number;
  name: string;
  total_bytes: number | null;
  used_bytes: readonly (number | null)[];
  utilization_percent: readonly (number | null)[];
  lanes: readonly ILane[];
  others: IOthersCounts | null;
}

/** The answer of GET past. */
export interface IPast {
  since: number;
  until: number;
  step_s: number;
  gpus: readonly IPastGpu[];
}

/** A stretch of one state; `cause` is why it began. */
export interface ISpan {
  from: number;
  to: number;
  state: PastState;
  cause: string | null;
  /** Whether it began before what is known. */
  isFirst: boolean;
}

/** The stretches of a lane, without those in which there was nothing. */
export function spans(lane: ILane, until: number): ISpan[] {
  return lane.changes
    .map((change, index) => ({
      from: change.at,
      to: lane.changes[index + 1]?.at ?? until,
      state: change.state,
      cause: change.cause,
      isFirst: index === 0
    }))
    .filter(span => span.state !== 'none');
}

/** What was given back, in GPU seconds, and waited, in seconds, by the kernels that are shown. */
export function sums(past: IPast): { givenBack: number; waited: number } {
  let givenBack = 0;
  const waits = new Map<string, number>();
  for (const gpu of past.gpus) {
    for (const lane of gpu.lanes) {
      let waited = 0;
      for (const { from, to, state } of spans(lane, past.until)) {
        givenBack += state === 'parked' ? to - from : 0;
        waited += state === 'queued' ? to - from : 0;
      }
      // A kernel of several GPUs waits once.
      waits.set(lane.kernel_id, Math.max(waited, waits.get(lane.kernel_id) ?? 0));
    }
  }
  return { givenBack, waited: [...waits.values()].reduce((sum, one) => sum + one, 0) };
}

/** The same past, some time later: what is older than the window goes. */
export function later(past: IPast, now: number): IPast {
  if (now <= past.until) {
    return past;
  }
  const steps = past.gpus[0]?.used_bytes.length ?? 0;
  const over = Math.ceil((now - past.since) / past.step_s) - steps;
  return { ...(over > 0 ? moved(past, over) : past), until: now };
}

function moved(past: IPast, steps: number): IPast {
  const since = past.since + steps * past.step_s;
  const gone = <T>(figures: readonly T[], added: T): T[] => {
    const kept = figures.slice(Math.min(steps, figures.length));
    return [...kept, ...new Array<T>(figures.length - kept.length).fill(added)];
  };
  return {
    ...past,
    since,
    gpus: past.gpus.map(gpu => ({
      ...gpu,
      used_bytes: gone(gpu.used_bytes, null),
      utilization_percent: gone(gpu.utilization_percent, null),
      lanes: gpu.lanes.map(lane => trimmed(lane, since)).filter(lane => lane !== null),
      others: gpu.others && {
        resident: gone(gpu.others.resident, last(gpu.others.resident)),
        parked: gone(gpu.others.parked, last(gpu.others.parked)),
        queued: gone(gpu.others.queued, last(gpu.others.queued))
      }
    }))
  };
}

function last(figures: readonly number[]): number {
  return figures[figures.length - 1] ?? 0;
}

/** A lane without what ended before; null where nothing is left. */
function trimmed(lane: ILane, since: number): ILane | null {
  const { changes } = lane;
  let first = 0;
  while (first + 1 < changes.length && changes[first + 1].at <= since) {
    first += 1;
  }
  if (first === changes.length - 1 && changes[first].state === 'none') {
    return null;
  }
  if (first === 0 && changes[0].at >= since) {
    return lane;
  }
  const begin = { ...changes[first], at: Math.max(changes[first].at, since) };
  return { ...lane, changes: [begin, ...changes.slice(first + 1)] };
}

/** The past after a kernel changed at some moment; the same where nothing is to be seen of it. */
export function followed(past: IPast, id: string, kernel: IKernel | undefined, at: number): IPast {
  if (kernel && (kernel.residency === 'parking' || kernel.residency === 'resuming')) {
    return past; // what was before lasts until the move's end
  }
  const gpus = past.gpus.map(gpu => {
    const lane = gpu.lanes.find(one => one.kernel_id === id);
    const state = stateOn(gpu, kernel, past.gpus.length === 1);
    const before = lane?.changes[lane.changes.length - 1];
    const cause = state === 'queued' ? null : (kernel?.reason_code ?? null);
    const named = lane && kernel ? { ...lane, ...names(kernel) } : lane;
    if (state === (before?.state ?? 'none')) {
      // Why it changed may be told after the change.
      const isTold = before && lane && lane.changes.length > 1 && cause && before.cause !== cause;
      const changes = isTold ? [...lane.changes.slice(0, -1), { ...before, cause }] : lane?.changes;
      return lane && named && changes && (isTold || named.path !== lane.path)
        ? { ...gpu, lanes: gpu.lanes.map(one => (one === lane ? { ...named, changes } : one)) }
        : gpu;
    }
    const change = { at, state, cause };
    if (!lane || !named) {
      return kernel
        ? {
            ...gpu,
            lanes: [
              ...gpu.lanes,
              { kernel_id: id, user: null, ...names(kernel), changes: [change] }
            ]
          }
        : gpu;
    }
    const grown = { ...named, changes: [...lane.changes, change] };
    return { ...gpu, lanes: gpu.lanes.map(one => (one === lane ? grown : one)) };
  });
  return gpus.every((gpu, index) => gpu === past.gpus[index]) ? past : { ...past, gpus };
}

function names(kernel: IKernel): Pick<ILane, 'name' | 'own' | 'path'> {
  return { name: kernel.name, own: kernel.own, path: mainPath(kernel) };
}

function stateOn(gpu: IPastGpu, kernel: IKernel | undefined, isOnly: boolean): PastState {
  if (!kernel || kernel.residency === 'none' || kernel.residency === 'lost') {
    return 'none';
  }
  const share = kernel.gpus.find(one => one.uuid === gpu.uuid);
  const has = share && share.resident_bytes + share.parked_bytes + share.unmovable_bytes > 0;
  const waitsHere =
    kernel.residency === 'queued' &&
    kernel.gpus.length === 0 &&
    (isOnly || kernel.wait?.args.gpu === gpu.index);
  const state = kernel.residency === 'hibernated' ? 'parked' : kernel.residency; // off the GPU as well
  return has || waitsHere ? (state as PastState) : 'none';
}

/** The past with the GPUs' figures of now. */
export function sampled(past: IPast, gpus: readonly IGpu[], at: number): IPast {
  const place = Math.floor((at - past.since) / past.step_s);
  return {
    ...past,
    gpus: past.gpus.map(gpu => {
      const seen = gpus.find(one => one.uuid === gpu.uuid);
      return seen && seen.total_bytes !== null && place >= 0 && place < gpu.used_bytes.length
        ? {
            ...gpu,
            used_bytes: put(gpu.used_bytes, place, seen.used_bytes),
            utilization_percent: put(gpu.utilization_percent, place, seen.utilization_percent)
          }
        : gpu;
    })
  };
}

function put<T>(figures: readonly T[], place: number, figure: T): T[] {
  const changed = [...figures];
  changed[place] = figure;
  return changed;
}
