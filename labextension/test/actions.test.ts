import * as assert from 'node:assert';
import { test } from 'node:test';
import { idle, offered, remedies } from '../src/actions';
import { usedMemory } from '../src/memory';
import { merge } from '../src/merge';
import { IBlocker } from '../src/status';
import { gpu, kernel, node, status } from './examples';

const GIB = 1024 ** 3;

test('in each state the useful actions are offered, the first one first', () => {
  const resident = kernel({ residency: 'resident', resident_bytes: 1 });
  assert.deepStrictEqual(offered(kernel()), []);
  assert.deepStrictEqual(offered(resident), ['park', 'hold']);
  assert.deepStrictEqual(offered({ ...resident, held_for_s: 60 }), ['park', 'release']);
  assert.deepStrictEqual(offered(kernel({ residency: 'parked' })), ['resume']);
  assert.deepStrictEqual(offered(kernel({ residency: 'queued' })), ['cancel-wait']);
  assert.deepStrictEqual(offered(kernel({ residency: 'lost' })), ['restart']);
  assert.deepStrictEqual(offered({ ...resident, own: false }), []);
});

test('what resolves a wait is done to one’s own kernels alone', () => {
  const kernels = [
    kernel({ id: 'held', residency: 'resident', resident_bytes: 1, held_for_s: 60 }),
    kernel({ id: 'idle', residency: 'resident', resident_bytes: 1 }),
    kernel({ id: 'busy', residency: 'resident', resident_bytes: 1 }),
    kernel({ id: 'other', own: false, residency: 'resident', resident_bytes: 1 })
  ];
  const blocker = (kernel_id: string | null, why: IBlocker['why']) =>
    ({ kernel_id, own: true, why, free_in_s: null }) as IBlocker;
  const blockers = [
    blocker('held', 'held'),
    blocker('idle', 'idle'),
    blocker('busy', 'computing'),
    blocker('other', 'idle'),
    blocker('gone', 'idle'),
    blocker(null, 'outside')
  ];
  const waiting = kernel({ id: 'w', wait: { code: 'full', args: { bytes: 0 }, blockers } });
  const found = remedies(waiting, id => kernels.find(each => each.id === id));
  assert.deepStrictEqual(
    found.map(remedy => [remedy.action, remedy.kernel.id]),
    [
      ['release', 'held'],
      ['park', 'idle'],
      ['open', 'busy']
    ]
  );
});

test('memory in use follows events between two looks', () => {
  const share = (resident_bytes: number) => [
    { uuid: 'GPU-1', index: 0, resident_bytes, parked_bytes: 0, unmovable_bytes: 0 }
  ];
  const machine = node({ gpus: [gpu({ used_bytes: 10 * GIB, managed_bytes: 4 * GIB })] });
  const looked = status([kernel({ resident_bytes: 4 * GIB, gpus: share(4 * GIB) })], machine);
  const freed = merge(looked, 'a', { residency: 'parked', resident_bytes: 0, gpus: share(0) });
  assert.deepStrictEqual(
    [looked, freed].map(each => each.node && usedMemory(each.node).used),
    [10 * GIB, 6 * GIB]
  );
});

test('all that is idle leaves out what computes, is kept, is freed or is not the user’s', () => {
  const resident = {
    residency: 'resident',
    resident_bytes: 1,
    idle_s: 60,
    eligible_in_s: 5
  } as const;
  const kernels = [
    kernel({ ...resident, id: 'idle' }),
    kernel({ ...resident, id: 'eligible', eligible: true, eligible_in_s: null }),
    kernel({ ...resident, id: 'computes', cell_open: true }),
    kernel({ ...resident, id: 'kept', held_for_s: 100 }),
    kernel({ ...resident, id: 'not ours', own: false }),
    kernel({ ...resident, id: 'freed', residency: 'parked' }),
    kernel({ ...resident, id: 'never freed', eligible_in_s: null })
  ];
  assert.deepStrictEqual(
    idle(kernels).map(each => each.id),
    ['idle', 'eligible']
  );
});
