// The tests of the console in a real browser, against servers of a stub model.
//
// Called by `make test` after the page and the example `console_server` were built; builds nothing itself. The browser is
// a Chromium on PATH, or else the one that the npm package @sparticuz/chromium carries. With a folder as its argument it
// writes screenshots of every view there. With DIST=1 the page is taken from ../dist instead of the server, so that a
// change of the page can be tried without compiling. It must never use a server that it did not start.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const root = fileURLToPath(new URL("../../../../", import.meta.url));
const target = process.env.CARGO_TARGET_DIR ?? join(root, "target");
const profile = process.env.PONCHO_PROFILE ?? "release";
const shots = process.argv[2];
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** The views, and what is there once their data came. */
const VIEWS = {
  requests: ".line-open",
  store: ".cell",
  savings: ".column",
  models: ".card h2",
  chat: "select option",
  system: "tbody tr",
};
const WAIT = 60_000;

async function browserPath() {
  for (const name of ["chromium", "chromium-browser", "google-chrome"]) {
    for (const folder of (process.env.PATH ?? "").split(delimiter)) {
      if (existsSync(join(folder, name))) return join(folder, name);
    }
  }
  const { default: carried } = await import("@sparticuz/chromium");
  // Not its own arguments: with a single process, closing one page ends all of them.
  return carried.executablePath();
}

async function startServer(...keys) {
  const child = spawn(join(target, profile, "examples", "console_server"), keys, {
    stdio: ["ignore", "pipe", "inherit"],
  });
  let text = "";
  for await (const piece of child.stdout) {
    text += piece;
    const address = /http:\/\/\S+/.exec(text);
    if (address) return { url: address[0], stop: () => child.kill("SIGTERM") };
  }
  throw new Error(`the server did not start: ${text}`);
}

function tools(names) {
  return names.map((name) => ({
    type: "function",
    function: {
      name,
      description: `Does ${name} with a file of the workshop.`,
      parameters: { type: "object", properties: { file: { type: "string" } } },
    },
  }));
}

const SYSTEM =
  "You are a careful assistant for the files of a small workshop. Read a file before you speak of it, and name it in the " +
  "answer. Keep answers short, never invent a file, and say so if you do not know.";
const NAMES = ["list", "read", "write"];

/** A recorded conversation: what changes is planted by the caller. */
function conversation({
  system = SYSTEM,
  first,
  edited = "Oak, ash and a little walnut, all of it dry.",
  names = NAMES,
}) {
  return {
    model: "stub",
    max_tokens: 12,
    ignore_eos: true,
    tools: tools(names),
    messages: [
      { role: "system", content: system },
      { role: "user", content: first },
      { role: "assistant", content: edited },
      { role: "user", content: "Put all of it into one list, sorted by how much there is of it." },
    ],
  };
}

const PLANTED = [
  {
    cause: "clock",
    before: { first: "Which kinds of wood are in the workshop?", system: `The time is 12:04:11. ${SYSTEM}` },
    after: { first: "Which kinds of wood are in the workshop?", system: `The time is 12:05:37. ${SYSTEM}` },
  },
  {
    cause: "tool_order",
    before: { first: "Plan a small bench for the garden." },
    after: { first: "Plan a small bench for the garden.", names: ["write", "read", "list"] },
  },
  {
    cause: "edited_history",
    before: { first: "How do I sharpen a plane iron?" },
    after: { first: "How do I sharpen a plane iron?", edited: "With water stones, first coarse and then fine ones." },
  },
];

async function ask(server, body, key) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  return fetch(`${server.url}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(body) });
}

/** A prompt that takes the stub some seconds. */
function slow(words) {
  return {
    model: "stub",
    max_tokens: 400,
    ignore_eos: true,
    messages: [{ role: "user", content: `${words} `.repeat(700) }],
  };
}

async function newPage(browser, server, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  const outside = [];
  const problems = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(server.url)) outside.push(request.url());
  });
  page.on("console", (message) => {
    if (/Content.Security.Policy/i.test(message.text())) problems.push(message.text());
  });
  page.on("pageerror", (error) => problems.push(String(error)));
  if (process.env.DIST) {
    await page.route("**/console/app.*", (route) => {
      const name = new URL(route.request().url()).pathname.split("/").pop();
      return route.fulfill({ path: fileURLToPath(new URL(`../dist/${name}`, import.meta.url)) });
    });
  }
  await page.goto(server.url);
  return {
    page,
    check: () => assert.deepEqual([outside, problems], [[], []], "requests elsewhere; errors of the page"),
  };
}

async function noSeriousProblems(page, where) {
  // The debugger evaluates it, so the page's own policy stays as strict as it is.
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, impact, nodes }) => ({
      id,
      impact,
      at: nodes.map((node) => node.target.join(" ")).slice(0, 4),
    }));
  });
  const serious = found.filter(({ impact }) => impact === "serious" || impact === "critical");
  assert.deepEqual(serious, [], `axe, ${where}`);
}

const tests = {
  async "three planted changes are named"(browser, server) {
    for (const { before, after } of PLANTED) {
      for (const turn of [before, after]) assert.equal((await ask(server, conversation(turn))).status, 200);
    }
    const { page, check } = await newPage(browser, server);
    for (const [at, { cause, after }] of PLANTED.entries()) {
      await page.locator(`[data-request="${2 * at + 2}"] .line-open`).click();
      const why = page.locator(`.why[data-cause="${cause}"]`);
      await why.waitFor({ timeout: WAIT });
      assert.match(await why.textContent(), /What to change/);
      assert.match(await why.textContent(), /Stored[\s\S]*Sent/);
      assert.equal(
        await page.getByRole("heading", { name: after.first }).count(),
        1,
        "both requests are one conversation",
      );
      await noSeriousProblems(page, `why ${cause}`);
      await page.keyboard.press("Escape");
      await why.waitFor({ state: "detached" });
    }
    check();
  },

  async "progress moves and a cancel cancels"(browser, server) {
    const { page, check } = await newPage(browser, server);
    const answer = ask(server, slow("sea and sand"));
    const bar = page.locator('.under-way [role="progressbar"]');
    await bar.waitFor({ timeout: WAIT });
    const seen = new Set();
    while (seen.size < 3) {
      const now = await bar.getAttribute("aria-valuenow", { timeout: WAIT }).catch(() => null);
      assert.notEqual(now, null, `the bar is gone after ${[...seen]}`);
      seen.add(Number(now));
    }
    assert.deepEqual(
      [...seen],
      [...seen].sort((one, two) => one - two),
      "it only grows",
    );
    await page.getByRole("button", { name: /^Cancel request/ }).click();
    const ended = await answer;
    assert.equal(ended.status, 410);
    assert.equal((await ended.json()).error.code, "cancelled");
    await page.locator(".badge-cancelled").waitFor({ timeout: WAIT });
    check();
  },

  async "a pull shows its bar"(browser, server) {
    const { page, check } = await newPage(browser, server);
    await page.getByRole("link", { name: "Models" }).click();
    await page.getByLabel("Fetch a model").fill("smollm2:135m");
    await page.keyboard.press("Enter");
    const bar = page.getByRole("progressbar", { name: /Download of smollm2/ });
    const seen = new Set();
    while (!seen.has(100)) seen.add(Number(await bar.getAttribute("aria-valuenow", { timeout: WAIT })));
    assert.ok(seen.size > 3, `it moved: ${[...seen]}`);
    await page.getByText("success").waitFor({ timeout: WAIT });
    check();
  },

  async "the chat shows the bar of each turn"(browser, server) {
    const { page, check } = await newPage(browser, server);
    await page.goto(`${server.url}/#chat`);
    await page.locator(VIEWS.chat).first().waitFor({ state: "attached", timeout: WAIT });
    for (const turn of [1, 2]) {
      await page.getByLabel("Message", { exact: true }).fill(`Hello, number ${turn}.`);
      await page.keyboard.press("Enter");
      await page.getByRole("button", { name: "Send" }).waitFor({ timeout: WAIT });
      await page
        .locator(".turn-bar")
        .nth(turn - 1)
        .waitFor({ timeout: WAIT });
    }
    const kept = await page.evaluate(() => JSON.parse(localStorage.getItem("poncho-chat")).messages.length);
    assert.equal(kept, 4);
    check();
  },

  async "a wrong key shows nothing"(browser) {
    const server = await startServer("one", "two", "boss");
    try {
      assert.equal((await ask(server, conversation({ first: "The secret of key one." }), "one")).status, 200);
      const { page, check } = await newPage(browser, server);
      const enter = async (key) => {
        await page.getByLabel("API key").fill(key);
        await page.keyboard.press("Enter");
      };
      await noSeriousProblems(page, "key");
      await enter("wrong");
      await page.getByRole("alert").waitFor({ timeout: WAIT });
      assert.equal(await page.locator(".shell, .line").count(), 0);
      const stored = await page.evaluate(() => JSON.stringify({ ...sessionStorage, ...localStorage }));
      assert.ok(!stored.includes("wrong"), "a wrong key is not kept");
      // Another key sees neither the request nor a word of it.
      await enter("two");
      await page.getByText("No requests yet").waitFor({ timeout: WAIT });
      assert.ok(!(await page.content()).includes("secret"));
      await page.getByRole("button", { name: "Change key" }).click();
      await enter("boss");
      await page.locator(".line-open").waitFor({ timeout: WAIT });
      assert.ok(!(await page.content()).includes("secret"), "an admin sees figures, not text");
      await page.getByRole("button", { name: "Change key" }).click();
      await enter("one");
      await page.getByText("The secret of key one.").waitFor({ timeout: WAIT });
      check();
    } finally {
      server.stop();
    }
  },

  async "every view works by keyboard, light and dark, from phone width up"(browser, server) {
    if (shots) mkdirSync(shots, { recursive: true });
    for (const [size, viewport] of [
      ["desktop", { width: 1280, height: 800 }],
      ["phone", { width: 375, height: 740 }],
    ]) {
      for (const colorScheme of ["light", "dark"]) {
        const { page, check } = await newPage(browser, server, { viewport, colorScheme });
        for (const [view, seen] of Object.entries(VIEWS)) {
          await page.goto(`${server.url}/#${view}`);
          await page.getByRole("heading", { level: 1 }).waitFor();
          await page.locator(seen).first().waitFor({ state: "attached", timeout: WAIT });
          const tooWide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
          assert.ok(!tooWide, `${view} fits into ${size}`);
          await noSeriousProblems(page, `${view} ${size} ${colorScheme}`);
          if (shots) await page.screenshot({ path: join(shots, `${view}-${size}-${colorScheme}.png`) });
        }
        await page.goto(`${server.url}/#requests`);
        await page.locator('[data-request="2"] .line-open').press("Enter");
        await page.locator(".why").waitFor({ timeout: WAIT });
        if (shots) await page.screenshot({ path: join(shots, `why-${size}-${colorScheme}.png`) });
        check();
        await page.context().close();
      }
    }
  },

  async "ten thousand rows and a thousand requests stay fluid"(browser, server) {
    const rows = Array.from({ length: 10_000 }, (_, at) => {
      const parent = at % 10 === 0 ? null : at - (at % 10 === 1 ? 1 : (at % 3) + 1);
      return { key: String(at).padStart(64, "0"), parent: parent === null ? null : String(parent).padStart(64, "0") };
    }).map((row, at) => ({
      ...row,
      fingerprint: "",
      tokens: 512 + 400 * (at % 10),
      start: row.parent === null ? 0 : 112 + 400 * (at % 10),
      children: 0,
      tiers: [at % 4 ? "disk" : "ram"],
      pending: false,
      bytes: 1 << 20,
      hits: at % 7,
      created: 1_790_000_000 + at,
      last_used: 1_790_000_000 + at,
      reason: "finish",
      text: row.parent === null ? `System prompt number ${at}` : null,
    }));
    const now = Date.now();
    const requests = Array.from({ length: 1000 }, (_, at) => ({
      id: at + 1,
      request_id: null,
      model: "stub",
      key: null,
      conversation: String(at % 80),
      title: `Conversation ${at % 80}`,
      arrived_ms: now - (1000 - at) * 500,
      stage: "ended",
      outcome: "stop",
      prompt_tokens: 3000,
      cached_tokens: 100 * (at % 30),
      new_tokens: 3000 - 100 * (at % 30),
      generated_tokens: 100,
      hit: "partial",
      source: "ram",
      queue_ms: 1,
      restore_ms: 5,
      prefill_ms: 200,
      decode_ms: 400,
      total_ms: 606,
      hygiene: [],
    }));
    const { page, check } = await newPage(browser, server);
    await page.route("**/api/requests?follow=1", (route) =>
      route.fulfill({
        contentType: "text/event-stream",
        body: `event: requests\ndata: ${JSON.stringify({ version: 1, requests })}\n\n`,
      }),
    );
    await page.route("**/api/cache/rows?**", (route) => {
      const offset = Number(new URL(route.request().url()).searchParams.get("offset"));
      const next = offset + 1000 < rows.length ? offset + 1000 : null;
      return route.fulfill({
        json: { total: rows.length, offset, rows: rows.slice(offset, offset + 1000), next_offset: next },
      });
    });
    await page.reload();
    for (const [view, seen] of [
      ["requests", ".line-open"],
      ["store", ".cell"],
    ]) {
      await page.goto(`${server.url}/#${view}`);
      await page.locator(seen).first().waitFor({ timeout: WAIT });
      const drawn = await page.locator(seen).count();
      assert.ok(drawn < 400, `${view} draws ${drawn} of them`);
      const times = await page.evaluate(async () => {
        const pane = document.querySelector(".pane");
        const times = [];
        for (let step = 0; step < 40; step += 1) {
          const before = performance.now();
          pane.scrollTop += 700;
          await new Promise(requestAnimationFrame);
          await new Promise(requestAnimationFrame);
          times.push((performance.now() - before) / 2);
        }
        return times.sort((one, two) => one - two);
      });
      const median = times[20];
      console.log(
        `  ${view}: ${drawn} drawn, frames ${median.toFixed(0)} ms in the median, ${times[39].toFixed(0)} ms at most`,
      );
      // The median: a busy machine makes single frames late.
      assert.ok(median < 100, `${view}: ${median} ms a frame`);
    }
    const memory = await page.evaluate(() => performance.memory?.usedJSHeapSize ?? 0);
    console.log(`  page memory ${(memory / 1e6).toFixed(0)} MB`);
    assert.ok(memory < 150e6, `${memory} bytes`);
    check();
  },
};

const args = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"];
const browser = await chromium.launch({ headless: true, executablePath: await browserPath(), args });
const server = await startServer();
let failed = 0;
try {
  for (const [name, test] of Object.entries(tests)) {
    if (process.env.ONLY && !name.includes(process.env.ONLY)) continue;
    const begun = Date.now();
    try {
      await test(browser, server);
      console.log(`ok ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${name}\n${error.stack}`);
    }
  }
} finally {
  await browser.close();
  server.stop();
}
process.exit(failed > 0 ? 1 : 0);
