// What a turn costs on the session stores of Genkit: node growth.mjs memory|file TURNS
//
// One process, one session; every turn is an invocation of its own that goes on from the snapshot
// before, as over HTTP. Prints a JSON object per mark. `npm install` first.

import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { FileSessionStore, InMemorySessionStore, genkit } from 'genkit/beta';

const [kind = 'file', turns = '1000'] = process.argv.slice(2);
const directory = fs.mkdtempSync(path.join(os.tmpdir(), 'genkit-store-'));
const store = kind === 'memory' ? new InMemorySessionStore() : new FileSessionStore(directory);
const body = 'x'.repeat(300);
const ai = genkit({});
ai.defineModel({ name: 'fake/fixed' }, async () => ({
  message: { role: 'model', content: [{ text: body }] },
  finishReason: 'stop',
}));
const agent = ai.defineAgent({ name: 'a', model: 'fake/fixed', system: 's', store });

const marks = [10, 100, 1000, 10000].filter((mark) => mark <= Number(turns));
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const cpu = () => {
  const { user, system } = process.cpuUsage();
  return user + system;
};

let init = {};
let window = [];
for (let turn = 1; turn <= Number(turns); turn++) {
  const started = { wall: performance.now(), cpu: cpu() };
  const bidi = agent.streamBidi(init);
  bidi.send({ message: { role: 'user', content: [{ text: body }] } });
  bidi.close();
  for await (const _ of bidi.stream);
  const output = await bidi.output;
  if (output.finishReason !== 'stop') throw new Error(JSON.stringify(output.error));
  window.push({ wall: (performance.now() - started.wall) * 1000, cpu: cpu() - started.cpu });
  window = window.slice(-50);
  init = { snapshotId: output.snapshotId };
  if (marks.includes(turn)) {
    const file = path.join(directory, 'global', `${output.snapshotId}.json`);
    console.log(
      JSON.stringify({
        turn,
        bytes: kind === 'file' ? fs.statSync(file).size : 0,
        cpu_us: Math.round(median(window.map((one) => one.cpu))),
        wall_us: Math.round(median(window.map((one) => one.wall))),
      }),
    );
  }
}
const rss = process.memoryUsage().rss;
let size = 0;
if (kind === 'file') {
  for (const name of fs.readdirSync(path.join(directory, 'global'))) {
    const found = fs.statSync(path.join(directory, 'global', name));
    if (found.isFile()) size += found.size;
  }
}
console.log(JSON.stringify({ rss, size }));
fs.rmSync(directory, { recursive: true, force: true });
