import * as assert from 'node:assert';
import { beforeEach, mock, test } from 'node:test';
import { Announcements, PATIENCE_MS } from '../src/notices/announcements';
import { LASTS_MS, NoticeBoard } from '../src/notices/board';
import { IShownNotice } from '../src/notices/screen';
import { IKernel, INoticeEvent } from '../src/status';
import { kernel, trans } from './examples';

const GIB = 1024 ** 3;

/** A page with a board; what it shows now, by id. */
class Page {
  kernels: IKernel[] | null = [];
  isWanted = true;
  inView: string[] = [];
  readonly shown = new Map<string, IShownNotice>();
  count = 0;

  readonly board = new NoticeBoard(
    {
      kernels: () => this.kernels,
      isWanted: () => this.isWanted,
      isInView: id => this.inView.includes(id)
    },
    {
      show: notice => {
        const id = String((this.count += 1));
        this.shown.set(id, notice);
        return id;
      },
      update: (id, notice) => this.shown.has(id) && this.shown.set(id, notice),
      dismiss: id => this.shown.delete(id)
    },
    trans
  );

  look(...kernels: IKernel[]): void {
    this.kernels = kernels;
    this.board.look();
  }

  tell(kind: string, args: object = {}, kernel_id: string | null = 'a'): void {
    this.board.tell({ kernel_id, kind, level: 'info', text: 'no English', args } as INoticeEvent);
  }

  get messages(): string[] {
    return [...this.shown.values()].map(notice => notice.message);
  }
}

const resident = kernel({ residency: 'resident', resident_bytes: GIB });
const parked = kernel({ residency: 'parked', parked_bytes: GIB });
const queued = kernel({ residency: 'queued', place: 1 });

beforeEach(() => {
  mock.timers.reset();
  mock.timers.enable({ apis: ['setTimeout', 'Date'] });
});

test('a wait is told when it has lasted, and becomes the good news', () => {
  const page = new Page();
  page.look(queued);
  mock.timers.tick(LASTS_MS - 1);
  assert.deepStrictEqual(page.messages, []);
  mock.timers.tick(1);
  page.look(queued);
  assert.deepStrictEqual(page.messages, [
    'a.ipynb waits for the GPU. The GPU is full. How long cannot be said.'
  ]);
  page.look(kernel({ residency: 'resuming' }));
  page.look(resident);
  assert.deepStrictEqual(page.messages, ['a.ipynb has the GPU.']);
  assert.strictEqual(page.count, 1);
});

test('a wait that is short, in view, interrupted or not wanted is not told', () => {
  const short = new Page();
  short.look(queued);
  mock.timers.tick(LASTS_MS - 1);
  short.look(resident);
  const inView = new Page();
  inView.inView = ['a'];
  inView.look(queued);
  const unwanted = new Page();
  unwanted.isWanted = false;
  unwanted.look(queued);
  mock.timers.tick(2 * LASTS_MS);
  assert.deepStrictEqual([...short.messages, ...inView.messages, ...unwanted.messages], []);
  inView.inView = []; // the user turned to another notebook
  mock.timers.tick(LASTS_MS);
  assert.strictEqual(inView.messages.length, 1);
  inView.look(parked);
  assert.deepStrictEqual(inView.messages, []);
});

test('a wait offers what resolves it', () => {
  const page = new Page();
  const held = kernel({ id: 'b', path: 'train.ipynb', residency: 'resident', held_for_s: 60 });
  const blockers = [
    { kernel_id: 'b', own: true, why: 'held' as const, free_in_s: 60, held_until: '13:11 CET' }
  ];
  page.look({ ...queued, wait: { code: 'held', args: { bytes: 0 }, blockers } }, held);
  mock.timers.tick(LASTS_MS);
  const [shown] = page.shown.values();
  assert.deepStrictEqual(
    shown.actions.map(({ action, kernelId, label }) => [action, kernelId, label]),
    [
      ['release', 'b', 'Stop keeping train.ipynb'],
      ['cancel-wait', 'a', 'Stop waiting']
    ]
  );
  assert.ok(
    shown.message.includes('train.ipynb is kept on the GPU until 13:11 CET'),
    shown.message
  );
});

test('memory that came back within ten seconds is no news, nor is room for a notebook of one’s own', () => {
  const page = new Page();
  page.look(parked);
  page.tell('made-room', { for: 'other', bytes: GIB });
  page.look(resident);
  mock.timers.tick(LASTS_MS);
  page.look(parked);
  page.tell('made-room', { for: 'own', bytes: GIB });
  mock.timers.tick(LASTS_MS);
  assert.deepStrictEqual(page.messages, []);
  page.tell('made-room', { for: 'other', bytes: GIB });
  mock.timers.tick(LASTS_MS);
  assert.deepStrictEqual(page.messages, [
    'a.ipynb made room for another user’s notebook; its 1 GiB are safe in RAM.'
  ]);
});

test('one exchange is one notice: freed, waiting and back take one another’s place', () => {
  const page = new Page();
  page.look(parked);
  page.tell('made-room', { for: 'other' });
  mock.timers.tick(LASTS_MS);
  assert.strictEqual(page.shown.size, 1);
  page.look(queued);
  mock.timers.tick(LASTS_MS);
  assert.strictEqual(page.shown.size, 1);
  page.look(resident);
  assert.deepStrictEqual(page.messages, ['a.ipynb has the GPU.']);
});

const named = (count: number, changes: Partial<IKernel>) =>
  Array.from({ length: count }, (_, index) =>
    kernel({ ...changes, id: `k${index}`, path: `${index}.ipynb`, paths: [`${index}.ipynb`] })
  );

test('what happens to several notebooks at a time is one notice', () => {
  const page = new Page();
  const freed = named(9, { residency: 'parked', parked_bytes: 16 * 2 ** 20 });
  page.look(...freed);
  for (const { id } of freed) {
    page.tell('made-room', { reason: 'low-memory', bytes: 16 * 2 ** 20 }, id);
    mock.timers.tick(100);
  }
  mock.timers.tick(LASTS_MS);
  assert.deepStrictEqual(
    [page.count, page.messages],
    [1, ['9 notebooks were freed since GPU memory was low; 144 MiB are safe in RAM.']]
  );
  const [{ actions }] = page.shown.values();
  assert.deepStrictEqual(
    actions.map(each => each.action),
    ['panel']
  );
  page.tell('made-room', { for: 'other', bytes: GIB }, 'k1');
  page.tell('made-room', { for: 'other', bytes: GIB }, 'k2');
  mock.timers.tick(LASTS_MS);
  assert.deepStrictEqual(page.messages.slice(1), [
    '2 notebooks made room for another user’s notebook; 2 GiB are safe in RAM.'
  ]);
  assert.ok(page.messages[0].startsWith('7 notebooks were freed'), page.messages[0]);
});

test('of all kinds of news several at a time are one notice', () => {
  const kinds = ['moved', 'refused', 'no-room', 'resume-failed', 'stuck', 'ended', 'of-tomorrow'];
  for (const kind of kinds) {
    const page = new Page();
    const residency = kind === 'resume-failed' ? 'parked' : 'resident';
    page.look(...named(3, { residency }));
    ['k0', 'k1', 'k2'].forEach(id => page.tell(kind, { reason: 'busy', pid: 7 }, id));
    mock.timers.tick(LASTS_MS);
    assert.deepStrictEqual([kind, page.count, page.shown.size], [kind, 1, 1]);
    assert.match(page.messages[0], /\b3 notebooks\b/);
  }
});

test('several waits, and several lost states, are one notice each, which shrinks as they end', () => {
  const page = new Page();
  const wait = { code: 'turn' as const, args: { bytes: 0 }, blockers: [] };
  const waiting = named(3, { residency: 'queued', wait });
  page.look(...waiting);
  mock.timers.tick(LASTS_MS);
  assert.deepStrictEqual(page.messages, [
    '3 notebooks wait for the GPU. It is next. How long cannot be said.'
  ]);
  const [, second, third] = waiting;
  const [back] = named(1, { residency: 'resident', resident_bytes: GIB });
  page.look(back, second, third);
  assert.deepStrictEqual(page.messages, [
    '2 notebooks wait for the GPU. It is next. How long cannot be said.',
    '0.ipynb has the GPU.'
  ]);
  page.look(back, ...named(3, { residency: 'resident' }).slice(1));
  assert.deepStrictEqual(page.messages, ['3 notebooks have the GPU.']);
  page.look(...named(3, { residency: 'lost' }));
  assert.deepStrictEqual(page.messages, [
    '3 notebooks: GPU state lost. Restart their kernels to use the GPU again.'
  ]);
  page.look();
  assert.deepStrictEqual(page.messages, []);
});

test('a lost state has a button, and goes with the restart', () => {
  const page = new Page();
  const lost = kernel({ residency: 'lost' });
  page.look(lost);
  assert.strictEqual(page.shown.size, 0); // it was so when the page was opened
  page.look(resident);
  page.look(lost);
  const [shown] = page.shown.values();
  assert.deepStrictEqual(
    shown.actions.map(each => [each.action, each.label]),
    [['restart', 'Restart']]
  );
  page.look(kernel());
  assert.strictEqual(page.shown.size, 0);
});

test('low memory is told to users who have something on a GPU, and the same words only once', () => {
  const page = new Page();
  page.look(parked);
  page.tell('host-memory-low', { free_bytes: GIB }, null);
  mock.timers.tick(LASTS_MS);
  assert.strictEqual(page.count, 0);
  page.look(resident);
  page.tell('host-memory-low', { free_bytes: GIB }, null);
  page.tell('host-memory-low', { free_bytes: GIB }, null);
  mock.timers.tick(LASTS_MS);
  assert.strictEqual(page.count, 1);
});

test('while nothing is known nothing is taken back', () => {
  const page = new Page();
  page.look(queued);
  mock.timers.tick(LASTS_MS);
  page.kernels = null;
  page.board.look();
  assert.strictEqual(page.shown.size, 1);
  page.look(); // the kernel is gone
  assert.strictEqual(page.shown.size, 0);
});

test('a change that lasts is announced once, several in one go, and no move before its end', () => {
  let kernels: IKernel[] | null = null;
  const said: string[] = [];
  const announcements = new Announcements(
    () => kernels,
    text => said.push(text),
    trans
  );
  const look = (...now: IKernel[]) => {
    kernels = now;
    announcements.look();
  };
  const others = { own: false, id: 'c', path: null, paths: [] };
  const second = { id: 'b', path: 'b.ipynb' };
  announcements.look();
  look(resident, kernel({ ...parked, ...second }), kernel({ ...resident, ...others }));
  mock.timers.tick(PATIENCE_MS);
  assert.deepStrictEqual(said, []); // as it was at first
  look(kernel({ residency: 'parking' }), kernel({ ...resident, ...second }));
  mock.timers.tick(PATIENCE_MS);
  assert.deepStrictEqual(said.splice(0), ['b.ipynb: On the GPU: 1 GiB.']);
  look(parked, kernel({ ...queued, ...second }), kernel({ ...parked, ...others }));
  mock.timers.tick(PATIENCE_MS);
  assert.deepStrictEqual(said.splice(0), [
    'a.ipynb: GPU freed, 1 GiB safe in RAM. b.ipynb: Waiting: 1st. The GPU is full.'
  ]);
  look(queued, kernel({ ...queued, ...second })); // room comes at once
  mock.timers.tick(PATIENCE_MS - 1);
  look(parked, kernel({ ...queued, ...second, place: 2 }));
  mock.timers.tick(PATIENCE_MS);
  assert.deepStrictEqual(said, []);
});
