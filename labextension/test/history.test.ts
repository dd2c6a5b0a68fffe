import { Signal } from '@lumino/signaling';
import * as assert from 'node:assert';
import { test } from 'node:test';
import {
  followed,
  ILane,
  IPast,
  later,
  PastState,
  sampled,
  spans,
  sums
} from '../src/history/past';
import { found, moved, pointed } from '../src/history/places';
import { PastStore } from '../src/history/PastStore';
import { IAffinode, IChange } from '../src/tokens';
import { laneTitle, spanText, sumsText } from '../src/words';
import { gpu, kernel, status, trans } from './examples';

const SINCE = 1_000_000;
const ON_GPU = [
  { uuid: 'GPU-1', index: 0, resident_bytes: 1, parked_bytes: 0, unmovable_bytes: 0 }
];

/** A lane whose changes come after so many seconds. */
function lane(id: string, ...changes: [number, PastState, string?][]): ILane {
  return {
    kernel_id: id,
    own: true,
    user: null,
    name: null,
    path: `${id}.ipynb`,
    changes: changes.map(([after, state, cause]) => ({
      at: SINCE + after,
      state,
      cause: cause ?? null
    }))
  };
}

/** Ten minutes of one GPU. */
function past(...lanes: ILane[]): IPast {
  return {
    since: SINCE,
    until: SINCE + 600,
    step_s: 10,
    gpus: [
      {
        uuid: 'GPU-1',
        index: 0,
        name: 'NVIDIA H100',
        total_bytes: 80,
        used_bytes: new Array<number>(60).fill(40),
        utilization_percent: new Array<number>(60).fill(5),
        lanes,
        others: null
      }
    ]
  };
}

const A = lane(
  'a',
  [0, 'resident'],
  [100, 'parked', 'room'],
  [400, 'queued'],
  [410, 'resident', 'cell']
);

test('what was given back and waited is the sum of what is drawn', () => {
  const b = lane('b', [0, 'queued'], [1, 'resident'], [540, 'parked']);
  assert.deepStrictEqual(sums(past(A, b)), { givenBack: 360, waited: 11 });
  assert.strictEqual(
    sumsText({ givenBack: 42 * 60, waited: 11 }, trans),
    '42 GPU minutes given back, 11 s waited'
  );
  assert.strictEqual(
    sumsText({ givenBack: 1, waited: 0 }, trans),
    '1 GPU second given back, 0 s waited'
  );
});

test('a kernel that waits for two GPUs waits once', () => {
  const one = past(lane('a', [590, 'queued']));
  const two = { ...one, gpus: [...one.gpus, { ...one.gpus[0], uuid: 'GPU-2' }] };
  assert.strictEqual(sums(two).waited, 10);
});

test('events go on where the answer ended, and a move under way changes nothing', () => {
  const at = SINCE + 601;
  const changes = (residency: 'parking' | 'parked' | 'hibernated' | 'resident' | 'none') =>
    followed(past(A), 'a', kernel({ residency, gpus: ON_GPU, reason_code: 'idle' }), at).gpus[0]
      .lanes[0].changes;
  assert.strictEqual(changes('parking'), A.changes);
  assert.strictEqual(changes('resident').length, 4);
  assert.deepStrictEqual(changes('parked')[4], { at, state: 'parked', cause: 'idle' });
  assert.strictEqual(changes('hibernated')[4].state, 'parked'); // it is off the GPU as well
  assert.strictEqual(changes('none')[4].state, 'none');
  const gone = followed(past(A), 'a', undefined, at);
  assert.strictEqual(gone.gpus[0].lanes[0].changes[4].state, 'none');
});

test('a kernel that was not there gets a lane, also while it waits for its first memory', () => {
  const waits = kernel({ id: 'new', residency: 'queued', path: 'new.ipynb' });
  const grown = followed(past(A), 'new', waits, SINCE + 601);
  assert.deepStrictEqual(
    grown.gpus[0].lanes.map(each => each.path),
    ['a.ipynb', 'new.ipynb']
  );
  const nothing = past(A);
  assert.strictEqual(followed(nothing, 'new', kernel({ id: 'new' }), SINCE + 601), nothing);
});

test('what changes while the past is asked for goes on where the answer ended', async () => {
  const page = Object.assign(new EventTarget(), { hidden: false });
  Object.assign(globalThis, { document: page, window: globalThis });
  const owner = {};
  const changed = new Signal<object, Partial<IChange>>(owner);
  let answer: (past: IPast) => void = () => undefined;
  const affinode = {
    changed,
    kernel: () => kernel({ residency: 'parked', gpus: ON_GPU, reason_code: 'idle' }),
    past: () => new Promise<IPast>(done => (answer = done)),
    stale: false,
    status: status([])
  };
  const store = new PastStore(affinode as unknown as IAffinode, 600);
  changed.emit({ kernels: new Set(['a']) });
  answer(past(A));
  await new Promise(done => setImmediate(done));
  const changes = store.past?.gpus[0].lanes[0].changes ?? [];
  assert.strictEqual(changes[changes.length - 1].state, 'parked');
  store.dispose();
});

test('the window moves on, and does not grow with time or with events', () => {
  let shown = past(A);
  for (let second = 601; second < 8000; second += 1) {
    const residency = second % 2 ? 'parked' : 'resident';
    shown = later(shown, SINCE + second);
    shown = followed(shown, 'a', kernel({ residency, gpus: ON_GPU }), SINCE + second);
    shown = sampled(shown, [gpu({ used_bytes: second })], SINCE + second);
  }
  const [{ lanes, used_bytes }] = shown.gpus;
  assert.strictEqual(used_bytes.length, 60);
  assert.strictEqual(used_bytes[59], 7999);
  assert.ok(lanes[0].changes.length <= 602, String(lanes[0].changes.length));
  assert.ok(shown.until - shown.since <= 600);
  assert.ok(lanes[0].changes[0].at >= shown.since);
  assert.deepStrictEqual(later(past(lane('b', [0, 'none'])), SINCE + 611).gpus[0].lanes, []);
});

/** What stands at a place: the lane, and how many seconds after the beginning its stretch began. */
function shownAt(shown: IPast, place: ReturnType<typeof moved>): [string, number] | null {
  const there = place ? found(shown, place) : null;
  return there && [there.lane.kernel_id, there.span.from - SINCE];
}

/** What these keys lead to, one after the other. */
function walked(shown: IPast, ...keys: string[]): ReturnType<typeof moved> {
  return keys.reduce<ReturnType<typeof moved>>((at, key) => moved(shown, at ?? null, key), null);
}

test('keys go from stretch to stretch, and from lane to lane at the same time', () => {
  const shown = past(A, lane('b', [0, 'resident'], [300, 'parked', 'idle']));
  const walk = (...keys: string[]) => shownAt(shown, walked(shown, ...keys));
  assert.deepStrictEqual(walk('ArrowDown'), ['a', 410]);
  assert.deepStrictEqual(walk('ArrowDown', 'ArrowLeft', 'ArrowLeft'), ['a', 100]);
  assert.deepStrictEqual(walk('ArrowDown', 'Home', 'ArrowLeft'), ['a', 0]);
  assert.deepStrictEqual(walk('ArrowDown', 'Home', 'End', 'ArrowRight'), ['a', 410]);
  assert.deepStrictEqual(walk('ArrowDown', 'Home', 'ArrowDown'), ['b', 0]);
  assert.deepStrictEqual(walk('ArrowDown', 'ArrowDown', 'ArrowDown'), ['b', 300]);
  assert.strictEqual(walked(shown, 'ArrowDown', 'Escape'), null);
  assert.strictEqual(moved(shown, null, 'Escape'), undefined, 'it leaves the panel');
  assert.strictEqual(moved(past(), null, 'ArrowDown'), undefined);
  assert.deepStrictEqual(shownAt(shown, pointed(shown, '0 1', SINCE + 350)), ['b', 300]);
  assert.strictEqual(pointed(shown, 'others', SINCE + 350), null);
  assert.strictEqual(found(shown, { gpu: 'GPU-1', kernel: 'c', at: SINCE }), null);
});

test('a lane that ended long ago does not take the keyboard away from the present', () => {
  const ended = lane('ended', [0, 'resident'], [50, 'none']);
  const late = lane('late', [200, 'resident']);
  const shown = past(ended, A, late);
  assert.deepStrictEqual(shownAt(shown, walked(shown, 'ArrowDown')), ['ended', 0]);
  assert.deepStrictEqual(shownAt(shown, walked(shown, 'ArrowDown', 'ArrowDown')), ['a', 410]);
  const before = ['ArrowDown', 'ArrowDown', 'Home', 'ArrowDown', 'ArrowUp'];
  assert.deepStrictEqual(shownAt(shown, walked(shown, ...before)), ['a', 0], 'it goes back');
});

test('what is looked at stays the same while lanes and stretches come and go', () => {
  const ended = lane('ended', [0, 'resident'], [5, 'none']);
  const other = { ...past(ended).gpus[0], uuid: 'GPU-0' };
  let shown = past(ended, A);
  const place = walked(shown, 'ArrowDown', 'ArrowDown', 'ArrowLeft', 'ArrowLeft');
  const now = walked(shown, 'ArrowDown', 'ArrowDown');
  shown = later(shown, SINCE + 650);
  shown = followed(
    shown,
    'a',
    kernel({ residency: 'parked', gpus: ON_GPU, reason_code: 'idle' }),
    SINCE + 650
  );
  shown = { ...shown, gpus: [other, ...shown.gpus] };
  assert.deepStrictEqual(
    shown.gpus[1].lanes.map(each => each.kernel_id),
    ['a']
  );
  assert.deepStrictEqual(shownAt(shown, place), ['a', 100]);
  assert.deepStrictEqual(shownAt(shown, now), ['a', 410]);
  shown = later(shown, SINCE + 900);
  assert.deepStrictEqual(
    shownAt(shown, place),
    ['a', shown.since - SINCE],
    'as far back as it goes'
  );
});

test('a stretch says when and why', () => {
  const [, freed, waited, back] = spans(A, SINCE + 600);
  assert.match(
    spanText(freed, SINCE + 600, trans),
    /^GPU freed from \S.* to .* \(5 min\): it made room for another notebook$/
  );
  assert.match(spanText(waited, SINCE + 600, trans), /^Waiting from .* \(10 s\)$/);
  assert.match(spanText(back, SINCE + 600, trans), /^On the GPU since .*: a cell needed it$/);
  assert.strictEqual(laneTitle({ ...A, own: false, path: null }, trans), 'Another server');
});
