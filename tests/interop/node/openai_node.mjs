// The npm package `openai` against a server with TLS: one turn of a kind.
//
//     node openai_node.mjs URL text|audio|tool|interrupt
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';

const [url, turn] = process.argv.slice(2);
const RATE = 24_000;

const overdue = setTimeout(() => fail('no end within 20 s'), 20_000);
const fail = (why) => {
  console.error(why);
  process.exit(1);
};
process.on('unhandledRejection', fail);

const client = new OpenAI({ apiKey: 'sk-test', baseURL: url });
const connection = new OpenAIRealtimeWS({ model: 'gpt-realtime' }, client);
const events = [];
let wake = () => {};
connection.on('event', (event) => {
  events.push(event);
  wake();
});
connection.on('error', (error) => fail(`error: ${error.message}`));

async function expect(type) {
  for (;;) {
    while (events.length > 0) {
      const event = events.shift();
      if (event.type === type) return event;
    }
    await new Promise((resolve) => (wake = resolve));
  }
}

const say = (text) =>
  connection.send({
    type: 'conversation.item.create',
    item: { type: 'message', role: 'user', content: [{ type: 'input_text', text }] },
  });

function speak() {
  const sound = Buffer.alloc(2 * RATE * 2);
  for (let n = 0; n < RATE * 0.8; n++) {
    sound.writeInt16LE(Math.round(9_000 * Math.sin((2 * Math.PI * 220 * n) / RATE)), 2 * n);
  }
  for (let at = 0; at < sound.length; at += 4_800) {
    const audio = sound.subarray(at, at + 4_800).toString('base64');
    connection.send({ type: 'input_audio_buffer.append', audio });
  }
}

const turns = {
  async text() {
    connection.send({
      type: 'session.update',
      session: { type: 'realtime', instructions: 'Be brief.', output_modalities: ['text'] },
    });
    await expect('session.updated');
    say('hello');
    connection.send({ type: 'response.create' });
    const words = await expect('response.output_text.done');
    assert(words.text.length > 0);
    assert.equal((await expect('response.done')).response.status, 'completed');
  },
  async audio() {
    speak();
    await expect('input_audio_buffer.speech_started');
    await expect('input_audio_buffer.committed');
    const delta = await expect('response.output_audio.delta');
    assert(Buffer.from(delta.delta, 'base64').length > 0);
    assert.equal((await expect('response.done')).response.status, 'completed');
  },
  async tool() {
    const parameters = { type: 'object', properties: { city: { type: 'string' } } };
    const tools = [{ type: 'function', name: 'get_weather', description: 'Weather.', parameters }];
    connection.send({ type: 'session.update', session: { type: 'realtime', tools } });
    await expect('session.updated');
    say('What is the weather in Paris?');
    connection.send({ type: 'response.create' });
    const call = await expect('response.function_call_arguments.done');
    assert.deepEqual(JSON.parse(call.arguments), { city: 'Paris' });
    await expect('response.done');
    connection.send({
      type: 'conversation.item.create',
      item: { type: 'function_call_output', call_id: call.call_id, output: '{"celsius": 18}' },
    });
    connection.send({ type: 'response.create' });
    assert((await expect('response.output_audio_transcript.done')).transcript.includes('18'));
    await expect('response.done');
  },
  async interrupt() {
    say('Tell me a long story.');
    connection.send({ type: 'response.create' });
    await expect('response.output_audio.delta');
    speak();
    const done = await expect('response.done');
    assert.equal(done.response.status, 'cancelled');
    assert.equal(done.response.status_details.reason, 'turn_detected');
    assert.equal((await expect('response.done')).response.status, 'completed');
  },
};

await expect('session.created');
await turns[turn]();
clearTimeout(overdue);
connection.close();
