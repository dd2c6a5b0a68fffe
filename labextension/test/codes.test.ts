import * as assert from 'node:assert';
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { test } from 'node:test';
import { BlockerReason, WaitReason } from '../src/controllerTypes';
import { IBlocker, IWait } from '../src/status';
import {
  blockerText,
  callClassText,
  controllerText,
  depthRefusalText,
  doneText,
  errorText,
  estimateText,
  INoticeArgs,
  lastMoveText,
  moveText,
  namesOf,
  noticeText,
  reasonText,
  refusalText,
  resumeEstimateText,
  stuckText,
  unmovableText,
  waitSentence,
  waitText
} from '../src/words';
import { kernel, trans } from './examples';

const GIB = 1024 ** 3;
const nameOf = (id: string) => (id === 'a' ? 'train.ipynb' : null);
const blocker = (why: string, free_in_s: number | null = null, own = true): IBlocker => ({
  kernel_id: own ? 'a' : null,
  own,
  why: why as BlockerReason,
  free_in_s,
  held_until: null
});
const wait = (code: string, blockers: IBlocker[] = [], args = {}): IWait => ({
  code: code as WaitReason,
  args: { bytes: 0, ...args },
  blockers
});

test('no code of a newer server is shown, and none is without words', () => {
  const code = 'a-new-code';
  const said = [
    reasonText(code, null, trans),
    refusalText(code, null, trans),
    depthRefusalText(code, trans),
    errorText({ slug: code, status: 418 }, trans),
    stuckText(code, trans),
    unmovableText(code, trans),
    callClassText(code, trans),
    controllerText(code, trans),
    waitText(wait(code), nameOf, trans),
    blockerText(blocker(code), nameOf, trans),
    noticeText(code, null, 'a.ipynb', trans),
    noticeText(code, null, null, trans)
  ];
  for (const words of said) {
    assert.ok(words && !words.includes(code), String(words));
  }
});

test('every code that the server declares and no table has by its type has words of its own', () => {
  const api = resolve(process.cwd(), 'jupyter_affinode/node/api/openapi.json');
  const { components } = JSON.parse(readFileSync(api, 'utf8')) as {
    components: { schemas: { [name: string]: { enum: string[] } } };
  };
  const say: [string, (code: string) => string | null, string[]][] = [
    ['WaitReason', code => waitText(wait(code), nameOf, trans), ['full', 'held']],
    ['BlockerReason', code => blockerText(blocker(code), nameOf, trans), []],
    ['NoticeKind', code => noticeText(code, null, 'a.ipynb', trans), []]
  ];
  for (const [type, words, plain] of say) {
    const found = components.schemas[type].enum;
    assert.ok(found.length > 3, type);
    const neutral = words('a-new-code');
    const without = found.filter(code => words(code) === neutral && !plain.includes(code));
    assert.deepStrictEqual(without, [], type);
  }
});

test('nothing is said where there is no code', () => {
  for (const none of [null, undefined, '']) {
    assert.strictEqual(reasonText(none, null, trans), null);
    assert.strictEqual(refusalText(none, null, trans), null);
    assert.strictEqual(depthRefusalText(none, trans), null);
  }
  assert.strictEqual(resumeEstimateText(null, trans), null);
});

test('a reason names for which notebook memory was freed, never another user', () => {
  assert.strictEqual(
    reasonText('room', { for: 'own' }, trans),
    'it made room for another notebook of yours'
  );
  assert.strictEqual(
    reasonText('room', { for: 'other' }, trans),
    'it made room for another user’s notebook'
  );
});

test('a wait names the notebook that is in the way', () => {
  const said = (code: string, ...blockers: IBlocker[]) =>
    waitText(wait(code, blockers), nameOf, trans);
  assert.strictEqual(said('computing', blocker('computing')), 'train.ipynb is computing');
  assert.strictEqual(
    said('held', { ...blocker('held', 90), held_until: '13:11 CET' }),
    'train.ipynb is kept on the GPU until 13:11 CET'
  );
  assert.strictEqual(
    said('full', blocker('idle', 12)),
    'train.ipynb is idle and is freed within 12 s'
  );
  assert.strictEqual(
    said('computing', blocker('computing', null, false)),
    'Another user’s notebook is computing'
  );
  assert.strictEqual(
    said('full', blocker('outside', null, false)),
    'A program outside Jupyter uses the GPU'
  );
  assert.strictEqual(said('full'), 'The GPU is full');
  assert.strictEqual(waitText(null, nameOf, trans), 'The GPU is full');
});

test('a kernel in the way that is not of this server is named by where or whose it is', () => {
  const found = [
    kernel({ id: 'b', own: false }),
    kernel({ id: 'c', own: false, server: null }),
    kernel({ id: 'uid-7/d', own: false, user: 'bob' })
  ];
  const names = namesOf(id => found.find(one => one.id === id), trans);
  const said = (kernel_id: string) => {
    const computing = { ...blocker('computing'), kernel_id };
    return waitText(wait('computing', [computing]), names, trans);
  };
  assert.deepStrictEqual(['b', 'c', 'uid-7/d', 'gone'].map(said), [
    'A notebook of yours on another server is computing',
    'A program of yours outside this server is computing',
    'A notebook of bob is computing',
    'Another notebook of yours is computing'
  ]);
});

test('a wait says how many kernels compute on which GPU', () => {
  const said = (args: object) => waitText(wait('compute', [], args), nameOf, trans);
  assert.strictEqual(
    said({ kernels: 2, gpu: 0 }),
    'Computing on GPU 0: 2 kernels, as many as allowed'
  );
  assert.strictEqual(said({ kernels: 1 }), 'Computing on the GPU: 1 kernel, as many as allowed');
  assert.strictEqual(said({}), 'As many kernels compute on the GPU as allowed');
});

test('an estimate is an upper bound, or it is said why there is none', () => {
  const computing = wait('computing', [blocker('computing')]);
  const said = (estimate_s: number | null) =>
    estimateText({ estimate_s, wait: computing }, nameOf, trans);
  assert.strictEqual(said(180), 'at most 3 min');
  assert.strictEqual(said(null), 'how long cannot be said: train.ipynb is computing');
  assert.strictEqual(
    waitSentence({ estimate_s: null, wait: computing }, nameOf, trans),
    'train.ipynb is computing. How long cannot be said.'
  );
});

test('a move says how much it is, and afterwards how long it took', () => {
  assert.strictEqual(moveText({ kind: 'park', bytes: 12 * GIB }, trans), 'Freeing: 12 GiB');
  assert.strictEqual(doneText(0.404, trans), 'about 40 %');
  assert.strictEqual(
    moveText({ kind: 'resume', bytes: 12 * GIB }, trans),
    'Getting it back: 12 GiB'
  );
  const last = { bytes: 12 * GIB, duration_s: 0.4, ago_s: 180 };
  assert.strictEqual(
    lastMoveText('park', last, trans),
    'Freed 12 GiB in 0.4 s (30 GiB/s), 3 min ago'
  );
  assert.strictEqual(
    lastMoveText('resume', { ...last, duration_s: 0 }, trans),
    'Got 12 GiB back, 3 min ago'
  );
  assert.strictEqual(
    lastMoveText('park', { ...last, ago_s: null }, trans), // before the controller's start
    'Freed 12 GiB in 0.4 s (30 GiB/s)'
  );
  assert.strictEqual(resumeEstimateText(0.42, trans), 'back in about 0.4 s');
});

test('notices are whole sentences with and without their figures', () => {
  const said = (kind: string, args: INoticeArgs | null, name: string | null = 'a.ipynb') =>
    noticeText(kind, args, name, trans);
  assert.strictEqual(
    said('made-room', { bytes: 12 * GIB, for: 'own' }),
    'a.ipynb made room for another notebook of yours; its 12 GiB are safe in RAM.'
  );
  assert.strictEqual(
    said('made-room', null),
    'a.ipynb made room for another notebook; its memory is safe in RAM.'
  );
  assert.strictEqual(
    said('refused', { reason: 'no-host-memory' }),
    'a.ipynb stays on the GPU: the machine’s RAM is short.'
  );
  assert.strictEqual(
    said('stuck', { pid: 12, reason: 'lost' }),
    'a.ipynb has a process that is stuck (pid 12): its GPU state is lost.'
  );
  assert.strictEqual(
    said('memory-low', { free_bytes: GIB, total_bytes: 80 * GIB }, null),
    'GPU memory is low: 1 GiB of 80 GiB are free.'
  );
});

test('a server that refuses says that one may look but not act', () => {
  assert.strictEqual(
    errorText({ slug: 'http', status: 403 }, trans),
    'you may look but not change anything here'
  );
});

test('a grant that has ended is told as such, with what helps', () => {
  for (const slug of ['bad-grant', 'grant-required']) {
    const said = errorText({ slug, status: 401 }, trans);
    assert.match(said, /grant has ended.*stop the server in the Hub and start it again/);
  }
});
