/**
 * What the server's `affinode/api/status` says, and the events that say what changed since.
 *
 * Sizes are bytes, times are seconds. The server's own words (`text`, `message`, `reason`) are English and for the command
 * line; the Lab makes its sentences of codes and arguments. A status of another version is not read (`problems.ts`).
 */

import { BlockerReason, NoticeKind, Residency, StuckReason, UnmovableReason } from './codes';

export { Residency };

/** Bytes that stay on the GPU when the rest of a kernel is moved. */
export interface IFixedBytes {
  reason: UnmovableReason;
  bytes: number;
  text: string;
}

/** A kernel's share of one GPU. */
export interface IKernelOnGpu {
  uuid: string;
  resident_bytes: number;
  parked_bytes: number;
  fixed_bytes: number;
}

/** A process of a kernel. */
export interface IProcess {
  number: number;
  pid: number;
  residency: Residency;
  command: string | null;
  /** Why it can make no progress any more; its owner may end it. */
  stuck: { reason: StuckReason; text: string } | null;
}

/** Figures and words that a code's sentence needs; none of them must be there. */
export interface ICodeArgs {
  /** For which notebooks: the user's own or another user's. */
  for?: 'own' | 'other' | null;
  bytes?: number | null;
  [name: string]: unknown;
}

/** Memory on its way. */
export interface IMove {
  kind: 'park' | 'resume';
  bytes: number;
  age_s: number;
}

/** The last park or resume that ended. */
export interface ILastMove {
  bytes: number;
  duration_s: number;
  ago_s: number;
}

/** A kernel, or a program outside, that is in the way of a waiting kernel; another user's kernel has no id. */
export interface IBlocker {
  kernel_id: string | null;
  own: boolean;
  why: BlockerReason;
  free_in_s: number | null;
  /** Of a kernel that is held: the same as a time of day. */
  held_until?: string | null;
}

/** What a waiting kernel waits for; the most important blocker first. */
export interface IWait {
  code: string;
  args: {
    bytes?: number | null;
    limit?: string | null;
    kernels?: number | null;
    gpu?: number | null;
  };
  blockers: IBlocker[];
}

/** One kernel; another server's has no name and no path. */
export interface IKernel {
  id: string;
  /** When all this was so, by the machine's monotonic clock. */
  as_of_s: number;
  /** Of this server. */
  own: boolean;
  /** Whose it is, on a machine's controller; null on a user's own. */
  user: string | null;
  name: string | null;
  path: string | null;
  paths: string[];
  language: string | null;
  server: string | null;
  residency: Residency;
  text: string;
  reason: string | null;
  refusal: string | null;
  /** How deep it is parked; "context": the GPU does not know it any more. */
  depth: 'none' | 'memory' | 'context';
  /** Why its CUDA context stays on the GPU although it may go. */
  depth_refusal: string | null;
  resident_bytes: number;
  parked_bytes: number;
  /** Host memory that holds its parked contents; zeros take none. */
  copy_bytes: number;
  /** Host memory that it retains from its last park for the next. */
  kept_bytes: number;
  /** Host memory that was set aside for its first park. */
  set_aside_bytes: number;
  footprint_bytes: number;
  fixed: IFixedBytes[];
  gpus: IKernelOnGpu[];
  processes: IProcess[];
  idle_s: number | null;
  cell_open: boolean;
  eligible: boolean;
  eligible_in_s: number | null;
  held_for_s: number | null;
  /** The same as a time of day, which all views show: "13:11 CET". */
  held_until: string | null;
  place: number | null;
  waiting_s: number | null;
  /** Why it waits, in plain words. */
  wait_reason: string | null;
  /** For how much longer, probably; null where that cannot be said. */
  estimate_s: number | null;
  simulated: boolean;
  tracked: boolean;
  /** CUDA calls so far that passed the gate, of all processes; two looks make a rate. */
  calls: number | null;
  /** Only while memory moves. */
  move: IMove | null;
  last_park: ILastMove | null;
  last_resume: ILastMove | null;
  /** How long bringing it back takes when there is room, or would take once it is freed. */
  resume_estimate_s: number | null;
  /** Why its residency changed last. */
  reason_code: string | null;
  reason_args: ICodeArgs;
  /** Why it could not be parked. */
  refusal_code: string | null;
  refusal_args: ICodeArgs;
  /** Why its CUDA context stays. */
  depth_refusal_code: string | null;
  /** Only while it waits. */
  wait: IWait | null;
  /** Parked bytes that are on disk. */
  disk_bytes: number;
  /** How busy it keeps the GPU that it uses most; null where NVML does not tell. */
  busy_percent: number | null;
  /** RAM of its processes, with what holds parked memory; null where it cannot be seen. */
  host_bytes: number | null;
  /** RAM that freeing it takes beside what it has for that; null where it is not on the GPU. */
  park_takes_bytes: number | null;
}

/** Of this server; of the same user, but on another server or on none; of another user. */
export type Ownership = 'here' | 'elsewhere' | 'others';

/** Only administrators are told of other users' kernels, by ids that begin with the owner. */
export function ownership(kernel: IKernel): Ownership {
  if (kernel.own) {
    return 'here';
  }
  return kernel.id.includes('/') ? 'others' : 'elsewhere';
}

/** A process on a GPU that is not managed; another user's has no name. */
export interface IUnmanaged {
  pid: number | null;
  command: string | null;
  bytes: number | null;
}

/** One GPU of the machine; null where NVML would have to say it and is not there. */
export interface IGpu {
  uuid: string;
  index: number;
  name: string;
  total_bytes: number | null;
  used_bytes: number;
  free_bytes: number | null;
  managed_bytes: number;
  /** CUDA contexts of managed processes; null where they cannot be told from what is not managed. */
  context_bytes: number | null;
  unmanaged_bytes: number | null;
  /** The largest first; null where processes cannot be told apart, as in containers. */
  unmanaged: IUnmanaged[] | null;
  utilization_percent: number | null;
  /** Percent of the last minute, one each 2 s, the oldest first; null where NVML did not say. */
  utilization_history: (number | null)[];
}

/** The machine's main memory, as the controller sees it. */
export interface IHostMemory {
  total_bytes: number;
  available_bytes: number;
  reserve_bytes: number;
  parked_bytes: number;
  copy_bytes: number;
  kept_bytes: number;
  cgroup_headroom_bytes: number | null;
}

/** The machine. */
export interface INode {
  simulated: boolean;
  nvml: boolean;
  gpus: IGpu[];
  host: IHostMemory;
  queue: string[];
  policy: IPolicy | null;
  today: IToday | null;
  /** On a machine's controller; null on a user's own. */
  others: IOthers | null;
  controller: { system: boolean; version: string; uptime_s: number } | null;
}

/** When idle kernels are parked, and whether this user may change that. */
export interface IPolicy {
  may_change: boolean;
  park_when: string;
  idle_timeout_s: number;
  contended_idle_timeout_s: number | null;
}

/** What this user's kernels gave back since midnight. */
export interface IToday {
  freed_gpu_s: number;
  parks: number;
}

/** All other users' kernels, as sums. */
export interface IOthers {
  kernels: number;
  resident_bytes: number;
  parked_bytes: number;
  waiting: number;
}

/** CUDA calls of one kernel since a look at them began. */
export interface IActivity {
  calls: { [callClass: string]: number };
  entry_points: { name: string; calls: number }[];
  age_s: number;
}

/** A kernel that ran on without a server, and that no notebook or console shows now. */
export interface IKeptKernel {
  id: string;
  /** What its kernelspec is called. */
  name: string | null;
  /** Of its notebook, in the folder of its server. */
  path: string | null;
  /** Whether this server has it; one that is kept for another server can only be ended from here. */
  here: boolean;
  /** The root folder of that other server. */
  folder: string | null;
  /** What a Hub calls that other server. */
  server: string | null;
  /** When its server ended, as a time of day: "13:11 CET". */
  since: string;
}

/** The answer of GET status. */
export interface IStatus {
  version: string;
  available: boolean;
  message: string | null;
  /** Why there is no controller. */
  code: string | null;
  /** Whether the server lets this user do more than look. */
  may_act: boolean;
  node: INode | null;
  kernels: IKernel[];
  kept: IKeptKernel[];
}

/** What a user may ask of a kernel. */
export type Action = 'park' | 'resume' | 'hold' | 'release' | 'focus' | 'end';

/** What goes with it: how long to keep the GPU, or which process to end. */
export interface IActionBody {
  duration_s?: number;
  process?: number;
}

/** The Jupyter event about one kernel's residency. */
export const RESIDENCY_EVENT = 'https://schema.jupyter.org/jupyter_affinode/kernel_residency/v1';

/** The Jupyter event about the controller's coming and going. */
export const NODE_EVENT = 'https://schema.jupyter.org/jupyter_affinode/node/v1';

/** The Jupyter event about something that users should hear of once. */
export const NOTICE_EVENT = 'https://schema.jupyter.org/jupyter_affinode/notice/v1';

/** The data of a notice; of a kernel, `text` is what comes after its name. */
export interface INoticeEvent {
  kernel_id: string | null;
  kind: NoticeKind;
  level: 'info' | 'warning';
  text: string;
  args?: { [name: string]: unknown } | null;
}

/** The data of the controller's event. */
export interface INodeEvent {
  available: boolean;
  code?: 'starting' | 'refused' | 'unreachable' | 'ended' | null;
}

/** The data of a residency event. `kernel` is the whole kernel as in status, without its names and its processes' commands. */
export interface IResidencyEvent {
  kernel_id: string;
  residency: Residency;
  previous: Residency | null;
  text: string;
  reason: string | null;
  resident_bytes: number;
  parked_bytes: number;
  place: number | null;
  held_for_s: number | null;
  simulated: boolean;
  kernel: Partial<IKernel>;
}
