import * as assert from 'node:assert';
import { test } from 'node:test';
import { offered, remedies } from '../src/actions';
import { IBlocker, INode, IStatus } from '../src/status';
import { UsedMemory } from '../src/shell/usedMemory';
import { kernel } from './examples';

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
  const waiting = kernel({ id: 'w', wait: { code: 'full', args: {}, blockers } });
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
  const node = { gpus: [{ used_bytes: 10 * GIB, total_bytes: 80 * GIB }] } as INode;
  const status = (resident_bytes: number, of = node) =>
    ({ node: of, kernels: [kernel({ resident_bytes })] }) as unknown as IStatus;
  const memory = new UsedMemory();
  assert.strictEqual(memory.of(status(4 * GIB))?.used, 10 * GIB);
  assert.strictEqual(memory.of(status(0))?.used, 6 * GIB);
  assert.strictEqual(memory.of(status(0, { ...node }))?.used, 10 * GIB); // a new look
  assert.strictEqual(memory.of({ ...status(0), node: { gpus: [] } } as unknown as IStatus), null);
  assert.strictEqual(memory.of(null), null);
});
