import * as assert from 'node:assert';
import { test } from 'node:test';
import { offered } from '../src/actions';
import {
  aged,
  asOf,
  atMost,
  basename,
  bytes,
  bytesOf,
  bytesPer,
  chipLabel,
  details,
  freedText,
  notice,
  othersText,
  place,
  refusalText,
  sameRelease,
  span,
  stateText,
  title,
  unmanaged
} from '../src/words';
import { kernel, node, trans } from './examples';

const GIB = 1024 ** 3;
const MIB = 1024 ** 2;

test('sizes are rounded as the server rounds them', () => {
  const said = [
    0,
    12,
    1024,
    300 * MIB,
    1023.9 * MIB,
    GIB,
    1.5 * GIB,
    12.4 * GIB,
    139 * GIB,
    2 * 1024 * GIB
  ];
  assert.deepStrictEqual(said.map(bytes), [
    '0 B',
    '12 B',
    '1 KiB',
    '300 MiB',
    '1024 MiB',
    '1 GiB',
    '1.5 GiB',
    '12 GiB',
    '139 GiB',
    '2 TiB'
  ]);
});

test('a part of a whole names the unit once where it is the same', () => {
  assert.strictEqual(bytesOf(3.7 * GIB, 4 * GIB, trans), '3.7 of 4 GiB');
  assert.strictEqual(bytesOf(512 * MIB, 4 * GIB, trans), '512 MiB of 4 GiB');
  assert.strictEqual(bytesPer(3.7 * GIB, 4 * GIB), '3.7/4 GiB');
  assert.strictEqual(bytesPer(512 * MIB, 4 * GIB), '512 MiB/4 GiB');
});

test('times are rounded to what a user cares about', () => {
  const said = [0, 59.4, 59.6, 90, 3600, 5400, 3 * 86400].map(seconds => span(seconds, trans));
  assert.deepStrictEqual(said, ['0 s', '59 s', '1 min', '2 min', '1 h', '1 h 30 min', '3 d']);
});

test('a bound is rounded up', () => {
  const said = [0, 0.2, 58.2, 59.2, 89, 3600, 3601, 49 * 3600].map(each => atMost(each, trans));
  assert.deepStrictEqual(said, ['1 s', '1 s', '59 s', '1 min', '2 min', '1 h', '1 h 1 min', '3 d']);
});

test('what is old says of when it is', () => {
  const updated = new Date(2026, 0, 2, 13, 5).getTime();
  assert.match(asOf({ stale: true, updated }, trans) ?? '', /^as of .*05/);
  assert.strictEqual(asOf({ stale: false, updated }, trans), null);
  assert.strictEqual(asOf({ stale: true, updated: null }, trans), null);
});

test('places are ordinals', () => {
  const said = [1, 2, 3, 4, 10, 11, 12, 13, 21, 101, 111].map(each => place(each, trans)).join(' ');
  assert.strictEqual(said, '1st 2nd 3rd 4th 10th 11th 12th 13th 21st 101st 111th');
});

test('a notice never is longer than JupyterLab shows', () => {
  assert.strictEqual(
    notice(() => 'short'),
    'short'
  );
  assert.strictEqual(notice(() => 'x'.repeat(200)).length, 140);
});

test('in a notice that is too long names give way, not what is said of them', () => {
  const long = (end: string) => `a-rather-${'long-'.repeat(30)}name-${end}.ipynb`;
  const said = notice(short =>
    trans.__(
      '%1 waits for the GPU. %2 is computing. At most %3.',
      short(long('one')),
      short(long('two')),
      '3 min'
    )
  );
  assert.ok(said.length <= 140, said);
  assert.match(said, /^a-rather-.*….*one\.ipynb waits for the GPU\. a-rather-.*….*two\.ipynb is/);
  assert.ok(said.endsWith(' is computing. At most 3 min.'), said);
});

test('names that are written from right to left do not turn what stands around them', () => {
  const name = 'מחברת.ipynb';
  const called = title(kernel({ path: name, paths: [name] }), trans);
  assert.strictEqual(called, `\u2068${name}\u2069`);
  const turning = 'a\u202eb.ipynb'; // would turn the rest of the sentence
  assert.strictEqual(
    title(kernel({ path: turning, paths: [turning] }), trans),
    '\u2068ab.ipynb\u2069'
  );
  const cut = notice(short => `${short(`\u2068${'א'.repeat(200)}\u2069`)} waits.`);
  assert.ok(cut.startsWith('\u2068') && cut.endsWith('\u2069 waits.'), cut);
});

test('a kernel of several notebooks and a console is called by a notebook, and says that there are more', () => {
  const paths = ['work/console-1-5e2f', 'work/b.ipynb', 'work/c.ipynb'];
  assert.strictEqual(title(kernel({ path: paths[0], paths }), trans), 'b.ipynb + 2');
  const console = kernel({ path: paths[0], paths: paths.slice(0, 1) });
  assert.strictEqual(title(console, trans), 'console-1-5e2f');
});

test('a program of `jupyter affinode run` is called by its command', () => {
  const run = { own: false, path: null, paths: [], server: null };
  assert.strictEqual(title(kernel({ ...run, name: 'train.py' }), trans), 'train.py');
  assert.strictEqual(title(kernel({ ...run, name: null }), trans), 'Outside this server');
});

test('a kernel is called by its notebook, and others by where or whose they are', () => {
  assert.strictEqual(basename('a/b/c.ipynb'), 'c.ipynb');
  assert.strictEqual(title(kernel({ path: 'work/a.ipynb' }), trans), 'a.ipynb');
  assert.strictEqual(title(kernel({ path: null, paths: [], name: 'Python 3' }), trans), 'Python 3');
  assert.strictEqual(
    title(kernel({ own: false, path: null, server: 'http://x' }), trans),
    'Another server'
  );
  assert.strictEqual(
    title(kernel({ own: false, name: null, path: null, server: null }), trans),
    'Outside this server'
  );
  assert.strictEqual(title(kernel({ id: 'uid-7/a', own: false, user: 'bob' }), trans), 'bob');
});

test('a state says its size or place, and where parked memory is', () => {
  const unmovable = [{ reason: 'managed' as const, bytes: GIB / 2, text: 'managed memory' }];
  const resident = kernel({ residency: 'resident', resident_bytes: GIB, unmovable });
  const parked = kernel({ residency: 'parked', parked_bytes: 12 * GIB });
  const said = [
    kernel(),
    resident,
    kernel({ residency: 'parking' }),
    parked,
    { ...parked, disk_bytes: 4 * GIB },
    { ...parked, disk_bytes: 12 * GIB },
    kernel({ residency: 'queued' }),
    kernel({ residency: 'queued', place: 2 }),
    kernel({ residency: 'resuming' }),
    kernel({ residency: 'lost' })
  ].map(each => stateText(each, trans));
  assert.deepStrictEqual(said, [
    'No GPU used',
    'On the GPU: 1.5 GiB',
    'Freeing',
    'GPU freed, 12 GiB safe in RAM',
    'GPU freed, 12 GiB safe, 4 GiB of it on disk',
    'GPU freed, 12 GiB safe on disk',
    'Waiting',
    'Waiting: 2nd',
    'Getting it back',
    'GPU state lost'
  ]);
  assert.strictEqual(chipLabel(resident, trans), 'On the GPU: 1.5 GiB');
  assert.strictEqual(chipLabel(parked, trans), 'GPU freed');
  assert.strictEqual(chipLabel(kernel({ residency: 'queued', place: 2 }), trans), 'Waiting');
  assert.strictEqual(chipLabel(kernel(), trans), '');
});

test('of other users there are sums', () => {
  const some = { kernels: 3, resident_bytes: 40 * GIB, parked_bytes: 0, waiting: 1 };
  assert.deepStrictEqual(
    [
      null,
      { ...some, kernels: 0 },
      some,
      { kernels: 1, resident_bytes: 0, parked_bytes: 12 * GIB, waiting: 0 }
    ].map(others => othersText(others, trans)),
    [
      null,
      null,
      'Other users: 3 kernels, 40 GiB on the GPU, 1 waiting',
      'Other users: 1 kernel, 0 B on the GPU, 12 GiB freed'
    ]
  );
});

const NEEDED = { park_when: 'needed', may_change: true, idle_timeout_s: 300 };
const ALWAYS = node({ policy: { ...NEEDED, park_when: 'idle', contended_idle_timeout_s: 15 } });

test('an idle kernel stays while no kernel needs the room; else time decides', () => {
  const idle = kernel({ residency: 'resident', idle_s: 240, eligible_in_s: 60 });
  const eligible = kernel({ residency: 'resident', eligible: true, eligible_in_s: 0 });
  const needed = node({ policy: { ...NEEDED, contended_idle_timeout_s: 15 } });
  const said = [null, needed, { ...needed, queue: ['b'] }, ALWAYS].map(each =>
    [idle, eligible].map(one => freedText(one, each, left => `${left} s`, trans))
  );
  const stays = 'stays until another notebook needs the room';
  assert.deepStrictEqual(said, [
    [stays, stays],
    [stays, stays],
    ['may be freed in 60 s', 'may be freed now'],
    ['may be freed in 60 s', 'may be freed now']
  ]);
});

test('details say how long, and what happens next', () => {
  const idle = { residency: 'resident', idle_s: 240, eligible_in_s: 60 } as const;
  assert.deepStrictEqual(details(kernel(idle), ALWAYS, trans), [
    'idle 4 min',
    'may be freed in 1 min'
  ]);
  assert.deepStrictEqual(
    details(kernel({ ...idle, held_for_s: 9, held_until: '13:11 CET' }), ALWAYS, trans),
    ['kept until 13:11 CET', 'idle 4 min']
  );
  assert.deepStrictEqual(details(kernel({ ...idle, cell_open: true }), ALWAYS, trans), [
    'a cell is running'
  ]);
  assert.deepStrictEqual(details(kernel({ residency: 'queued', waiting_s: 12 }), ALWAYS, trans), [
    'waiting 12 s'
  ]);
});

test('a kernel whose wait was stopped has no memory, and nothing to keep', () => {
  const stopped = kernel({ residency: 'resident', resident_bytes: 0 });
  assert.strictEqual(stateText(stopped, trans), 'No GPU memory in use');
  assert.strictEqual(chipLabel(stopped, trans), 'No GPU memory in use');
  assert.deepStrictEqual(offered(stopped), []);
});

test('clocks run on between two looks', () => {
  const idle = kernel({ residency: 'resident', idle_s: 240, eligible_in_s: 60 });
  assert.deepStrictEqual(details(aged(idle, 50), ALWAYS, trans), [
    'idle 5 min',
    'may be freed in 10 s'
  ]);
  const queued = aged(kernel({ residency: 'queued', waiting_s: 3, estimate_s: 9 }), 20);
  assert.deepStrictEqual([queued.waiting_s, queued.estimate_s, queued.idle_s], [23, 0, null]);
});

test('details say what RAM a kernel takes or keeps, where that is news', () => {
  const parked = { residency: 'parked', parked_bytes: 64 * GIB } as const;
  assert.deepStrictEqual(details(kernel({ ...parked, copy_bytes: 64 * GIB }), ALWAYS, trans), []);
  assert.deepStrictEqual(details(kernel({ ...parked, copy_bytes: 3 * GIB }), ALWAYS, trans), [
    'takes 3 GiB of RAM, the rest is zeros'
  ]);
  const shares = { copy_bytes: GIB, shared_bytes: 3 * GIB, parked_bytes: 4 * GIB };
  assert.ok(
    details(kernel({ residency: 'parked', ...shares }), ALWAYS, trans).includes(
      'takes 1 GiB of RAM alone, and 3 GiB together with other kernels'
    )
  );
  assert.deepStrictEqual(
    details(kernel({ residency: 'resident', set_aside_bytes: 4 * GIB }), ALWAYS, trans),
    ['4 GiB of RAM set aside in advance']
  );
  const last_park = { bytes: 4 * GIB, duration_s: 1, ago_s: 60 };
  assert.deepStrictEqual(
    details(kernel({ residency: 'resident', retained_bytes: 4 * GIB, last_park }), ALWAYS, trans),
    ['4 GiB of RAM kept for the next time']
  );
});

test('a kernel from before an upgrade is said to be not managed', () => {
  const older = kernel({ residency: 'none', refusal_code: 'older-kernel' });
  assert.strictEqual(stateText(older, trans), 'Not managed');
  assert.strictEqual(stateText(kernel({ residency: 'none' }), trans), 'No GPU used');
  assert.match(refusalText('older-kernel', {}, trans) ?? '', /until it is restarted$/);
});

test('development builds of one release belong together', () => {
  assert.ok(sameRelease('0.1.0', '0.1.0.dev3'));
  assert.ok(sameRelease('0.1.0-dev.1', '0.1.0'));
  assert.ok(!sameRelease('0.1.0', '0.1.1'));
});

test('a process that is not managed is named where it is known', () => {
  const say = (pid: number | null, command: string | null, size: number | null) =>
    unmanaged({ pid, command, bytes: size }, trans);
  assert.strictEqual(say(12, 'train', 3 * GIB), 'train (pid 12): 3 GiB');
  assert.strictEqual(say(12, null, null), 'Process (pid 12)');
  assert.strictEqual(say(null, null, 3 * GIB), 'Another user: 3 GiB');
});
