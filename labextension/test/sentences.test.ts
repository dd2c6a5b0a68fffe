import * as assert from 'node:assert';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import * as ts from 'typescript';
import { usedMemory } from '../src/memory';
import { usedText, waitText } from '../src/words';
import { gpu, node, trans } from './examples';

const SOURCES = join(__dirname, '..', '..', '..', 'labextension', 'src');

/** A call of the translation: its sentences, and how many values they get. */
interface ISentence {
  where: string;
  texts: string[];
  values: number;
}

function files(folder: string): string[] {
  return readdirSync(folder).flatMap(name => {
    const path = join(folder, name);
    return statSync(path).isDirectory() ? files(path) : /\.tsx?$/.test(name) ? [path] : [];
  });
}

/** Every `trans.__` and `trans._n` with a literal text; a call that spreads its values is counted by its texts. */
function sentences(path: string): ISentence[] {
  const source = ts.createSourceFile(
    path,
    readFileSync(path, 'utf8'),
    ts.ScriptTarget.Latest,
    true
  );
  const found: ISentence[] = [];
  const visit = (each: ts.Node) => {
    if (ts.isCallExpression(each) && ts.isPropertyAccessExpression(each.expression)) {
      const name = each.expression.name.text;
      if (name === '__' || name === '_n') {
        const texts = each.arguments.slice(0, name === '_n' ? 2 : 1);
        const rest = each.arguments.slice(texts.length); // of `_n` the count, which becomes %1
        if (texts.every(ts.isStringLiteralLike) && !rest.some(ts.isSpreadElement)) {
          const { line } = source.getLineAndCharacterOfPosition(each.getStart());
          const where = `${path.slice(SOURCES.length + 1)}:${line + 1}`;
          found.push({ where, texts: texts.map(text => text.text), values: rest.length });
        }
      }
    }
    ts.forEachChild(each, visit);
  };
  visit(source);
  return found;
}

test('each sentence names the values that it gets, a plural its count as the first', () => {
  const all = files(SOURCES).flatMap(sentences);
  assert.ok(all.length > 200, String(all.length));
  const wrong = all.filter(({ texts, values }) => {
    const named = texts.flatMap(text => [...text.matchAll(/%(\d+)/g)].map(each => Number(each[1])));
    const expected = Array.from({ length: values }, (_, index) => index + 1);
    return expected.some(each => !named.includes(each)) || named.some(each => each > values);
  });
  assert.deepStrictEqual(wrong, []);
});

test('counts stand where they belong, by JupyterLab’s own translation', () => {
  const gib = 2 ** 30;
  const gpus = Array.from({ length: 8 }, (_, index) =>
    gpu({ uuid: `GPU-${index}`, index, used_bytes: 9 * gib })
  );
  const used = (count: number) => usedText(usedMemory(node({ gpus: gpus.slice(0, count) })), trans);
  assert.strictEqual(used(8), '8 GPUs: 72 of 640 GiB in use');
  assert.strictEqual(used(1), '1 GPU: 9 of 80 GiB in use');
  const compute = (kernels: number, index?: number) =>
    waitText(
      { code: 'compute', args: { bytes: 0, kernels, gpu: index }, blockers: [] },
      () => null,
      trans
    );
  assert.strictEqual(compute(1, 5), 'Computing on GPU 5: 1 kernel, as many as allowed');
  assert.strictEqual(compute(3, 0), 'Computing on GPU 0: 3 kernels, as many as allowed');
  assert.strictEqual(compute(2), 'Computing on the GPU: 2 kernels, as many as allowed');
});
