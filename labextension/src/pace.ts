/** How often the server is asked. */

import { IDisposable } from '@lumino/disposable';
import { IPoll, Poll } from '@lumino/polling';
import { IProblem } from './tokens';

/** While no view watches: programs outside Jupyter change what is in use, and no event tells of that. */
const SLOW_MS = 65_000;

/** While the server does not answer: at first, and at most. */
const LOST_MS = 2000;
const LONGEST_LOST_MS = 10_000;

/** The longest pause between looks that fail while the server answers. */
const LONGEST_MS = 60_000;

/** For so long after an outage JupyterLab may not be connected with the server's events yet: it tries at pauses of up to 30 s. */
const DEAF_MS = 40_000;
const DEAF_PACE_MS = 5000;

/** What the pace depends on. */
export interface IPaceFacts {
  hasGpu: boolean;
  /** Whether events may be missed. */
  isDeaf?: boolean;
  isWatched: boolean;
  problem: IProblem | null;
  /** The setting, in seconds. */
  refreshInterval: number;
}

/** The pauses between two looks; after failures they grow. */
export function paceOf(facts: IPaceFacts): IPoll.Frequency {
  if (facts.problem?.kind === 'unreachable') {
    return { interval: LOST_MS, backoff: true, max: LONGEST_LOST_MS };
  }
  const watched = facts.refreshInterval * 1000;
  const unwatched = facts.isDeaf ? DEAF_PACE_MS : SLOW_MS;
  const interval = facts.isWatched ? watched : facts.hasGpu ? unwatched : Poll.NEVER;
  return { interval, backoff: true, max: Math.max(LONGEST_MS, SLOW_MS, watched) };
}

/** Asks on time, at the pace that is needed; not while the page is hidden. */
export class PacedLooks implements IDisposable {
  /** `look` rejects while the server does not answer, for the pauses to grow. */
  constructor(look: () => Promise<void>) {
    this._poll = new Poll({
      name: 'jupyter-affinode:status',
      auto: false,
      factory: look,
      frequency: { interval: Poll.NEVER, backoff: true, max: Poll.NEVER },
      standby: 'when-hidden'
    });
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  dispose(): void {
    void this._poll.stop(); // clears its timer, which disposing does not
    this._poll.dispose();
  }

  /** Ask as often as is needed now. */
  keep(facts: IPaceFacts): void {
    this._hadGpu ||= facts.hasGpu;
    const isLost = facts.problem?.kind === 'unreachable';
    if (this._isLost && !isLost) {
      this._deafUntil = performance.now() + DEAF_MS;
    }
    this._isLost = isLost;
    const isDeaf = performance.now() < this._deafUntil;
    const pace = paceOf({ ...facts, hasGpu: this._hadGpu, isDeaf });
    if (pace.interval !== this._poll.frequency.interval) {
      this._poll.frequency = pace;
      void this._poll.schedule(); // after that pause, whatever was planned before
    }
  }

  /** Ask at once. */
  now(): void {
    void this._poll.refresh();
  }

  private readonly _poll: Poll;
  /** A machine that had a GPU has it again once its server answers, or lets the user in. */
  private _hadGpu = false;
  private _isLost = false;
  private _deafUntil = 0;
}
