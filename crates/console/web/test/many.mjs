// A page with 10,000 stored rows and 1,000 requests, which change: what no test server has in a reasonable time.
//
// The rows and the stream of requests are invented; all else comes from a real server. Used by tests/many.mjs and frames.mjs.
import { newPage } from "./harness.mjs";

export const ROWS = 10_000;
export const REQUESTS = 1000;
/** Requests that run, as many as a server with 16 streams has. */
export const RUNNING = 16;

const key = (at) => String(at).padStart(64, "0");

/** The row before each one, by the shape of the store; null begins a prompt. */
export const SHAPES = {
  /** 1,000 beginnings with branches. */
  branches: (at) => (at % 10 === 0 ? null : at - (at % 10 === 1 ? 1 : (at % 3) + 1)),
  /** 40 conversations of 250 rows. */
  chains: (at) => (at % 250 === 0 ? null : at - 1),
  /** One conversation of 10,000 rows. */
  one: (at) => (at === 0 ? null : at - 1),
  /** A conversation of 5,000 rows that somebody left at each one. */
  comb: (at) => (at < 2 ? null : at - (at % 2) - 2),
  /** 10,000 prompts that have nothing in common. */
  flat: () => null,
};

export function manyRows(shape, used = 0) {
  const ends = [];
  return Array.from({ length: ROWS }, (_, at) => {
    const parent = SHAPES[shape](at);
    const start = parent === null ? 0 : ends[parent];
    ends[at] = start + 400 + (at % 7) * 60;
    return {
      key: key(at),
      parent: parent === null ? null : key(parent),
      fingerprint: "0".repeat(64),
      tokens: ends[at],
      start,
      children: 0,
      tiers: [at % 4 ? "disk" : "ram"],
      pending: false,
      bytes: 1 << 20,
      hits: at % 7,
      created: 1_790_000_000 + at,
      last_used: 1_790_000_000 + ((at * 7919 + used) % ROWS),
      reason: "finish",
      pinned: at % 50 === 0,
      text: parent === null ? `System prompt number ${at} of an assistant with a long description` : null,
    };
  });
}

export function manyRequests() {
  const now = Date.now();
  return Array.from({ length: REQUESTS }, (_, at) => ({
    id: at + 1,
    request_id: null,
    model: "stub",
    key: null,
    conversation: String(at % 80),
    title: `Conversation ${at % 80}`,
    arrived_ms: now - (REQUESTS - at) * 500,
    prompt_tokens: 3000,
    cached_tokens: 100 * (at % 30),
    new_tokens: 3000 - 100 * (at % 30),
    generated_tokens: 100,
    ...(at < REQUESTS - RUNNING
      ? {
          stage: "ended",
          outcome: "stop",
          hit: "partial",
          source: "ram",
          queue_ms: 1,
          restore_ms: 5,
          prefill_ms: 200,
          decode_ms: 400,
          total_ms: 606,
          drafts: { drafted: 80, accepted: 60, tokens_per_step: 2.5, saved_ms: 1234.5 },
          hygiene: [],
        }
      : { stage: "generating", tokens_per_second: 12.5, age_ms: 500, processed_tokens: 3000 }),
  }));
}

/** What a server sends every 250 ms while requests run. */
export function change(requests, step) {
  const running = requests.slice(-RUNNING);
  return running.map((row) => ({ ...row, generated_tokens: 100 + step, age_ms: 500 + 250 * step }));
}

export const event = (requests) => `event: requests\ndata: ${JSON.stringify({ version: 1, requests })}\n\n`;

/** Opens such a page. `push` sends an event to it, `use` changes the order of rows. */
export async function manyPage(browser, server, shape) {
  const requests = manyRequests();
  let rows = manyRows(shape);
  const opened = await newPage(browser, server, {}, async (page) => {
    await page.addInitScript((first) => {
      const real = globalThis.fetch;
      globalThis.fetch = (path, init) => {
        if (path !== "/api/requests?follow=1") return real(path, init);
        const body = new ReadableStream({
          start(stream) {
            globalThis.pushEvent = (text) => stream.enqueue(new TextEncoder().encode(text));
          },
        });
        globalThis.pushEvent(first);
        return Promise.resolve(new Response(body, { headers: { "content-type": "text/event-stream" } }));
      };
    }, event(requests));
    await page.route("**/api/cache/rows?**", (route) => {
      const offset = Number(new URL(route.request().url()).searchParams.get("offset"));
      const next = offset + 1000 < rows.length ? offset + 1000 : null;
      return route.fulfill({
        json: { total: rows.length, offset, rows: rows.slice(offset, offset + 1000), next_offset: next },
      });
    });
  });
  let step = 0;
  return {
    ...opened,
    push: () => {
      step += 1;
      return opened.page.evaluate((text) => globalThis.pushEvent(text), event(change(requests, step)));
    },
    use: () => {
      step += 1;
      rows = manyRows(shape, step);
    },
  };
}

/** The heap of a page after a collection, and its nodes. */
export async function memory(page) {
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("HeapProfiler.collectGarbage");
  await devtools.send("Performance.enable");
  const { metrics } = await devtools.send("Performance.getMetrics");
  const metric = (name) => metrics.find((one) => one.name === name).value;
  await devtools.detach();
  return { used: metric("JSHeapUsedSize"), heap: metric("JSHeapTotalSize"), nodes: metric("Nodes") };
}
