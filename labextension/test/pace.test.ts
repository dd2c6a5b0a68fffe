import { Poll } from '@lumino/polling';
import * as assert from 'node:assert';
import { test } from 'node:test';
import { PacedLooks } from '../src/pace';
import { IProblem } from '../src/tokens';

test('after an outage it is asked often for a while, as events may be missed', context => {
  let now = 1000;
  context.mock.method(performance, 'now', () => now);
  const looks = new PacedLooks(() => Promise.resolve());
  context.after(() => looks.dispose());
  const { _poll } = looks as unknown as { _poll: Poll };
  const pause = (problem: IProblem | null) => {
    looks.keep({ hasGpu: true, isWatched: false, problem, refreshInterval: 6 });
    return _poll.frequency.interval;
  };
  const usual = pause(null);
  assert.ok(usual >= 60_000);
  pause({ kind: 'unreachable', message: '' });
  assert.ok(pause(null) <= 5000);
  now += 31_000; // JupyterLab's longest pause between two tries
  assert.ok(pause(null) <= 5000);
  now += 30_000;
  assert.strictEqual(pause(null), usual);
});
