import { ServerConnection } from '@jupyterlab/services';
import * as assert from 'node:assert';
import { test } from 'node:test';
import { AffinodeApi, AffinodeError } from '../src/api';

/** What becomes of a request that nothing answers: it ends when it is given up. */
const silence = (request: Request) =>
  new Promise<Response>((_, fail) => {
    request.signal.addEventListener('abort', () => fail(request.signal.reason));
  });

/** The same after the answer's head. */
const half = (request: Request) =>
  Promise.resolve({ ok: true, status: 200, json: () => silence(request) } as unknown as Response);

/** The API of a server that treats requests so. */
function api(fetch: (request: Request) => Promise<Response>): AffinodeApi {
  const settings = { baseUrl: 'http://127.0.0.1/', fetch: fetch as typeof globalThis.fetch };
  return new AffinodeApi(ServerConnection.makeSettings(settings));
}

test(
  'a question that hangs is given up, as where the server is away; an action has longer',
  { timeout: 5000 },
  async context => {
    const limits: number[] = [];
    const timeout = AbortSignal.timeout.bind(AbortSignal);
    context.mock.method(AbortSignal, 'timeout', (limit: number) => {
      limits.push(limit);
      return timeout(20);
    });
    // The timer of a timeout does not keep Node running.
    const awake = setInterval(() => undefined, 1000);
    context.after(() => clearInterval(awake));
    const isAway = (error: unknown) => error instanceof AffinodeError && error.status === 0;
    await assert.rejects(api(silence).status(), isAway);
    await assert.rejects(api(half).status(), isAway);
    await assert.rejects(api(silence).act('a', 'hibernate', {}), isAway);
    const [status, , action] = limits;
    assert.ok(status <= 60_000 && action > 1_800_000, String(limits));
  }
);

test('who asks for a move of a kernel that has nothing to move is told so', async () => {
  const asked = (nothing_moved: object) =>
    api(() => Promise.resolve(new Response(JSON.stringify({ id: 'a', nothing_moved })))).act(
      'a',
      'park',
      {}
    );
  const code = 'nothing-to-move';
  await assert.rejects(asked({ code, text: '' }), { slug: code });
  assert.equal((await asked({ code: null, text: 'the GPU is freed already' })).id, 'a');
});
