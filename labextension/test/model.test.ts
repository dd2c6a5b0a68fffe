import { ServerConnection } from '@jupyterlab/services';
import { Poll } from '@lumino/polling';
import { Signal, Stream } from '@lumino/signaling';
import * as assert from 'node:assert';
import { createServer, Server } from 'node:http';
import { AddressInfo } from 'node:net';
import { after, before, beforeEach, test } from 'node:test';
import { Possible } from '../src/actions';
import { AffinodeModel } from '../src/model';
import { paceOf } from '../src/pace';
import { IStatus, NODE_EVENT, NOTICE_EVENT, RESIDENCY_EVENT } from '../src/status';
import { IChange } from '../src/tokens';
import { controller, gpu, kernel, node, process, status, trans } from './examples';

const GIB = 2 ** 30;

/** A server that answers what the test recorded, or nothing at all. */
let server: Server;
let answer: { code: number; body: unknown } | 'none';
let asked: string[] = [];

/** What JupyterLab gives to the model. */
const owner = {};
type Services = ConstructorParameters<typeof AffinodeModel>[0];
let events: Stream<object, never>;
let runningChanged: Signal<object, never>;
let sessions: { id: string; path: string }[];
let model: AffinodeModel;
let changes: IChange[];
let actions: Possible[][];

before(async () => {
  server = createServer((request, response) => {
    asked.push(`${request.method} ${request.url?.split('?')[0]}`);
    if (answer === 'none') {
      request.socket.destroy();
    } else {
      response.writeHead(answer.code, { 'Content-Type': 'application/json' });
      response.end(JSON.stringify(answer.body));
    }
  });
  await new Promise<void>(done => server.listen(0, '127.0.0.1', done));
});

after(() => {
  server.close();
  server.closeAllConnections();
});

beforeEach(() => {
  model?.dispose();
  events = new Stream(owner);
  runningChanged = new Signal(owner);
  sessions = [];
  asked = [];
  const page = Object.assign(new EventTarget(), { hidden: false });
  model = makeModel(page as unknown as Document);
  changes = [];
  actions = [];
  model.changed.connect((_, change) => changes.push(change));
  model.actionsChanged.connect((_, changed) => actions.push([...changed].sort()));
});

function makeModel(page: Document): AffinodeModel {
  const { port } = server.address() as AddressInfo;
  return new AffinodeModel(
    {
      serverSettings: ServerConnection.makeSettings({ baseUrl: `http://127.0.0.1:${port}/` }),
      events: { stream: events },
      sessions: {
        runningChanged,
        running: () => sessions.map(({ id, path }) => ({ path, kernel: { id } })).values()
      }
    } as unknown as Services,
    trans,
    page
  );
}

after(() => model.dispose());

const share = (resident_bytes: number) => ({
  uuid: 'GPU-1',
  index: 0,
  resident_bytes,
  parked_bytes: 0,
  unmovable_bytes: 0
});
const resident = kernel({
  id: 'a',
  residency: 'resident',
  resident_bytes: 12 * GIB,
  gpus: [share(12 * GIB)],
  processes: [process()]
});
const machine = node({
  gpus: [gpu({ used_bytes: 20 * GIB, free_bytes: 60 * GIB, managed_bytes: 12 * GIB })]
});

async function load(recorded: IStatus): Promise<void> {
  answer = { code: 200, body: recorded };
  await model.refresh();
  await settled();
  changes.length = actions.length = asked.length = 0;
}

/** Signals are emitted at the end of a turn. */
function settled(): Promise<void> {
  return new Promise(done => setImmediate(done));
}

function emit(schema_id: string, data: object): Promise<void> {
  events.emit({ schema_id, ...data } as never);
  return settled();
}

/** Wait for a request that is made after a pause. */
async function requested(): Promise<string[]> {
  while (asked.length === 0) {
    await new Promise(done => setTimeout(done, 5));
  }
  await model.refresh();
  return asked;
}

test('an event with the whole kernel changes the rows and the bars, and asks for nothing', async () => {
  await load(status([resident, kernel({ id: 'b' })], machine));
  const parked = { ...share(0), parked_bytes: 12 * GIB };
  await emit(RESIDENCY_EVENT, {
    kernel_id: 'a',
    kernel: {
      ...resident,
      name: undefined,
      path: undefined,
      paths: undefined,
      server: undefined,
      residency: 'parked',
      resident_bytes: 0,
      parked_bytes: 12 * GIB,
      copy_bytes: 10 * GIB,
      gpus: [parked],
      reason_code: 'room',
      reason_args: { for: 'own' },
      processes: [{ number: 1, pid: 7, residency: 'parked', stuck: null }]
    }
  });
  const seen = model.kernel('a');
  assert.deepStrictEqual(
    [seen?.residency, seen?.path, seen?.reason_args.for, seen?.processes[0].command],
    ['parked', 'a.ipynb', 'own', 'train.py']
  );
  const [bar] = model.status?.node?.gpus ?? [];
  assert.deepStrictEqual(
    [bar.used_bytes, bar.free_bytes, bar.managed_bytes],
    [8 * GIB, 72 * GIB, 0]
  );
  assert.strictEqual(model.status?.node?.host.copy_bytes, 10 * GIB);
  assert.deepStrictEqual(asked, []);
  assert.deepStrictEqual(
    changes.map(change => [...change.kernels]),
    [['a']]
  );
  assert.deepStrictEqual(actions, [['hold', 'park', 'resume']]);
});

test('an event that moves only clocks makes no signal', async () => {
  await load(status([{ ...resident, idle_s: 4, calls: 10 }], machine));
  await emit(RESIDENCY_EVENT, { kernel_id: 'a', kernel: { ...resident, idle_s: 5, calls: 30 } });
  assert.strictEqual(model.kernel('a')?.idle_s, 5);
  assert.deepStrictEqual([changes, actions, asked], [[], [], []]);
});

test('of a kernel that is not known yet the status is asked for', async () => {
  await load(status([resident], machine));
  await emit(RESIDENCY_EVENT, { kernel_id: 'new', kernel: kernel({ id: 'new' }) });
  assert.strictEqual((await requested())[0], 'GET /affinode/api/status');
});

test('a status of another version is not read, and its server is asked again', async () => {
  await load(status([resident], machine));
  answer = { code: 200, body: { version: '99.1.0', available: true, node: null } };
  await model.refresh();
  assert.deepStrictEqual([model.status, model.problem?.kind], [null, 'version']);
  await emit(RESIDENCY_EVENT, { kernel_id: 'a', residency: 'parked' });
  await load(status([resident], machine));
  assert.deepStrictEqual([model.kernel('a')?.residency, model.problem], ['resident', null]);
});

test('a finished cell, and a notice, ask for nothing; a kernel that comes does', async () => {
  sessions = [{ id: 'a', path: 'a.ipynb' }];
  await load(status([resident], machine));
  runningChanged.emit(undefined as never);
  await requested();
  asked.length = 0;
  const notices: unknown[] = [];
  model.noticed.connect((_, notice) => notices.push(notice.kind));
  sessions = [...sessions]; // as after each cell
  runningChanged.emit(undefined as never);
  await emit(NOTICE_EVENT, { kernel_id: 'a', kind: 'made-room', level: 'info', text: '' });
  assert.deepStrictEqual(notices, ['made-room']);
  const { _soon } = model as unknown as { _soon: unknown };
  assert.deepStrictEqual([asked, _soon], [[], undefined]);
  sessions.push({ id: 'b', path: 'b.ipynb' });
  runningChanged.emit(undefined as never);
  assert.strictEqual((await requested())[0], 'GET /affinode/api/status');
});

test('a server that does not answer leaves the last status, marked as old', async () => {
  await load(status([resident], machine));
  const updated = model.updated;
  answer = 'none';
  await model.refresh();
  await settled();
  assert.deepStrictEqual([model.stale, model.problem?.kind], [true, 'unreachable']);
  assert.strictEqual(model.kernel('a')?.residency, 'resident');
  assert.strictEqual(model.updated, updated);
  assert.deepStrictEqual(actions, [['hold', 'park']]); // nothing can be asked for meanwhile
  answer = { code: 200, body: status([resident], machine) };
  asked.length = 0;
  await requested(); // tried again by itself, though no view watches
  await settled();
  assert.deepStrictEqual([model.stale, model.problem], [false, null]);
});

test('a named server that was stopped, for which the default one answers, is waited for', async () => {
  await load(status([resident], machine));
  answer = { code: 404, body: { message: 'Not Found' } };
  await model.refresh();
  assert.deepStrictEqual([model.stale, model.problem?.kind], [true, 'unreachable']);
  assert.strictEqual(model.kernel('a')?.residency, 'resident');
  await load(status([resident], machine));
  assert.deepStrictEqual([model.stale, model.problem], [false, null]);
});

test('a server that refused once is asked again, though no view watches', async () => {
  await load(status([resident], machine));
  answer = { code: 403, body: { message: 'Forbidden' } };
  await model.refresh();
  assert.strictEqual(model.status, null);
  const { _looks } = model as unknown as { _looks: { _poll: Poll } };
  assert.ok(_looks._poll.frequency.interval < 90_000);
});

test('a controller that ended leaves the last status, and a server that refuses leaves none', async () => {
  await load(status([resident], machine));
  answer = {
    code: 200,
    body: { ...status([], null), available: false, code: 'ended' }
  };
  await emit(NODE_EVENT, { available: false, code: 'ended' });
  await requested();
  assert.deepStrictEqual([model.stale, model.problem?.kind], [true, 'controller']);
  assert.strictEqual(model.status?.kernels.length, 1);
  assert.strictEqual(model.status?.available, false);
  answer = { code: 403, body: { message: 'Forbidden' } };
  await model.refresh();
  assert.deepStrictEqual([model.status, model.problem?.kind], [null, 'refused']);
});

test('a server that switches it off leaves none, whatever was there before', async () => {
  await load(status([resident], machine));
  answer = { code: 200, body: { ...status([], null), available: false, code: 'disabled' } };
  await model.refresh();
  assert.deepStrictEqual([model.stale, model.problem?.kind], [false, 'disabled']);
  assert.deepStrictEqual(model.status?.kernels, []);
});

test('a user who may only look is offered nothing, from the first answer on', async () => {
  await load(status([resident], machine));
  answer = { code: 200, body: { ...status([resident], machine), may_act: false } };
  await model.refresh();
  await settled();
  assert.deepStrictEqual(actions, [['hold', 'park']]);
});

test('rates are made of two looks, and of a restarted counter', async () => {
  await load(status([{ ...resident, calls: 100 }], machine));
  assert.deepStrictEqual(model.rates('a'), []);
  await load(status([{ ...resident, calls: 300 }], machine));
  const [first] = model.rates('a');
  assert.ok(Math.abs(first.perSecond * (first.to - first.from) - 200) < 1e-6);
  await load(status([{ ...resident, calls: 50 }], machine));
  const second = model.rates('a')[1];
  assert.ok(Math.abs(second.perSecond * (second.to - second.from) - 50) < 1e-6);
});

test('a new controller that has not heard of a kernel yet leaves it as it was, and counts no byte twice', async () => {
  await load(status([resident], machine));
  const young = (
    unmanaged: { pid: number | null; command: string | null; bytes: number }[] | null
  ) =>
    node({
      controller: controller({ uptime_s: 0.4 }),
      gpus: [
        gpu({ used_bytes: 20 * GIB, free_bytes: 60 * GIB, unmanaged_bytes: 20 * GIB, unmanaged })
      ]
    });
  const train = { pid: 7, command: 'train.py', bytes: 12 * GIB };
  const other = { pid: 8, command: 'other', bytes: 8 * GIB };
  const unheard = kernel({ id: 'a', residency: 'none' });
  for (const kernels of [[], [unheard]]) {
    for (const unmanaged of [[train, other], null]) {
      answer = { code: 200, body: status(kernels, young(unmanaged)) };
      await model.refresh();
      const [bar] = model.status?.node?.gpus ?? [];
      assert.deepStrictEqual(
        [model.kernel('a')?.residency, bar.used_bytes, bar.managed_bytes, bar.unmanaged_bytes],
        ['resident', 20 * GIB, 12 * GIB, 8 * GIB]
      );
      assert.deepStrictEqual(bar.unmanaged, unmanaged && [other]);
      await emit(RESIDENCY_EVENT, { kernel_id: 'a', kernel: resident }); // its shim has connected
      assert.strictEqual(model.status?.node?.gpus[0].used_bytes, 20 * GIB);
    }
  }
  const old = {
    ...young([train, other]),
    controller: controller({ uptime_s: 60 })
  };
  answer = { code: 200, body: status([unheard], old) };
  await model.refresh();
  assert.strictEqual(model.kernel('a')?.residency, 'none'); // by now it would have been heard of
});

test('a kernel that begins or ends to wait is in the queue, or no longer, at once', async () => {
  await load(status([resident, kernel({ id: 'b' })], machine));
  const waiting = { ...kernel({ id: 'b' }), residency: 'queued', place: 1 };
  await emit(RESIDENCY_EVENT, { kernel_id: 'b', kernel: waiting });
  assert.deepStrictEqual(model.status?.node?.queue, ['b']);
  assert.deepStrictEqual(
    changes.map(each => each.machine),
    [true]
  );
  await emit(RESIDENCY_EVENT, { kernel_id: 'b', kernel: kernel({ id: 'b' }) });
  assert.deepStrictEqual([model.status?.node?.queue, asked], [[], []]);
});

test('a wait can be stopped and a kernel be restarted while server or controller are away', async () => {
  const waiting = kernel({ id: 'b', residency: 'queued', place: 1 });
  await load(status([resident, waiting, kernel({ id: 'c', residency: 'lost' })], machine));
  answer = { code: 200, body: { ...status([], null), available: false, code: 'ended' } };
  await model.refresh();
  await settled();
  assert.deepStrictEqual([model.stale, actions], [true, [['hold', 'park']]]); // these alone end
});

test('what was asked for is pending until it is answered', async () => {
  await load(status([resident], machine));
  answer = { code: 200, body: { ...resident, as_of_s: 5, residency: 'parking' } };
  const done = model.act('a', 'park');
  assert.strictEqual(model.pending('a'), 'park');
  await done;
  assert.deepStrictEqual([model.pending('a'), model.kernel('a')?.residency], [null, 'parking']);
});

test('clocks that count up never fall back, however long an answer takes', async () => {
  const idle = (as_of_s: number) => ({ ...resident, as_of_s, idle_s: as_of_s - 100 });
  const shown = () => (model.kernel('a')?.idle_s ?? 0) + model.age('a');
  await load(status([idle(150)], machine));
  const before = shown();
  const began = performance.now();
  const most = () => before + 1 + (performance.now() - began) / 1000;
  await load(status([idle(148.5)], machine)); // as after 1.5 s on its way
  assert.ok(shown() >= before && shown() < most(), `${before} ${shown()}`);
  await load(status([idle(150.001)], machine)); // slow, too
  assert.ok(shown() >= before && shown() < most(), `${before} ${shown()}`);
});

test('without a view it is asked once in a while, with one as the settings say, without a GPU not at all', () => {
  const facts = { hasGpu: true, isWatched: false, problem: null, refreshInterval: 6 };
  const pause = (changes: Partial<typeof facts>) => paceOf({ ...facts, ...changes }).interval;
  assert.ok(pause({}) >= 60_000 && pause({}) < 90_000);
  assert.strictEqual(pause({ isWatched: true }), 6000);
  assert.strictEqual(pause({ hasGpu: false }), Infinity);
  const lost = paceOf({ ...facts, problem: { kind: 'unreachable', message: '' } });
  assert.ok(lost.max <= 10_000);
});

test('when the network is back the server is asked at once', async () => {
  model.dispose();
  const view = new EventTarget();
  const page = Object.assign(new EventTarget(), { hidden: false, defaultView: view });
  model = makeModel(page as unknown as Document);
  await load(status([resident], machine));
  answer = 'none';
  await model.refresh();
  assert.strictEqual(model.problem?.kind, 'unreachable');
  answer = { code: 200, body: status([resident], machine) };
  const began = performance.now();
  asked.length = 0;
  view.dispatchEvent(new Event('online'));
  await requested();
  assert.ok(performance.now() - began < 1000);
  assert.strictEqual(model.problem, null);
});
