import { Token } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { ISignal } from '@lumino/signaling';
import { Possible } from './actions';
import { IPast } from './history/past';
import { IRate } from './rates';
import { ISettings } from './settings';
import {
  Action,
  IActionBody,
  IActivity,
  IKeptKernel,
  IKernel,
  INoticeEvent,
  IPolicy,
  IStatus
} from './status';

/** The ids of the commands; each acts on `kernelId`, or on the current notebook's kernel. */
export namespace CommandIDs {
  export const park = 'affinode:park';
  export const resume = 'affinode:resume';
  export const hold = 'affinode:hold';
  export const release = 'affinode:release';
  export const hibernate = 'affinode:hibernate';
  export const wake = 'affinode:wake';
  export const stay = 'affinode:stay';
  export const stopWaiting = 'affinode:stop-waiting';
  export const restartLost = 'affinode:restart-lost';
  export const openKernel = 'affinode:open-kernel';
  export const endKernel = 'affinode:end-kernel';
  export const endProcess = 'affinode:end-process';
  export const openPanel = 'affinode:open-panel';
}

/**
 * Why there is no status, or why it may be wrong.
 *
 * - `missing`: the server has no such extension
 * - `refused`: the server does not let this user look
 * - `unreachable`: the server does not answer
 * - `controller`: the server cannot reach the GPU controller
 * - `starting`: the GPU controller has not answered yet
 * - `disabled`: the server's configuration switches this off
 * - `remote`: a kernel gateway starts the server's kernels on another machine
 * - `version`: page, server or controller are of different versions, and what they say is not shown
 */
export interface IProblem {
  kind:
    | 'missing'
    | 'refused'
    | 'unreachable'
    | 'controller'
    | 'starting'
    | 'disabled'
    | 'remote'
    | 'version';
  message: string;
}

/** What changed; an event or an answer that says nothing new still moves the clocks, with no kernel named. */
export interface IChange {
  /** The kernels that came, went or changed in anything but clocks and counters. */
  kernels: ReadonlySet<string>;
  /** Whether status, machine or problem changed, not kernels alone. */
  machine: boolean;
}

/** The one place in the page that knows the GPU state; every view asks it and listens to `changed`. */
export interface IAffinode {
  /** The last status; null before the first answer, and where the server has none to give. */
  readonly status: IStatus | null;

  /** Whether the last try failed, so that `status` is from before; no action is possible then. */
  readonly stale: boolean;

  /** When the status was last true, as `Date.now()` gives it; null before the first answer. */
  readonly updated: number | null;

  /** What is wrong; null when all is well. */
  readonly problem: IProblem | null;

  /** The user's settings. */
  readonly settings: ISettings;

  /** Emitted after `status`, `problem`, `settings` or a pending action changed, once for all that came together. */
  readonly changed: ISignal<IAffinode, IChange>;

  /** Emitted with the actions that became possible or impossible for some kernel: only their commands need a look. */
  readonly actionsChanged: ISignal<IAffinode, ReadonlySet<Possible>>;

  /** Emitted when the controller has something to tell users, once. */
  readonly noticed: ISignal<IAffinode, INoticeEvent>;

  /** A kernel by its Jupyter id. */
  kernel(id: string): IKernel | undefined;

  /** Seconds since the figures of a kernel were true: what its clocks have run on since. Added to what counts up, it never falls back. */
  age(id: string): number;

  /** CUDA calls per second of the last minute, the oldest first, one for each look; empty before the second look. */
  rates(id: string): IRate[];

  /** A small number that stays with a kernel for as long as the page lives, for its colour. */
  hue(id: string): number;

  /** The action on this kernel that was asked for and is not answered yet; null where there is none. */
  pending(id: string): Possible | null;

  /** Ask the server now; never rejects, `problem` tells. */
  refresh(): Promise<void>;

  /** Act on a kernel; rejects with an `AffinodeError` whose message is for users. */
  act(id: string, action: Action, body?: IActionBody): Promise<void>;

  /** Interrupt a kernel through Jupyter, which ends its wait. */
  interrupt(id: string): Promise<void>;

  /** Restart a kernel through Jupyter. */
  restart(id: string): Promise<void>;

  /** Shut down a kernel that no notebook shows. */
  end(kernel: IKeptKernel): Promise<void>;

  /** Change when idle kernels are freed, where `policy.may_change`. */
  changePolicy(change: Partial<IPolicy>): Promise<void>;

  /** A kernel's CUDA calls; they are counted while this is asked for. */
  activity(id: string): Promise<IActivity>;

  /** Where kernels' memory was in the last seconds, at most eight hours; rejects with an `AffinodeError`. */
  past(seconds: number): Promise<IPast>;

  /** Keep the status fresh until the returned object is disposed; for views with figures that tick. */
  watch(): IDisposable;
}

export const IAffinode = new Token<IAffinode>(
  'jupyter-affinode:IAffinode',
  "The GPU state of the machine's kernels, kept up to date from the server's events."
);
