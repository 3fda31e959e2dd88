// OpenAI's JavaScript SDK against a running server. Run by `node --test`; tests/clients/run.py sets the environment.
// Only what the server enforces is asserted, never prose.
import assert from "node:assert/strict";
import test from "node:test";
import { createRequire } from "node:module";

const load = createRequire(`${process.env.PONCHO_NODE}/`);
const OpenAI = load("openai").default ?? load("openai");
const MODEL = process.env.PONCHO_MODEL;
const URL = process.env.PONCHO_URL;
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "any", maxRetries: 0, timeout: 300_000 });
// Replies there are the same bytes each time: for tests that compare two of them.
const exact = new OpenAI({ baseURL: `${process.env.PONCHO_EXACT_URL}/v1`, apiKey: "any", maxRetries: 0, timeout: 300_000 });
const messages = [{ role: "user", content: "Say hello." }];
const CLOCK = { type: "object", properties: { zone: { enum: ["utc", "local"] } }, required: ["zone"], additionalProperties: false };
const CAT = {
  type: "object",
  properties: { legs: { type: "integer", minimum: 0, maximum: 9 }, tail: { type: "boolean" } },
  required: ["legs", "tail"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "now", parameters: CLOCK } }];

const askAt = (server, fields = {}) =>
  server.chat.completions.create({ model: MODEL, messages, max_tokens: 12, temperature: 0, ...fields });
const ask = (fields) => askAt(client, fields);
const askExact = (fields) => askAt(exact, fields);
const collect = async (stream) => {
  const all = [];
  for await (const piece of stream) all.push(piece);
  return all;
};
async function untilIdle() {
  const deadline = Date.now() + 60_000;
  for (;;) {
    const page = await (await fetch(`${URL}/metrics`)).text();
    if (/^poncho_http_in_flight 0$/m.test(page)) return;
    assert.ok(Date.now() < deadline, "requests are still in flight");
    await new Promise((wake) => setTimeout(wake, 50));
  }
}

test("a chat completion is whole", async () => {
  const answer = await ask();
  assert.equal(answer.object, "chat.completion");
  assert.equal(answer.model, MODEL);
  assert.equal(answer.choices[0].message.role, "assistant");
  assert.ok(answer.choices[0].message.content.length > 0);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

test("a chat stream adds up", async () => {
  const whole = await askExact();
  const chunks = await collect(await askExact({ stream: true, stream_options: { include_usage: true } }));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), whole.choices[0].message.content);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(chunks.at(-2).choices[0].finish_reason, whole.choices[0].finish_reason);
});

test("the stream helper gives the final completion", async () => {
  // The helper refuses replies that were cut, so this one ends by a stop.
  const stop = [(await askExact()).choices[0].message.content.slice(6, 9)];
  const runner = exact.chat.completions.stream({ model: MODEL, messages, max_tokens: 12, temperature: 0, stop });
  const final = await runner.finalChatCompletion();
  assert.equal(final.choices[0].message.content, (await askExact({ stop })).choices[0].message.content);
});

for (const choice of ["required", { type: "function", function: { name: "now" } }]) {
  test(`a tool is called: ${JSON.stringify(choice)}`, async () => {
    const answer = await ask({ tools, tool_choice: choice, parallel_tool_calls: false, max_tokens: 50 });
    assert.equal(answer.choices[0].finish_reason, "tool_calls");
    const [call] = answer.choices[0].message.tool_calls;
    assert.equal(call.function.name, "now");
    assert.ok(["utc", "local"].includes(JSON.parse(call.function.arguments).zone));
  });
}

test("a streamed tool call adds up", async () => {
  const fields = { tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 50, stream: true };
  const pieces = (await collect(await ask(fields))).flatMap((chunk) => chunk.choices[0].delta.tool_calls ?? []);
  assert.equal(pieces[0].function.name, "now");
  assert.ok(pieces[0].id);
  assert.ok(["utc", "local"].includes(JSON.parse(pieces.map((piece) => piece.function.arguments ?? "").join("")).zone));
});

test("a tool's answer finds what was sampled", async () => {
  const fields = { tools, parallel_tool_calls: false };
  const first = await ask({ ...fields, tool_choice: "required", max_tokens: 50 });
  const reply = first.choices[0].message;
  const next = [...messages, reply, { role: "tool", tool_call_id: reply.tool_calls[0].id, content: "noon" }];
  const second = await ask({ ...fields, messages: next, max_tokens: 3 });
  assert.ok(second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1);
});

test("a schema is enforced", async () => {
  const form = { type: "json_schema", json_schema: { name: "cat", strict: true, schema: CAT } };
  const cat = JSON.parse((await ask({ response_format: form, max_tokens: 40 })).choices[0].message.content);
  assert.deepEqual(Object.keys(cat).sort(), ["legs", "tail"]);
  assert.ok(Number.isInteger(cat.legs));
});

test("logprobs spell the reply", async () => {
  const answer = await ask({ logprobs: true, top_logprobs: 2, max_tokens: 4 });
  const content = answer.choices[0].logprobs.content;
  assert.equal(Buffer.concat(content.map((entry) => Buffer.from(entry.bytes))).toString(), answer.choices[0].message.content);
  assert.ok(content.every((entry) => entry.top_logprobs.length === 2 && entry.logprob <= 0));
});

test("a wrong field is a BadRequestError that names it", async () => {
  await assert.rejects(ask({ temperature: -1 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    return error.status === 400 && error.param === "temperature" && error.type === "invalid_request_error";
  });
});

test("what is not there is a NotFoundError", async () => {
  await assert.rejects(client.models.retrieve("nobody"), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    return error.code === "model_not_found";
  });
});

test("a wrong key is an AuthenticationError", async () => {
  const locked = new OpenAI({ baseURL: `${process.env.PONCHO_LOCKED_URL}/v1`, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(locked.models.list(), (error) => error instanceof OpenAI.AuthenticationError && error.status === 401);
});

test("models are listed", async () => {
  const listed = await client.models.list();
  assert.deepEqual(listed.data.map((model) => model.id), [MODEL]);
});

test("completions go on and stream the same", async () => {
  const fields = { model: MODEL, prompt: "One, two,", max_tokens: 4, temperature: 0 };
  const whole = await client.completions.create(fields);
  const chunks = await collect(await client.completions.create({ ...fields, stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), whole.choices[0].text);
  assert.equal(whole.object, "text_completion");
});

test("a batch of embeddings gives the vectors of one by one", async () => {
  const batch = await client.embeddings.create({ model: MODEL, input: ["a cat", "rain"] });
  const alone = await client.embeddings.create({ model: MODEL, input: "rain" });
  assert.deepEqual(batch.data[1].embedding, alone.data[0].embedding);
  const length = alone.data[0].embedding.reduce((sum, x) => sum + x * x, 0);
  assert.ok(Math.abs(length - 1) < 1e-3);
});

test("a response is made, kept, gone on from and deleted", async () => {
  const first = await client.responses.create({ model: MODEL, input: "Hi", max_output_tokens: 6, temperature: 0 });
  assert.equal(first.object, "response");
  assert.ok(first.output_text.length > 0);
  assert.equal((await client.responses.retrieve(first.id)).output_text, first.output_text);
  const second = await client.responses.create({ model: MODEL, input: "More", previous_response_id: first.id, max_output_tokens: 3 });
  assert.equal(second.previous_response_id, first.id);
  const items = await client.responses.inputItems.list(first.id);
  assert.equal(items.data[0].content[0].text, "Hi");
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), (error) => error instanceof OpenAI.NotFoundError);
});

test("the events of a response are numbered and in order", async () => {
  const events = await collect(await client.responses.create({ model: MODEL, input: "Hi", max_output_tokens: 6, temperature: 0, stream: true }));
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, at) => at));
  assert.equal(events[0].type, "response.created");
  assert.ok(["response.completed", "response.incomplete"].includes(events.at(-1).type));
  const text = events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join("");
  assert.equal(text, events.find((event) => event.type === "response.output_text.done").text);
});

test("an aborted stream cancels the request", async () => {
  const stream = await ask({ stream: true, max_tokens: 4000, ignore_eos: true });
  for await (const _ of stream) break;
  stream.controller.abort();
  await untilIdle();
});
