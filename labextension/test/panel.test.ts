import * as assert from 'node:assert';
import { test } from 'node:test';
import { done } from '../src/panel/kernels/howFar';
import { inPlace, isOpenAtFirst, isProblem, SectionId, sections } from '../src/panel/kernels/rows';
import { IKernel } from '../src/status';
import { doneText, folders } from '../src/words';
import { kernel, process, trans } from './examples';

const ALL = { text: '', here: false };

const STUCK = process({ command: null, stuck: { reason: 'lost', text: '' } });

test('each kernel is in one section, by whose it is and where its memory is', () => {
  const kernels = [
    kernel({ id: 'a', residency: 'resident' }),
    kernel({ id: 'b', residency: 'queued', place: 2 }),
    kernel({ id: 'c', residency: 'queued', place: 1 }),
    kernel({ id: 'd', residency: 'parked' }),
    kernel({ id: 'e', residency: 'lost' }),
    kernel({ id: 'f' }),
    kernel({ id: 'g', own: false, residency: 'queued' }),
    kernel({ id: 'h', residency: 'resident', processes: [STUCK] }),
    kernel({ id: 'i', own: false, residency: 'lost' }),
    kernel({ id: 'uid-7/j', own: false, user: 'bob' }),
    kernel({ id: 'uid-6/k', own: false, user: 'alice', residency: 'parked' })
  ];
  const found = [...sections(kernels, ALL, trans)].map(([section, rows]) => [
    section,
    rows.map(each => each.id.slice(-1)).join('')
  ]);
  assert.deepStrictEqual(found, [
    ['problems', 'eh'],
    ['waiting', 'cb'],
    ['resident', 'a'],
    ['freed', 'd'],
    ['elsewhere', 'gi'],
    ['others', 'kj'],
    ['none', 'f']
  ]);
});

test('the filter looks at names and folders, and "here" leaves out all other servers', () => {
  const kernels = [
    kernel({ id: 'a', path: 'thesis/train.ipynb' }),
    kernel({ id: 'b', path: 'notes.ipynb' }),
    kernel({ id: 'c', own: false, path: null, paths: [] })
  ];
  const ids = (filter: typeof ALL) =>
    [...sections(kernels, filter, trans).values()].flat().map(each => each.id);
  assert.deepStrictEqual(ids({ text: ' THESIS', here: false }), ['a']);
  assert.deepStrictEqual(ids({ text: '', here: true }), ['b', 'a']);
});

test('notebooks of one name are told apart by as much of their folders as is needed', () => {
  const paths = [
    'one/x/train.ipynb',
    'two/x/train.ipynb',
    'notes.ipynb',
    'notes.ipynb',
    'eval.ipynb',
    'old/eval.ipynb'
  ];
  assert.deepStrictEqual(Object.fromEntries(folders(paths)), {
    'one/x/train.ipynb': 'one/x/',
    'two/x/train.ipynb': 'two/x/',
    'eval.ipynb': '/',
    'old/eval.ipynb': 'old/'
  });
});

test('among many kernels the sections without news are closed at first', () => {
  assert.ok(isOpenAtFirst('none', 3));
  assert.ok(!isOpenAtFirst('none', 30));
  assert.ok(isOpenAtFirst('waiting', 30));
});

test('a lost kernel, a refusal and a stuck process are problems; the rest is not', () => {
  assert.ok(isProblem(kernel({ residency: 'lost' })));
  assert.ok(isProblem(kernel({ residency: 'resident', refusal_code: 'busy' })));
  assert.ok(isProblem(kernel({ processes: [STUCK] })));
  assert.ok(!isProblem(kernel({ residency: 'parked', refusal_code: 'busy' })));
});

test('progress goes on by the speed of the last move, and says so where it is slower', () => {
  const moving = (move: object, more: object = {}) =>
    kernel({
      move: { kind: 'resume', bytes: 100, age_s: 1, ...move },
      ...more
    });
  assert.strictEqual(done(moving({}, { resume_estimate_s: 4 }), 0), 0.25);
  assert.strictEqual(done(moving({}, { resume_estimate_s: 4 }), 1), 0.5);
  const last_park = { bytes: 50, duration_s: 1, ago_s: 9 };
  assert.strictEqual(done(moving({ kind: 'park' }, { last_park }), 0), 0.5);
  const late = done(moving({}, { resume_estimate_s: 4 }), 100);
  assert.strictEqual(late, null);
  assert.strictEqual(doneText(late, trans), 'slower than expected');
  assert.strictEqual(done(kernel(), 1), 0);
});

test('while the list holds still each kernel keeps its place, new ones come last and ended ones stay', () => {
  const ids = (found: ReadonlyMap<SectionId, IKernel[]>) =>
    [...found].flatMap(([section, rows]) => rows.map(({ id }) => `${section} ${id}`));
  const all = { text: '', here: false };
  const one = (id: string, changes: Partial<IKernel>) =>
    kernel({ id, path: `${id}.ipynb`, ...changes });
  const resident = { residency: 'resident' as const, resident_bytes: 1 };
  const shown = sections(
    [one('a', resident), one('b', resident), one('c', { residency: 'queued', place: 1 })],
    all,
    trans
  );
  assert.deepStrictEqual(ids(shown), ['waiting c', 'resident a', 'resident b']);
  const now = sections(
    [
      one('a', { residency: 'parked' }),
      one('c', resident),
      one('0', resident),
      one('d', { residency: 'queued', place: 1 })
    ],
    all,
    trans
  );
  const held = inPlace(shown, now);
  assert.deepStrictEqual(ids(held), [
    'waiting c',
    'waiting d',
    'resident a',
    'resident b',
    'resident 0'
  ]);
  assert.strictEqual(held.get('resident')?.[0].residency, 'parked'); // in its place, as it is now
});
