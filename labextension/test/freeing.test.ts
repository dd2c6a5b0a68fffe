import * as assert from 'node:assert';
import { test } from 'node:test';
import { freeIdleText, givesText, keepChoices } from '../src/words';
import { kernel, trans } from './examples';

test('freeing says what it gives and how soon that is back', () => {
  const one = kernel({ resident_bytes: 1.5 * 2 ** 30, resume_estimate_s: 0.7 });
  assert.strictEqual(givesText(one, trans), 'gives 1.5 GiB, back in about 0.7 s');
  assert.strictEqual(givesText({ ...one, resume_estimate_s: null }, trans), 'gives 1.5 GiB');
  assert.strictEqual(freeIdleText(6.2 * 2 ** 30, trans), 'Free all my idle (6.2 GiB)');
});

test('a notebook is kept for an hour, until the end of the working day, or tonight', () => {
  const minutes = (hour: number) =>
    keepChoices(new Date(2026, 2, 4, hour), trans).map(choice => choice.minutes);
  assert.deepStrictEqual(minutes(9), [60, 8 * 60, 15 * 60 - 1]);
  assert.deepStrictEqual(minutes(17), [60, 7 * 60 - 1], 'the working day is over');
  assert.deepStrictEqual(minutes(23), [60]);
});
