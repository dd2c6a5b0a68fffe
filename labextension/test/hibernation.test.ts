import * as assert from 'node:assert';
import { test } from 'node:test';
import { canStay, offered } from '../src/actions';
import { sections } from '../src/panel/kernels/rows';
import { IHibernation, IKernel } from '../src/status';
import {
  chipLabel,
  details,
  errorText,
  hibernationRefusal,
  imageWarnings,
  keptForText,
  stateText
} from '../src/words';
import { kernel, trans } from './examples';

const GIB = 1024 ** 3;

/** A kernel of a server whose kernels hibernate. */
function hibernating(changes: Partial<IHibernation>, more: Partial<IKernel> = {}): IKernel {
  const hibernation = {
    state: null,
    bytes: 0,
    since_s: 0,
    estimate_s: 9,
    refusal: null,
    deleted_at: null,
    objection: null
  };
  const residency = changes.state ? 'hibernated' : 'none';
  return kernel({ residency, hibernation: { ...hibernation, ...changes }, ...more });
}

test('a hibernated kernel says what it takes on disk and how soon it is back', () => {
  const there = hibernating({ state: 'hibernated', bytes: 12 * GIB });
  assert.strictEqual(stateText(there, trans), 'Hibernated · 12 GiB on disk · back in about 9 s');
  assert.strictEqual(chipLabel(there, trans), 'Hibernated');
  assert.deepStrictEqual(offered(there), ['wake']);
  assert.strictEqual(hibernationRefusal(there, trans), null);
});

test('on its way it says how much is written, and can be stopped', () => {
  const going = hibernating({ state: 'hibernating', bytes: 3 * GIB });
  assert.strictEqual(stateText(going, trans), 'Hibernating · 3 GiB on disk');
  assert.deepStrictEqual([chipLabel(going, trans), offered(going)], ['Hibernating', ['stay']]);
  assert.strictEqual(stateText(hibernating({ state: 'hibernating' }), trans), 'Hibernating');
  const coming = hibernating({ state: 'waking', bytes: 12 * GIB });
  assert.deepStrictEqual([stateText(coming, trans), offered(coming)], ['Waking', ['stay']]);
  assert.ok(canStay(going) && canStay(coming) && !canStay(hibernating({})));
});

test('what is idle can hibernate, where the server lets it', () => {
  const resident = { residency: 'resident', resident_bytes: GIB } as const;
  assert.deepStrictEqual(offered(hibernating({})), ['hibernate']);
  assert.deepStrictEqual(offered(hibernating({}, resident)), ['park', 'hold', 'hibernate']);
  assert.deepStrictEqual(offered(hibernating({}, { residency: 'parked' })), [
    'resume',
    'hibernate'
  ]);
  assert.deepStrictEqual(offered(hibernating({}, { cell_open: true })), []);
  assert.deepStrictEqual(offered(hibernating({}, { residency: 'queued' })), ['cancel-wait']);
  assert.deepStrictEqual(offered(kernel()), []);
});

test('why it did not hibernate, or was not woken, is said', () => {
  const refusal = 'a debugger is attached to it';
  assert.strictEqual(
    hibernationRefusal(hibernating({ refusal }), trans),
    'Not hibernated: a debugger is attached to it'
  );
  assert.strictEqual(
    hibernationRefusal(
      hibernating({ state: 'hibernated', refusal: 'its process id is taken' }),
      trans
    ),
    'Not woken: its process id is taken'
  );
  assert.strictEqual(
    errorText({ slug: 'not-hibernated', status: 409, message: 'a cell runs' }, trans),
    'a cell runs'
  );
});

test('that an image is about to go, or could not be woken now, is said before', () => {
  const changes = {
    state: 'hibernated',
    deleted_at: '13:11 CET',
    objection: 'it was made with another GPU driver (600.1)'
  } as const;
  assert.deepStrictEqual(imageWarnings(hibernating(changes).hibernation, trans), [
    'Deleted at 13:11 CET unless it is woken before',
    'Cannot be woken now: it was made with another GPU driver (600.1)'
  ]);
  assert.deepStrictEqual(imageWarnings(hibernating({}).hibernation, trans), []);
  assert.deepStrictEqual(imageWarnings(null, trans), []);
});

test('one of another server, or without one, says what is known', () => {
  const other = kernel({ own: false, residency: 'hibernated', image_bytes: 2 * GIB });
  assert.strictEqual(stateText(other, trans), 'Hibernated · 2 GiB on disk');
  assert.deepStrictEqual(offered(other), []);
  const kept = {
    id: 'k',
    name: 'Python 3',
    path: 'a.ipynb',
    here: false,
    folder: '/home/work',
    server: null,
    since: '13:11 CET',
    image_bytes: 2 * GIB,
    deleted_at: null,
    objection: null
  };
  assert.strictEqual(keptForText(kept, trans), 'hibernated at 13:11 CET, 2 GiB on disk');
});

test('it is among the freed, and idle for no time that matters', () => {
  const there = hibernating({ state: 'hibernated', bytes: GIB }, { idle_s: 60 });
  const shown = sections([there], { text: '', here: false }, trans);
  assert.deepStrictEqual(shown.get('freed'), [there]);
  assert.deepStrictEqual(details(there, null, trans), []);
});
