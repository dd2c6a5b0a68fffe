/**
 * What the server's `affinode/api/status` says, and the events that say what changed since.
 *
 * Sizes are bytes, times are seconds. The server's own words (`text`, `message`, `reason`) are English and for the command
 * line; the Lab makes its sentences of codes and arguments. A status of another version is not read (`problems.ts`).
 */

import * as Controller from './controllerTypes';
import { Residency } from './controllerTypes';

export { Residency };
export type { IActivity, IGpu } from './controllerTypes';

/** A process of a kernel; another server's has no command. */
export type IProcess = Omit<Controller.IKernel['processes'][number], 'command'> & {
  command: string | null;
};

/** A kernel of this server that can hibernate. */
export interface IHibernation {
  /** Where it is, or which way it goes; null: it runs. Its residency is "hibernated" in each of these. */
  state: 'hibernating' | 'hibernated' | 'waking' | null;
  /** What its image takes on disk, so far. */
  bytes: number;
  /** For how long it has been so. */
  since_s: number;
  /** How long it takes until the GPU memory is back, too. */
  estimate_s: number;
  /** Why it did not hibernate, or was not woken, the last time; the server's own words. */
  refusal: string | null;
  /** When its image is deleted by age, as a time of day: "13:11 CET"; null while it is not about to be. */
  deleted_at: string | null;
  /** Why it could not be woken now; the server's own words. */
  objection: string | null;
}

/** One kernel; another server's has no name and no path. */
export interface IKernel extends Omit<Controller.IKernel, 'processes'> {
  /** Null where it cannot hibernate. */
  hibernation: IHibernation | null;
  /** Of this server. */
  own: boolean;
  paths: string[];
  processes: IProcess[];
}

/** A kernel's share of one GPU. */
export type IKernelOnGpu = IKernel['gpus'][number];

/** Memory on its way. */
export type IMove = NonNullable<IKernel['move']>;

/** What a waiting kernel waits for; the most important blocker first. */
export type IWait = NonNullable<IKernel['wait']>;

/** A kernel, or a program outside, that is in the way of a waiting kernel; another user's kernel has no id. */
export type IBlocker = IWait['blockers'][number];

/** The last park or resume that ended. */
export type ILastMove = NonNullable<IKernel['last_park']>;

/** Figures and words that a code's sentence needs; none of them must be there. */
export interface ICodeArgs {
  /** For which notebooks: the user's own or another user's. */
  for?: 'own' | 'other' | null;
  bytes?: number | null;
  [name: string]: unknown;
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
export type IUnmanaged = NonNullable<Controller.IGpu['unmanaged']>[number];

/** The machine. */
export type INode = Controller.INode;

/** When idle kernels are parked, and whether this user may change that. */
export type IPolicy = NonNullable<INode['policy']>;

/** All other users' kernels, as sums. */
export type IOthers = NonNullable<INode['others']>;

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
  /** When its server ended, or when it was hibernated, as a time of day: "13:11 CET". */
  since: string;
  /** What its image takes on disk, where it is hibernated. */
  image_bytes: number | null;
  /** As of a kernel of this server (IHibernation). */
  deleted_at: string | null;
  objection: string | null;
}

/** What there is of one kernelspec's warm kernels: kernels that no notebook has had yet. */
export interface IWarmPool {
  /** The kernelspec. */
  name: string;
  display_name: string;
  /** How many there should be; are ready; are being made. */
  count: number;
  ready: number;
  making: number;
  /** How its prelude failed. */
  failed: string | null;
  /** Why there are fewer than there should be. */
  note: string | null;
  kernels: IWarmKernel[];
}

/** One that is ready. */
export interface IWarmKernel {
  id: string;
  /** When it was made, as a time of day: "13:11 CET". */
  since: string;
  /** What it takes of host memory, or of the disk. */
  bytes: number;
  is_on_disk: boolean;
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
  /** Absent in the answer of an older server. */
  warm?: IWarmPool[];
}

/** What a user may ask of a kernel. */
export type Action =
  'park' | 'resume' | 'hold' | 'release' | 'focus' | 'end' | 'hibernate' | 'wake' | 'stay';

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
export type INoticeEvent = Controller.INotice;

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
