// The npm package `@google/genai` against a server with TLS: one turn of a kind.
//
//     node genai_node.mjs URL text|audio|tool|interrupt|resume
import assert from 'node:assert/strict';
import { GoogleGenAI, Modality } from '@google/genai';

const [url, turn] = process.argv.slice(2);
const RATE = 16_000;

const overdue = setTimeout(() => fail('no end within 30 s'), 30_000);
const fail = (why) => {
  console.error(why);
  process.exit(1);
};
process.on('unhandledRejection', fail);

const client = new GoogleGenAI({ apiKey: 'test-key', httpOptions: { baseUrl: url } });

async function connect(more = {}) {
  const messages = [];
  let wake = () => {};
  let closed;
  const session = await client.live.connect({
    model: 'gemini-3.8-live',
    config: {
      responseModalities: [Modality.AUDIO],
      systemInstruction: 'Be brief.',
      inputAudioTranscription: {},
      outputAudioTranscription: {},
      sessionResumption: {},
      ...more,
    },
    callbacks: {
      onmessage: (message) => {
        messages.push(message);
        wake();
      },
      onerror: (error) => fail(`error: ${error.message}`),
      onclose: (event) => {
        closed = event;
        wake();
      },
    },
  });
  const next = async () => {
    for (;;) {
      if (messages.length > 0) return messages.shift();
      if (closed) throw new Error(`closed: ${closed.code} ${closed.reason}`);
      await new Promise((resolve) => (wake = resolve));
    }
  };
  return { session, next };
}

/** The next turn of the model. */
async function whole(next) {
  const seen = { words: '', heard: '', voice: 0, interrupted: false, calls: [] };
  for (;;) {
    const message = await next();
    if (message.data) seen.voice += Buffer.from(message.data, 'base64').length;
    if (message.toolCall) seen.calls.push(...message.toolCall.functionCalls);
    const content = message.serverContent ?? {};
    seen.words += content.outputTranscription?.text ?? '';
    seen.heard += content.inputTranscription?.text ?? '';
    seen.interrupted ||= Boolean(content.interrupted);
    if (content.turnComplete || seen.calls.length > 0) return seen;
  }
}

/** The handle that comes after a turn. */
async function handle(next) {
  for (;;) {
    const update = (await next()).sessionResumptionUpdate;
    if (update?.resumable) return update.newHandle;
  }
}

function speak(session) {
  const sound = Buffer.alloc(2 * RATE * 2);
  for (let n = 0; n < RATE * 0.8; n++) {
    sound.writeInt16LE(Math.round(9_000 * Math.sin((2 * Math.PI * 220 * n) / RATE)), 2 * n);
  }
  for (let at = 0; at < sound.length; at += 3_200) {
    const data = sound.subarray(at, at + 3_200).toString('base64');
    session.sendRealtimeInput({ audio: { data, mimeType: `audio/pcm;rate=${RATE}` } });
  }
}

const turns = {
  async text() {
    const { session, next } = await connect();
    session.sendClientContent({ turns: 'hello', turnComplete: true });
    const seen = await whole(next);
    assert.equal(seen.words, 'You said: hello');
    assert(seen.voice > 4_800);
    session.close();
  },
  async audio() {
    const { session, next } = await connect();
    speak(session);
    session.sendRealtimeInput({ audioStreamEnd: true });
    const seen = await whole(next);
    assert.equal(seen.heard, 'What time is it?');
    assert.equal(seen.words, 'Good day to you.');
    session.close();
  },
  async tool() {
    const parametersJsonSchema = { type: 'object', properties: { city: { type: 'string' } } };
    const declaration = { name: 'get_weather', behavior: 'BLOCKING', parametersJsonSchema };
    const tools = [{ functionDeclarations: [declaration] }];
    const { session, next } = await connect({ tools });
    session.sendClientContent({ turns: 'What is the weather in Paris?', turnComplete: true });
    const [call] = (await whole(next)).calls;
    assert.deepEqual(call.args, { city: 'Paris' });
    const response = { celsius: 18 };
    session.sendToolResponse({ functionResponses: [{ id: call.id, name: call.name, response }] });
    assert.equal((await whole(next)).words, 'It is 18 degrees.');
    session.close();
  },
  async interrupt() {
    const { session, next } = await connect();
    session.sendClientContent({ turns: 'Tell me a long story.', turnComplete: true });
    while (!(await next()).data);
    speak(session);
    assert((await whole(next)).interrupted);
    assert.equal((await whole(next)).words, 'Good day to you.');
    session.close();
  },
  async resume() {
    const first = await connect();
    first.session.sendClientContent({ turns: 'remember me', turnComplete: true });
    await whole(first.next);
    const newest = await handle(first.next);
    first.session.close();
    await new Promise((resolve) => setTimeout(resolve, 200));
    const second = await connect({ sessionResumption: { handle: newest } });
    second.session.sendClientContent({ turnComplete: true });
    assert.equal((await whole(second.next)).words, 'You said: remember me');
    second.session.close();
  },
};

await turns[turn]();
clearTimeout(overdue);
process.exit(0);
