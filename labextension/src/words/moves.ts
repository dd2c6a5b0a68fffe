/** Moves of GPU memory: how much, how long, how fast. */

import { ILastMove, IMove } from '../status';
import { bytes, IWords, seconds, span } from './figures';

/** "Freeing: 12 GiB", "Getting it back: 12 GiB". */
export function moveText(move: Pick<IMove, 'kind' | 'bytes'>, trans: IWords): string {
  const size = bytes(move.bytes);
  return move.kind === 'park'
    ? trans.__('Freeing: %1', size)
    : trans.__('Getting it back: %1', size);
}

/** How much of a move is done, 0 to 1, which is an estimate: "about 40 %"; null: longer than that says. */
export function doneText(done: number | null, trans: IWords): string {
  return done === null
    ? trans.__('slower than expected')
    : trans.__('about %1 %', Math.floor(100 * done));
}

/** "Freed 12 GiB in 0.4 s (30 GiB/s), 3 min ago"; one from before the controller's start has no time. */
export function lastMoveText(kind: 'park' | 'resume', move: ILastMove, trans: IWords): string {
  const size = bytes(move.bytes);
  const what = kind === 'park' ? trans.__('Freed %1', size) : trans.__('Got %1 back', size);
  const took = seconds(move.duration_s, trans);
  const how =
    move.duration_s > 0
      ? trans.__('%1 in %2 (%3/s)', what, took, bytes(move.bytes / move.duration_s))
      : what;
  return move.ago_s === null ? how : trans.__('%1, %2 ago', how, span(move.ago_s, trans));
}

/** "back in about 0.4 s"; null where no speed is known yet. */
export function resumeEstimateText(
  estimate_s: number | null | undefined,
  trans: IWords
): string | null {
  return estimate_s === null || estimate_s === undefined
    ? null
    : trans.__('back in about %1', seconds(estimate_s, trans));
}
