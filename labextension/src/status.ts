/**
 * What the server's `affinode/api/status` says, and the events that say when to ask again.
 *
 * Sizes are bytes, times are seconds. The server's own words (`text`, `message`, `reason`) are English.
 */

import { NoticeKind, Residency, StuckReason, UnmovableReason } from './reasons';

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

/** One kernel; another server's has no name and no path. */
export interface IKernel {
  id: string;
  own: boolean;
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
  /** Host memory kept for its next park. */
  kept_bytes: number;
  footprint_bytes: number;
  fixed: IFixedBytes[];
  gpus: IKernelOnGpu[];
  processes: IProcess[];
  idle_s: number | null;
  cell_open: boolean;
  eligible: boolean;
  eligible_in_s: number | null;
  held_for_s: number | null;
  place: number | null;
  waiting_s: number | null;
  /** Why it waits, in plain words. */
  wait_reason: string | null;
  /** For how much longer, probably; null where that cannot be said. */
  estimate_s: number | null;
  simulated: boolean;
  tracked: boolean;
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
}

/** The answer of GET status. */
export interface IStatus {
  version: string;
  available: boolean;
  message: string | null;
  node: INode | null;
  kernels: IKernel[];
}

/** What a person may ask of a kernel. */
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

/** The Jupyter event about something that people should hear of once. */
export const NOTICE_EVENT = 'https://schema.jupyter.org/jupyter_affinode/notice/v1';

/** The data of a notice; of a kernel, `text` is what comes after its name. */
export interface INoticeEvent {
  kernel_id: string | null;
  kind: NoticeKind;
  level: 'info' | 'warning';
  text: string;
}

/** The data of a residency event; enough to show the change before the next status is there. */
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
}
