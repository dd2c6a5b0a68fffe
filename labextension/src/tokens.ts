import { Token } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { ISignal } from '@lumino/signaling';
import { ISettings } from './settings';
import { Action, IActionBody, IKernel, INoticeEvent, IStatus } from './status';

/** The ids of the commands; each acts on `kernelId`, or on the current notebook's kernel. */
export namespace CommandIDs {
  export const park = 'affinode:park';
  export const resume = 'affinode:resume';
  export const hold = 'affinode:hold';
  export const release = 'affinode:release';
  export const endProcess = 'affinode:end-process';
  export const openPanel = 'affinode:open-panel';
}

/**
 * Why there is no status, or why it may be wrong.
 *
 * - `missing`: the server has no such extension
 * - `refused`: the server does not let this person look
 * - `unreachable`: the server does not answer
 * - `controller`: the server cannot reach the GPU controller
 * - `version`: page and server are of different versions (the status is shown all the same)
 */
export interface IProblem {
  kind: 'missing' | 'refused' | 'unreachable' | 'controller' | 'version';
  message: string;
}

/** The one place in the page that knows the GPU state; every view asks it and listens to `changed`. */
export interface IAffinode {
  /** The last status; null before the first answer, and while the server gives none. */
  readonly status: IStatus | null;

  /** What is wrong; null when all is well. */
  readonly problem: IProblem | null;

  /** The person's settings. */
  readonly settings: ISettings;

  /** Emitted after `status`, `problem`, `settings` or a pending action changed. */
  readonly changed: ISignal<IAffinode, void>;

  /** Emitted when the controller has something to tell people, once. */
  readonly noticed: ISignal<IAffinode, INoticeEvent>;

  /** A kernel by its Jupyter id. */
  kernel(id: string): IKernel | undefined;

  /** A small number that stays with a kernel for as long as the page lives, for its colour. */
  hue(id: string): number;

  /** Whether an action on this kernel is under way. */
  pending(id: string): boolean;

  /** Ask the server now; never rejects, `problem` tells. */
  refresh(): Promise<void>;

  /** Act on a kernel; rejects with an `AffinodeError` whose message is for people. */
  act(id: string, action: Action, body?: IActionBody): Promise<void>;

  /** Keep the status fresh until the returned object is disposed; for views with figures that tick. */
  watch(): IDisposable;
}

export const IAffinode = new Token<IAffinode>(
  'jupyter-affinode:IAffinode',
  "The GPU state of the machine's kernels, kept up to date from the server's events."
);
