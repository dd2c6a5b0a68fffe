/**
 * Random orders of events, answers and losses of connection: what the page shows of a kernel is always something that was
 * so, never older than what it showed before, and in the end the newest truth.
 */

import { ServerConnection } from '@jupyterlab/services';
import { Signal, Stream } from '@lumino/signaling';
import fc from 'fast-check';
import * as assert from 'node:assert';
import { test } from 'node:test';
import { AffinodeModel } from '../src/model';
import { IKernel, INode, IStatus, RESIDENCY_EVENT } from '../src/status';
import { gpu, kernel, node, process, status, trans } from './examples';

const GIB = 2 ** 30;
const IDS = ['a', 'b', 'c'];
const TOTAL = 80 * GIB;

/** What the machine has: each change is a new moment. */
class Truth {
  moment = 1;
  readonly kernels = new Map<string, IKernel>();
  /** All that ever was true of each kernel, by its moment. */
  readonly was = new Map<string, Map<number, string>>();

  constructor() {
    IDS.forEach(id => this.set(id, 'resident', 1));
  }

  set(id: string, residency: 'resident' | 'parked' | 'queued', gib: number): IKernel {
    this.moment += 1;
    const bytes = gib * GIB;
    const here = residency === 'resident' ? bytes : 0;
    const queue = [...this.kernels.values()].filter(one => one.place !== null && one.id !== id);
    const changed = kernel({
      id,
      path: `${id}.ipynb`,
      as_of_s: this.moment,
      residency,
      resident_bytes: here,
      parked_bytes: bytes - here,
      copy_bytes: bytes - here,
      place: residency === 'queued' ? queue.length + 1 : null,
      gpus: [
        {
          uuid: 'GPU-1',
          index: 0,
          resident_bytes: here,
          parked_bytes: bytes - here,
          unmovable_bytes: 0
        }
      ],
      processes: [process({ pid: IDS.indexOf(id) + 1, residency, command: id })]
    });
    this.kernels.set(id, changed);
    this.was.set(id, (this.was.get(id) ?? new Map()).set(this.moment, shown(changed)));
    return changed;
  }

  /** What the server would answer now. */
  answer(): IStatus {
    const all = [...this.kernels.values()];
    const used = all.reduce((sum, one) => sum + one.resident_bytes, 0);
    const copies = all.reduce((sum, one) => sum + one.copy_bytes, 0);
    const waiting = all.filter(one => one.place !== null);
    const machine = node({
      gpus: [gpu({ used_bytes: used, managed_bytes: used, free_bytes: TOTAL - used })],
      queue: waiting.sort((one, other) => (one.place ?? 0) - (other.place ?? 0)).map(({ id }) => id)
    });
    machine.host.copy_bytes = machine.host.parked_bytes = copies;
    return status(all, machine);
  }
}

/** What counts of a kernel. */
function shown(one: IKernel): string {
  return JSON.stringify([one.residency, one.resident_bytes, one.parked_bytes, one.place]);
}

/** A page whose requests and events come when the test says so. */
class Page {
  readonly truth = new Truth();
  readonly model: AffinodeModel;
  /** Answers on their way: null where the connection is lost. */
  readonly answers: (() => void)[] = [];
  /** Events on their way; the order among kernels is the stream's. */
  events: IKernel[] = [];
  isConnected = true;
  private readonly _stream = new Stream<object, never>({});
  private readonly _last = new Map<string, number>();

  constructor() {
    const fetch = (request: RequestInfo) => this._fetch(request as Request);
    this.model = new AffinodeModel(
      {
        serverSettings: ServerConnection.makeSettings({ baseUrl: 'http://localhost/', fetch }),
        events: { stream: this._stream },
        sessions: { runningChanged: new Signal({}), running: () => [].values() }
      } as unknown as ConstructorParameters<typeof AffinodeModel>[0],
      trans,
      Object.assign(new EventTarget(), { hidden: false }) as unknown as Document
    );
  }

  change(id: string, residency: 'resident' | 'parked' | 'queued', gib: number): void {
    const changed = this.truth.set(id, residency, gib);
    if (this.isConnected) {
      this.events.push(changed);
    }
  }

  /** The next event comes. */
  hear(): void {
    const told = this.events.shift();
    if (told) {
      const kernel = { ...told, name: undefined, path: undefined, paths: undefined };
      this._stream.emit({ schema_id: RESIDENCY_EVENT, kernel_id: told.id, kernel } as never);
    }
  }

  lose(): void {
    this.isConnected = false;
    this.events = [];
  }

  /** Let everything come, in the end over a connection, and look once more. */
  async settle(): Promise<void> {
    this.isConnected = true;
    const done = this.model.refresh();
    let isDone = false;
    void done.then(() => (isDone = true));
    while (!isDone) {
      this.answers.splice(0).forEach(answer => answer());
      await turn();
    }
    while (this.events.length > 0) {
      this.hear();
    }
    await turn();
  }

  check(): void {
    for (const one of this.model.status?.kernels ?? []) {
      const moment = one.as_of_s ?? 0;
      assert.strictEqual(this.truth.was.get(one.id)?.get(moment), shown(one), one.id);
      assert.ok(moment >= (this._last.get(one.id) ?? 0), `${one.id} fell back`);
      this._last.set(one.id, moment);
    }
    const machine = this.model.status?.node;
    if (machine) {
      this._checkSums(machine, this.model.status?.kernels ?? []);
    }
  }

  /** The bars agree with the rows, and the queue with the places, whatever came last. */
  private _checkSums(machine: INode, kernels: IKernel[]): void {
    const here = kernels.reduce((sum, one) => sum + one.resident_bytes, 0);
    const [bar] = machine.gpus;
    assert.deepStrictEqual(
      [bar.used_bytes, bar.managed_bytes, bar.free_bytes, machine.host.copy_bytes],
      [here, here, TOTAL - here, kernels.reduce((sum, one) => sum + one.copy_bytes, 0)]
    );
    const waiting = kernels.filter(one => one.place !== null).map(one => one.id);
    assert.deepStrictEqual([...machine.queue].sort(), waiting.sort());
  }

  private _fetch(request: Request): Promise<Response> {
    const isLost = !this.isConnected;
    const [, id, action] = /kernels\/(\w+)\/(\w+)/.exec(request.url) ?? [];
    if (action === 'park' && !isLost) {
      this.change(id, 'parked', 1);
    }
    const body = JSON.stringify(id ? this.truth.kernels.get(id) : this.truth.answer());
    return new Promise((answer, refuse) => {
      this.answers.push(() =>
        isLost ? refuse(new TypeError('lost')) : answer(new Response(body, { status: 200 }))
      );
    });
  }
}

function turn(): Promise<void> {
  return new Promise(done => setImmediate(done));
}

type Step = (page: Page) => void;

const steps: fc.Arbitrary<[string, Step]> = fc.oneof(
  fc
    .tuple(
      fc.constantFrom(...IDS),
      fc.constantFrom('resident' as const, 'parked' as const, 'queued' as const),
      fc.integer({ min: 1, max: 9 })
    )
    .map(([id, residency, gib]): [string, Step] => [
      `${id} is ${residency}, ${gib} GiB`,
      page => page.change(id, residency, gib)
    ]),
  fc.constant<[string, Step]>(['an event comes', page => page.hear()]),
  fc.constant<[string, Step]>(['the page asks', page => void page.model.refresh()]),
  fc
    .nat(3)
    .map((index): [string, Step] => [
      `answer ${index} comes`,
      page => page.answers.splice(index % Math.max(1, page.answers.length), 1)[0]?.()
    ]),
  fc
    .constantFrom(...IDS)
    .map((id): [string, Step] => [
      `${id} is to be freed`,
      page => void page.model.act(id, 'park').catch(() => undefined)
    ]),
  fc.constant<[string, Step]>(['the connection is lost', page => page.lose()]),
  fc.constant<[string, Step]>(['the connection is back', page => void (page.isConnected = true)])
);

test('in any order of events, answers and losses the page shows what was so, and the newest in the end', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(steps, { maxLength: 40 }), async order => {
      const page = new Page();
      try {
        await page.settle();
        page.check();
        for (const [, step] of order) {
          step(page);
          await turn();
          page.check();
        }
        await page.settle();
        page.check();
        for (const id of IDS) {
          const { as_of_s } = page.truth.kernels.get(id) as IKernel;
          assert.strictEqual(page.model.kernel(id)?.as_of_s, as_of_s, id);
        }
      } finally {
        page.model.dispose();
      }
    }),
    { numRuns: 300, interruptAfterTimeLimit: 60_000 }
  );
});
