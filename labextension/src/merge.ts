/** How an answer or an event becomes the status that views show. Pure. */

import { OTHER_CLOCK_S } from './ages';
import { IGpu, IKernel, INode, IStatus } from './status';

/** A controller that has run for less may not have heard of every kernel: their shims connect within seconds. */
const YOUNG_S = 10;

/** Clocks and counters: they change by themselves, and no view but a ticking one shows them. */
const CLOCKS: ReadonlySet<string> = new Set([
  'idle_s',
  'eligible_in_s',
  'held_for_s',
  'waiting_s',
  'estimate_s',
  'residency_age_s',
  'age_s',
  'ago_s',
  'free_in_s',
  'as_of_s',
  'calls',
  'busy_percent',
  'host_bytes',
  'park_takes_bytes'
]);

/** Whether what is said of a kernel is from before what is known of it, and of the same clock. */
export function isOlder(
  said: Pick<Partial<IKernel>, 'as_of_s'>,
  known: Pick<IKernel, 'as_of_s'>
): boolean {
  const behind_s = known.as_of_s - (said.as_of_s ?? Infinity);
  return behind_s > 0 && behind_s < OTHER_CLOCK_S;
}

/**
 * The status after an answer: of each kernel what is newest, since events may have told more meanwhile. What a controller
 * that has just started does not know yet stays as it was: only the shims say where their kernels' memory is.
 */
export function follow(before: IStatus | null, answer: IStatus): IStatus {
  let status = answer;
  for (const known of before?.kernels ?? []) {
    const said = answer.kernels.find(kernel => kernel.id === known.id);
    if (isUnheard(known, said, answer.node)) {
      const blank = said ?? { ...known, residency: 'none', gpus: [], processes: [], copy_bytes: 0 };
      const kernels = said ? status.kernels : [...status.kernels, blank];
      status = merge({ ...status, kernels }, known.id, known);
    } else if (said && isOlder(said, known)) {
      status = merge(status, known.id, known);
    }
  }
  return status;
}

/** Whether a kernel with processes is missing only since the controller is too young to have heard of them. */
export function isUnheard(
  known: IKernel,
  said: Partial<IKernel> | undefined,
  node: INode | null
): boolean {
  const uptime_s = node?.controller?.uptime_s ?? Infinity;
  return known.own && known.processes.length > 0 && !said?.processes?.length && uptime_s < YOUNG_S;
}

/**
 * The status after a kernel changed. The GPUs and the host's memory follow by what the kernel took or gave, so that the bars
 * agree with the rows until the next look measures them. The same status where the kernel is not known.
 */
export function merge(status: IStatus, id: string, change: Partial<IKernel>): IStatus {
  const before = status.kernels.find(kernel => kernel.id === id);
  if (!before) {
    return status;
  }
  const { name, path, paths, server, language, own } = before;
  const processes = (change.processes ?? before.processes).map(process => ({
    ...process,
    command:
      process.command ??
      before.processes.find(one => one.number === process.number)?.command ??
      null
  }));
  const names = { id, name, path, paths, server, language, own };
  const after = { ...before, ...change, ...names, processes };
  const kernels = status.kernels.map(kernel => (kernel.id === id ? after : kernel));
  return { ...status, kernels, node: status.node && shifted(status.node, before, after) };
}

/** The machine after one kernel changed; the same where neither memory nor queue did, for what draws it to notice. */
function shifted(node: INode, before: IKernel, after: IKernel): INode {
  const copy = after.copy_bytes - before.copy_bytes;
  const parked = after.parked_bytes - before.parked_bytes;
  const { host } = node;
  const come = after.processes.filter(({ pid }) => !before.processes.some(one => one.pid === pid));
  const pids = new Set(come.map(({ pid }) => pid));
  const isYoung = (node.controller?.uptime_s ?? Infinity) < YOUNG_S;
  const gpus = node.gpus.map(gpu => {
    const bytes = share(after, gpu) - share(before, gpu);
    const measured = pids.size > 0 && bytes > 0 ? claimed(gpu, bytes, pids, isYoung) : gpu;
    return moved(measured, bytes - ((gpu.unmanaged_bytes ?? 0) - (measured.unmanaged_bytes ?? 0)));
  });
  const queue = queueWith(node.queue, after);
  const isSame = gpus.every((gpu, index) => gpu === node.gpus[index]) && queue === node.queue;
  if (copy === 0 && parked === 0 && isSame) {
    return node;
  }
  return {
    ...node,
    queue,
    gpus,
    host: {
      ...host,
      copy_bytes: Math.max(0, host.copy_bytes + copy),
      parked_bytes: Math.max(0, host.parked_bytes + parked),
      available_bytes: between(host.available_bytes - copy, host.total_bytes)
    }
  };
}

/**
 * A GPU on which programs that were not managed turn out to be a kernel's: what they have was measured already. They are
 * known by their pids; where those prove nothing, as in containers, only a young controller can have missed them.
 */
function claimed(gpu: IGpu, bytes: number, pids: ReadonlySet<number>, isYoung: boolean): IGpu {
  const isListed = gpu.unmanaged?.some(({ pid }) => pid !== null && pids.has(pid));
  if (!isListed && !(isYoung && gpu.unmanaged === null)) {
    return gpu;
  }
  const claim = Math.min(bytes, gpu.unmanaged_bytes ?? 0);
  return {
    ...gpu,
    managed_bytes: gpu.managed_bytes + claim,
    unmanaged_bytes: gpu.unmanaged_bytes === null ? null : gpu.unmanaged_bytes - claim,
    unmanaged: gpu.unmanaged?.filter(({ pid }) => pid === null || !pids.has(pid)) ?? null
  };
}

/** The queue with a kernel at its place, or without it; the same where nothing changed. */
function queueWith(queue: string[], { id, place }: IKernel): string[] {
  const at = queue.indexOf(id);
  if (place === null ? at < 0 : at === place - 1) {
    return queue;
  }
  const others = queue.filter(one => one !== id);
  return place === null ? others : [...others.slice(0, place - 1), id, ...others.slice(place - 1)];
}

function moved(gpu: IGpu, bytes: number): IGpu {
  if (bytes === 0) {
    return gpu;
  }
  const total = gpu.total_bytes ?? Infinity;
  return {
    ...gpu,
    managed_bytes: between(gpu.managed_bytes + bytes, total),
    used_bytes: between(gpu.used_bytes + bytes, total),
    free_bytes: gpu.free_bytes === null ? null : between(gpu.free_bytes - bytes, total)
  };
}

function between(value: number, most: number): number {
  return Math.min(most, Math.max(0, value));
}

function share(kernel: IKernel, gpu: IGpu): number {
  const found = kernel.gpus.find(one => one.uuid === gpu.uuid);
  return found ? found.resident_bytes + found.unmovable_bytes : 0;
}

/** Whether two values differ in anything but clocks and counters. */
export function differs(one: unknown, other: unknown): boolean {
  if (one === other) {
    return false;
  }
  if (typeof one !== 'object' || typeof other !== 'object' || one === null || other === null) {
    return true;
  }
  const [a, b] = [one as Record<string, unknown>, other as Record<string, unknown>];
  const keys = new Set([...Object.keys(a), ...Object.keys(b)]);
  for (const key of keys) {
    if (CLOCKS.has(key) ? (a[key] === null) !== (b[key] === null) : differs(a[key], b[key])) {
      return true;
    }
  }
  return false;
}

/** The ids of the kernels that came, went or differ in anything but clocks. */
export function changedKernels(before: IKernel[], after: IKernel[]): Set<string> {
  const old = new Map(before.map(kernel => [kernel.id, kernel]));
  const changed = new Set<string>();
  for (const kernel of after) {
    if (differs(old.get(kernel.id), kernel)) {
      changed.add(kernel.id);
    }
    old.delete(kernel.id);
  }
  old.forEach((_, id) => changed.add(id));
  return changed;
}
