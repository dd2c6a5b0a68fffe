import * as assert from 'node:assert';
import { test } from 'node:test';
import { canHold, canPark, canRelease, canResume, endable } from '../src/actions';
import { Hues } from '../src/hues';
import { gpuName, gpuSegments, parkedSegments, whichGpu } from '../src/memory';
import { merge } from '../src/merge';
import { StuckReason } from '../src/controllerTypes';
import { IKernelOnGpu, INode } from '../src/status';
import { gpu as anyGpu, kernel, process, status, trans } from './examples';

const gpu = anyGpu({
  name: 'A GPU',
  total_bytes: 1000,
  used_bytes: 700,
  free_bytes: 300,
  managed_bytes: 600,
  unmanaged_bytes: 100,
  unmanaged: null,
  utilization_percent: null
});

const share = (resident_bytes: number, unmovable_bytes = 0) => ({
  uuid: 'GPU-1',
  index: 0,
  resident_bytes,
  parked_bytes: 0,
  unmovable_bytes
});

test('the parts of a GPU add up to all of it', () => {
  const kernels = [
    kernel({ id: 'a', gpus: [share(300, 50)] }),
    kernel({ id: 'b', gpus: [] }),
    kernel({ id: 'c', own: false, gpus: [share(150)] }),
    kernel({ id: 'uid-7/d', own: false, gpus: [share(100)] })
  ];
  const segments = gpuSegments(gpu, kernels, trans);
  assert.deepStrictEqual(
    segments.map(segment => [segment.kind, segment.bytes]),
    [
      ['kernel', 350],
      ['kernel', 150],
      ['others', 100],
      ['unmanaged', 100],
      ['free', 300]
    ]
  );
  assert.strictEqual(
    segments.reduce((sum, segment) => sum + segment.bytes, 0),
    gpu.total_bytes
  );
});

test('what the contexts of kernels take is a part of its own', () => {
  const told = { ...gpu, managed_bytes: 500, context_bytes: 120, unmanaged_bytes: 80 };
  const segments = gpuSegments(told, [kernel({ id: 'a', gpus: [share(500)] })], trans);
  assert.deepStrictEqual(
    segments.map(segment => [segment.kind, segment.bytes]),
    [
      ['kernel', 500],
      ['contexts', 120],
      ['unmanaged', 80],
      ['free', 300]
    ]
  );
});

test('of several GPUs it is said which', () => {
  const two = [gpu, { ...gpu, uuid: 'GPU-2', index: 1 }];
  const away = { uuid: 'GPU-2', index: 0, resident_bytes: 0, parked_bytes: 9, unmovable_bytes: 0 };
  const said = (gpus: IKernelOnGpu[]) => whichGpu(kernel({ gpus }), two, trans);
  assert.strictEqual(gpuName(gpu, [gpu], trans), 'A GPU');
  assert.strictEqual(gpuName(two[1], two, trans), 'GPU 1: A GPU');
  assert.strictEqual(gpuName({ ...gpu, name: 'NVIDIA H200' }, [gpu], trans), 'H200');
  assert.strictEqual(said([share(5)]), 'on GPU 0');
  assert.strictEqual(said([away]), 'was on GPU 1');
  assert.strictEqual(said([share(5), { ...away, resident_bytes: 9 }]), 'on GPUs 0, 1');
  assert.strictEqual(said([]), null);
  assert.strictEqual(whichGpu(kernel({ gpus: [share(5)] }), [gpu], trans), null);
});

test('parked memory is shown by kernel, and what is not ours as others', () => {
  const node = { host: { parked_bytes: 900, copy_bytes: 500 } } as INode;
  const kernels = [kernel({ id: 'a', parked_bytes: 800, copy_bytes: 400 }), kernel({ id: 'b' })];
  const segments = parkedSegments(node, kernels, trans);
  assert.deepStrictEqual(
    segments.map(segment => [segment.key, segment.bytes]),
    [
      ['a', 400],
      ['others', 100]
    ]
  );
  assert.deepStrictEqual(parkedSegments({ host: { copy_bytes: 0 } } as INode, [], trans), []);
});

test('a hue stays with its kernel and is given again only when that is gone', () => {
  const hues = new Hues();
  assert.deepStrictEqual([hues.of('a'), hues.of('b'), hues.of('a')], [0, 1, 0]);
  hues.keep(['b']);
  assert.deepStrictEqual([hues.of('c'), hues.of('b'), hues.of('d')], [0, 1, 2]);
});

test('only what makes sense can be asked', () => {
  const resident = kernel({ residency: 'resident', resident_bytes: 1 });
  assert.ok(
    canPark(resident) && !canResume(resident) && canHold(resident) && !canRelease(resident)
  );
  assert.ok(!canPark({ ...resident, own: false }) && !canHold({ ...resident, own: false }));
  assert.ok(
    canPark({ ...resident, held_for_s: 60 }) && canRelease({ ...resident, held_for_s: 60 })
  );
  assert.ok(!canPark({ ...resident, resident_bytes: 0 }));
  const parked = kernel({ residency: 'parked', parked_bytes: 1 });
  assert.ok(canResume(parked) && !canPark(parked) && !canHold(parked));
  assert.ok(!canHold(kernel({ residency: 'lost' })));
});

test('without NVML only what the kernels have is shown', () => {
  const blind = {
    ...gpu,
    total_bytes: null,
    free_bytes: null,
    unmanaged_bytes: null,
    managed_bytes: 350
  };
  const segments = gpuSegments(blind, [kernel({ id: 'a', gpus: [share(300, 50)] })], trans);
  assert.deepStrictEqual(
    segments.map(segment => [segment.kind, segment.bytes]),
    [['kernel', 350]]
  );
});

test('a stuck process may be ended by its owner, and by any user here if its owner has no session any more', () => {
  const stuck = (number: number, reason: StuckReason) =>
    process({ number, stuck: { reason, text: 'a reason' } });
  const processes = [process(), stuck(2, 'lost'), stuck(3, 'parent-gone')];
  const numbers = (own: boolean) => endable(kernel({ own, processes })).map(one => one.number);
  assert.deepStrictEqual(numbers(true), [2, 3]);
  assert.deepStrictEqual(numbers(false), [3]);
});

test('a change of a kernel that moves no memory leaves the machine as it is', () => {
  const before = status([kernel({ id: 'a' }), kernel({ id: 'b' })]);
  const after = merge(before, 'a', { cell_open: true, calls: 5 });
  assert.ok(after.kernels[0].cell_open);
  assert.strictEqual(after.node, before.node);
  assert.strictEqual(after.kernels[1], before.kernels[1]);
  assert.notStrictEqual(merge(before, 'a', { copy_bytes: 5 }).node, before.node);
});
