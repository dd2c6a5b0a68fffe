import * as assert from 'node:assert';
import { test } from 'node:test';
import { Ages, pageClock } from '../src/ages';
import { follow } from '../src/merge';
import { kernel, status } from './examples';

test('of what comes in another order the newest counts, and it grows older by the page’s clock', () => {
  const known = status([kernel({ residency: 'resident', as_of_s: 900_000 })]);
  const late = status([kernel({ residency: 'parked', as_of_s: 899_980 })]);
  assert.strictEqual(follow(known, late).kernels[0].residency, 'resident');
  const ages = new Ages();
  ages.hear(900_000);
  ages.hear(899_980);
  assert.ok(Math.round(ages.of(899_980)) === 20);
});

test('a kernel that woke on another machine, or after a reboot, is shown as it is now', () => {
  const known = status([kernel({ residency: 'parked', as_of_s: 900_000 })]);
  const woken = status([kernel({ residency: 'hibernated', as_of_s: 50 })]);
  assert.strictEqual(follow(known, woken).kernels[0].residency, 'hibernated');
  const ages = new Ages();
  ages.hear(900_000 + pageClock());
  ages.hear(50 + pageClock());
  assert.strictEqual(Math.round(ages.of(50 + pageClock())), 0);
});
