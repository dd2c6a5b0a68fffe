import * as assert from 'node:assert';
import { test } from 'node:test';
import { IWarmPool } from '../src/status';
import { warmKernelText, warmPoolText } from '../src/words';
import { trans } from './examples';

/** Two kernels that are to be ready, and both are, but for `changes`. */
function pool(changes: Partial<IWarmPool> = {}): IWarmPool {
  return {
    name: 'model',
    display_name: 'Model loaded',
    count: 2,
    ready: 2,
    making: 0,
    failed: null,
    note: null,
    kernels: [],
    ...changes
  };
}

test('of warm kernels it is said how many are ready, and why not more', () => {
  assert.strictEqual(warmPoolText(pool(), trans), '2 of 2 ready');
  assert.strictEqual(
    warmPoolText(pool({ ready: 1, making: 1 }), trans),
    '1 of 2 ready, 1 being made'
  );
  const failed = pool({ ready: 0, failed: 'Traceback' });
  assert.strictEqual(warmPoolText(failed, trans), '0 of 2 ready: its prelude failed');
  const bounded = pool({ ready: 1, note: 'a user may have 1 at a time' });
  assert.strictEqual(warmPoolText(bounded, trans), '1 of 2 ready: a user may have 1 at a time');
});

test('a warm kernel says when it was made and what it takes, in RAM or on disk', () => {
  const kernel = { id: 'a', since: '13:11 CET', bytes: 2 ** 31, is_on_disk: false };
  assert.strictEqual(warmKernelText(kernel, trans), 'made at 13:11 CET, 2 GiB of RAM');
  const onDisk = { ...kernel, is_on_disk: true };
  assert.strictEqual(warmKernelText(onDisk, trans), 'made at 13:11 CET, 2 GiB on disk');
});
