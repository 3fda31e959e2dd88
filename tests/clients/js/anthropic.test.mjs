// Anthropic's JavaScript SDK against a running server. Run by `node --test`; tests/clients/run.py sets the environment.
// Only what the server enforces is asserted, never prose.
import assert from "node:assert/strict";
import test from "node:test";
import { createRequire } from "node:module";

const load = createRequire(`${process.env.PONCHO_NODE}/`);
const Anthropic = load("@anthropic-ai/sdk").default ?? load("@anthropic-ai/sdk");
const MODEL = process.env.PONCHO_MODEL;
const client = new Anthropic({ baseURL: process.env.PONCHO_URL, apiKey: "any", maxRetries: 0, timeout: 300_000 });
// Replies there are the same bytes each time: for tests that compare two of them.
const exact = new Anthropic({ baseURL: process.env.PONCHO_EXACT_URL, apiKey: "any", maxRetries: 0, timeout: 300_000 });
const messages = [{ role: "user", content: "Say hello." }];
const CLOCK = { type: "object", properties: { zone: { enum: ["utc", "local"] } }, required: ["zone"], additionalProperties: false };
const tools = [{ name: "now", description: "The time", input_schema: CLOCK }];

const askAt = (server, fields = {}) => server.messages.create({ model: MODEL, messages, max_tokens: 12, temperature: 0, ...fields });
const ask = (fields) => askAt(client, fields);
const askExact = (fields) => askAt(exact, fields);
const prompt = (usage) => usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens;

test("a message is whole", async () => {
  const message = await ask();
  assert.equal(message.type, "message");
  assert.equal(message.role, "assistant");
  assert.equal(message.content[0].type, "text");
  assert.ok(message.content[0].text.length > 0);
  assert.ok(["end_turn", "max_tokens"].includes(message.stop_reason));
});

test("a stream adds up and its events come in order", async () => {
  const whole = await askExact();
  const kinds = [];
  let text = "";
  for await (const event of await askExact({ stream: true })) {
    if (event.type !== "ping") kinds.push(event.type);
    if (event.type === "content_block_delta") text += event.delta.text;
  }
  assert.equal(text, whole.content[0].text);
  assert.deepEqual(kinds.slice(0, 2), ["message_start", "content_block_start"]);
  assert.deepEqual(kinds.slice(-3), ["content_block_stop", "message_delta", "message_stop"]);
});

test("the stream helper gives the final message", async () => {
  const final = await exact.messages.stream({ model: MODEL, messages, max_tokens: 12, temperature: 0 }).finalMessage();
  assert.equal(final.content[0].text, (await askExact()).content[0].text);
});

test("a tool use makes the round", async () => {
  const choice = { type: "tool", name: "now", disable_parallel_tool_use: true };
  const first = await ask({ tools, tool_choice: choice, max_tokens: 50 });
  assert.equal(first.stop_reason, "tool_use");
  const block = first.content.find((part) => part.type === "tool_use");
  assert.ok(["utc", "local"].includes(block.input.zone));
  const next = [
    ...messages,
    { role: "assistant", content: first.content },
    { role: "user", content: [{ type: "tool_result", tool_use_id: block.id, content: "noon" }] },
  ];
  const second = await ask({ tools, tool_choice: { type: "auto", disable_parallel_tool_use: true }, messages: next, max_tokens: 3 });
  assert.ok(second.usage.cache_read_input_tokens >= prompt(first.usage) + first.usage.output_tokens - 1);
});

test("a streamed tool use adds up", async () => {
  const choice = { type: "any", disable_parallel_tool_use: true };
  const stream = client.messages.stream({ model: MODEL, messages, tools, tool_choice: choice, max_tokens: 50, temperature: 0 });
  let pieces = "";
  stream.on("inputJson", (piece) => (pieces += piece));
  const final = await stream.finalMessage();
  assert.deepEqual(JSON.parse(pieces), final.content[0].input);
});

test("tokens are counted as they are read", async () => {
  const counted = await client.messages.countTokens({ model: MODEL, messages });
  assert.equal(counted.input_tokens, prompt((await ask()).usage));
});

test("a stop sequence is reported", async () => {
  const text = (await askExact({ max_tokens: 24 })).content[0].text;
  const stop = text.slice(text.length / 2).trim().slice(0, 3);
  const message = await askExact({ max_tokens: 24, stop_sequences: [stop] });
  assert.deepEqual([message.stop_reason, message.stop_sequence], ["stop_sequence", stop]);
});

test("a wrong field is a BadRequestError that names it", async () => {
  await assert.rejects(ask({ temperature: 7 }), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.equal(error.error.error.type, "invalid_request_error");
    return error.message.includes("temperature");
  });
});

test("a wrong key is an AuthenticationError", async () => {
  const locked = new Anthropic({ baseURL: process.env.PONCHO_LOCKED_URL, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(locked.messages.create({ model: MODEL, messages, max_tokens: 1 }), (error) => {
    return error instanceof Anthropic.AuthenticationError && error.status === 401;
  });
});

test("an aborted stream ends", async () => {
  const stream = client.messages.stream({ model: MODEL, messages, max_tokens: 4000, ignore_eos: true });
  let seen = 0;
  await assert.rejects(async () => {
    for await (const event of stream) {
      if (event.type === "content_block_delta" && ++seen === 2) stream.abort();
    }
    await stream.finalMessage();
  }, (error) => error instanceof Anthropic.APIUserAbortError);
  assert.ok((await ask()).content.length > 0, "the next request works");
});
