import * as assert from 'node:assert';
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { test } from 'node:test';
import { AffinodeError } from '../src/api';
import { passes, problemOf, problemOfError } from '../src/problems';
import { controller, node, status, trans } from './examples';

/** What is wrong where there is no controller, by the server's code. */
const without = (code: string | null) =>
  problemOf({ ...status([], null), available: false, code }, trans);

/** What is wrong where a request failed. */
const failed = (httpStatus: number, message = '') =>
  problemOfError(new AffinodeError(httpStatus, 'http', message), trans);

test('a status of the same release is no problem', () => {
  assert.strictEqual(problemOf(status([]), trans), null);
  assert.strictEqual(passes(null), false);
});

test('a server or controller of another release is told with both versions', () => {
  const others = {
    server: { ...status([]), version: '99.1.0' },
    'GPU controller': status([], node({ controller: controller({ version: '99.1.0' }) }))
  };
  for (const [name, other] of Object.entries(others)) {
    const problem = problemOf(other, trans);
    assert.deepStrictEqual([problem?.kind, passes(problem)], ['version', false]);
    assert.match(problem?.message ?? '', new RegExp(`${name} of version 99\\.1\\.0`));
  }
});

test('every code of an absent controller that the server declares has a kind and words of its own', () => {
  const source = resolve(process.cwd(), 'jupyter_affinode/server/controller_watch.py');
  const declared = /^CODES = \((.*)\)$/m.exec(readFileSync(source, 'utf8'))?.[1] ?? '';
  const codes = [...declared.matchAll(/"([^"]+)"/g)].map(match => match[1]);
  const kinds = Object.fromEntries(codes.map(code => [code, without(code)?.kind]));
  assert.deepStrictEqual(kinds, {
    starting: 'starting',
    refused: 'controller',
    unreachable: 'controller',
    ended: 'controller',
    disabled: 'disabled',
    remote: 'remote'
  });
  assert.strictEqual(new Set(codes.map(code => without(code)?.message)).size, codes.length);
  assert.strictEqual(without('a-new-code')?.kind, 'controller');
  assert.strictEqual(without(null)?.kind, 'controller');
});

test('the last status is kept only where it may come back by itself', () => {
  for (const code of ['starting', 'refused', 'unreachable', 'ended']) {
    assert.ok(passes(without(code)), code);
  }
  for (const code of ['disabled', 'remote']) {
    assert.ok(!passes(without(code)), code);
  }
});

test('a server that does not run passes, also where the Hub or another server answers for it', () => {
  for (const code of [0, 424, 502, 503, 504]) {
    assert.deepStrictEqual([failed(code).kind, passes(failed(code))], ['unreachable', true]);
  }
  const gone = problemOfError(new AffinodeError(404, 'http', 'Not Found'), trans, true);
  assert.strictEqual(gone.kind, 'unreachable');
});

test('a failed request says what is missing, and whether it passes', () => {
  const said = [404, 401, 403, 0, 500].map(code => [failed(code).kind, passes(failed(code))]);
  assert.deepStrictEqual(said, [
    ['missing', false],
    ['refused', false],
    ['refused', false],
    ['unreachable', true],
    ['controller', true]
  ]);
  assert.strictEqual(failed(500, 'Internal Server Error').message, 'Internal Server Error');
});
