import * as assert from 'node:assert';
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { test } from 'node:test';
import { VERSION } from '../src/version';

test('the page, the package and the server are of one version', () => {
  const read = (path: string) => readFileSync(resolve(process.cwd(), path), 'utf8');
  assert.strictEqual(JSON.parse(read('package.json')).version, VERSION);
  const server = /__version__ = "([^"]+)"/.exec(read('jupyter_affinode/_version.py'))?.[1];
  assert.strictEqual(server, VERSION);
});
