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
/** The program that `poncho top` is a command of. */
const poncho = process.env.PONCHO_BIN ?? join(target, profile, "poncho");
const shots = process.argv[2];
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** The views, and what is there once their data came. */
const VIEWS = {
  requests: ".line-open",
  store: ".icicle .cell",
  savings: ".column",
  models: ".plan",
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

async function output(program, args) {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"] });
  let text = "";
  for await (const piece of child.stdout) text += piece;
  return text;
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

function keyed(key) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  return headers;
}

async function read(server, path, key) {
  const answer = await fetch(`${server.url}${path}`, { headers: keyed(key) });
  return { status: answer.status, body: await answer.json() };
}

async function ask(server, body, key) {
  return fetch(`${server.url}/v1/chat/completions`, {
    method: "POST",
    headers: keyed(key),
    body: JSON.stringify(body),
  });
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

/** Scrolls until something is drawn: long lists draw what is seen. */
async function inSight(page, selector) {
  const steps = Array.from({ length: 100 });
  for (const _ of steps) {
    if ((await page.locator(selector).count()) > 0) return;
    await page.evaluate(() => {
      document.querySelector(".pane").scrollTop += 200;
    });
    await page.evaluate(() => new Promise(requestAnimationFrame));
  }
  assert.fail(`${selector} is not in the list`);
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

  async "a row is checked, pinned, unpinned and evicted"(browser, server) {
    assert.equal((await ask(server, conversation({ first: "How do I glue end grain?" }))).status, 200);
    const { page, check } = await newPage(browser, server);
    await page.goto(`${server.url}/#store`);
    await page.locator(VIEWS.store).first().waitFor({ timeout: WAIT });
    // The list has size, uses and age of each row. Rows that others build on cannot be evicted.
    await page.getByRole("button", { name: "List", exact: true }).click();
    const rows = async () => (await read(server, "/api/cache/rows?limit=1000")).body.rows;
    const free = (await rows()).filter((row) => row.children === 0 && !row.pending);
    const { key } = free.sort((one, two) => two.last_used - one.last_used)[0];
    await inSight(page, `[aria-label^="Row ${key.slice(0, 8)}"]`);
    const line = page.locator(".row-line", { has: page.locator(`[aria-label^="Row ${key.slice(0, 8)}"]`) });
    assert.match(await line.textContent(), /[KM]iB.*(just now|min ago)/);
    await noSeriousProblems(page, "store, list");
    if (shots) await page.screenshot({ path: join(shots, "store-list-desktop-light.png") });
    await line.getByRole("button").click();
    const drawer = page.locator(".drawer");
    await drawer.getByRole("button", { name: "Verify" }).click();
    await page.getByLabel("Checked copies").getByText("match their checksums").waitFor({ timeout: WAIT });
    const evict = drawer.getByRole("button", { name: "Evict this row" });
    await drawer.getByRole("button", { name: "Pin", exact: true }).click();
    await drawer.getByRole("button", { name: "Unpin" }).waitFor({ timeout: WAIT });
    assert.ok(await evict.isDisabled(), "a pinned row is not evicted");
    assert.equal((await rows()).find((row) => row.key === key).pinned, true);
    await noSeriousProblems(page, "row");
    if (shots) await page.screenshot({ path: join(shots, "row-desktop-light.png") });
    await drawer.getByRole("button", { name: "Unpin" }).click();
    await drawer.getByRole("button", { name: "Pin", exact: true }).waitFor({ timeout: WAIT });
    await evict.click();
    await drawer.waitFor({ state: "detached", timeout: WAIT });
    assert.ok(!(await rows()).some((row) => row.key === key));
    await page.locator(".causes").getByText("somebody asked for it").waitFor({ timeout: WAIT });
    check();
  },

  async "the chat begins with a stored prefix"(browser, server) {
    const system =
      "You are the keeper of a small library of seeds, and you answer in short sentences about plants only.";
    const question = "Which seeds do I sow in March, if the ground is still cold?";
    const asked = { model: "stub", max_tokens: 40, ignore_eos: true };
    const messages = [
      { role: "system", content: system },
      { role: "user", content: question },
    ];
    const { usage } = await (await ask(server, { ...asked, messages })).json();
    const longest = async (text) => {
      const { rows } = (await read(server, "/api/cache/rows?limit=1000")).body;
      let best = null;
      for (const row of rows) {
        const stored = (await read(server, `/api/cache/rows/${row.key}/text`)).body;
        if (stored.text.includes(text) && (!best || row.tokens > best.tokens)) best = row;
      }
      return best;
    };
    const { page, check } = await newPage(browser, server);
    // A conversation of plain messages goes on with its messages.
    let row = await longest(question);
    // The reply is saved after it was sent.
    while (!row || row.tokens < usage.total_tokens - 8) row = await longest(question);
    await page.goto(`${server.url}/#chat`);
    const choice = page.getByLabel("Start from a stored prefix");
    await choice.waitFor({ timeout: WAIT });
    await choice.selectOption(row.key);
    await page.getByText(`Begins with a stored prefix of ${row.tokens} tokens`).waitFor({ timeout: WAIT });
    await page.locator(".message.user").getByText(question).waitFor({ timeout: WAIT });
    assert.equal(await page.getByLabel("System prompt").inputValue(), system);
    await page.getByLabel("Message", { exact: true }).fill("And in April?");
    await page.keyboard.press("Enter");
    const bar = page.locator(".turn-bar");
    await bar.waitFor({ timeout: WAIT });
    const cached = Number(/([\d,]+) tokens from/.exec(await bar.textContent())?.[1].replaceAll(",", ""));
    assert.ok(cached >= row.tokens - 8, `${cached} of ${row.tokens} tokens were reused`);
    await noSeriousProblems(page, "chat from a prefix");
    if (shots) await page.screenshot({ path: join(shots, "chat-prefix-desktop-light.png") });
    // One with tools is not plain messages: it goes on with its tokens.
    const tooled = await longest(PLANTED[1].before.first);
    await page.goto(`${server.url}/#store`);
    await page.goto(`${server.url}/#chat/${tooled.key}`);
    await page.getByText("the model goes on with the text itself").waitFor({ timeout: WAIT });
    await page.getByLabel("Message", { exact: true }).fill("A bench");
    await page.keyboard.press("Enter");
    await bar.waitFor({ timeout: WAIT });
    const exact = Number(/([\d,]+) tokens from/.exec(await bar.textContent())?.[1].replaceAll(",", ""));
    assert.ok(exact >= tooled.tokens - 1, `${exact} of ${tooled.tokens} tokens were reused`);
    await page.getByRole("button", { name: "Send" }).waitFor({ timeout: WAIT });
    await page.getByRole("button", { name: "New chat" }).click();
    await page.getByText("Say something").waitFor({ timeout: WAIT });
    check();
  },

  async "models show their plan, the system its devices and nodes"(browser, server) {
    const { page, check } = await newPage(browser, server);
    await page.goto(`${server.url}/#models`);
    const plan = page.getByLabel("Fit plan");
    await plan.waitFor({ timeout: WAIT });
    assert.match(await plan.textContent(), /28 of 32 layers on the GPU; more do not fit --gpu-layers/);
    assert.match(await plan.textContent(), /CUDA0.*16\.0 GiB weights, 1\.9 GiB KV, 612\.0 MiB buffers/);
    await page.route("**/api/system", async (route) => {
      const answer = await (await route.fetch()).json();
      const nodes = [
        { name: "gpu-1:7070", state: "up", reason: null, models: ["stub"] },
        { name: "gpu-2:7070", state: "down", reason: "the connection was lost", models: [] },
      ];
      return route.fulfill({ json: { ...answer, nodes } });
    });
    await page.goto(`${server.url}/#system`);
    await page.getByText("NVIDIA RTX 4090").waitFor({ timeout: WAIT });
    const shown = await page.locator("main").textContent();
    for (const text of [
      "libggml-vulkan.so",
      "build it again with",
      "gpu-2:7070",
      "the connection was lost",
      "cache_ram",
    ]) {
      assert.ok(shown.includes(text), `${text} in ${shown}`);
    }
    assert.match(shown, /WARN little space for the cache/);
    await noSeriousProblems(page, "system with nodes");
    check();
  },

  async "top and the page show the same numbers"(browser, server) {
    assert.ok(existsSync(poncho), `${poncho} is not there; build it with \`cargo build --release -p poncho\``);
    const first = await ask(server, conversation({ first: "How many chairs are in the workshop?" }));
    assert.equal(first.status, 200);
    const second = await ask(server, conversation({ first: "How many chairs are in the workshop?" }));
    assert.equal(second.status, 200);
    const { page, check } = await newPage(browser, server);
    await page.getByRole("heading", { name: "How many chairs are in the workshop?" }).waitFor({ timeout: WAIT });
    const top = await output(poncho, ["top", "--once", "--url", server.url]);
    // The last prompt: its hit, its cached tokens and all of them.
    const [, hit, cached, prompt] = /stub\s.*\s(\w+) (\d+)\/(\d+)\s*$/m.exec(top) ?? assert.fail(top);
    const id = Math.max(...(await read(server, "/api/requests")).body.requests.map((one) => one.id));
    await page.locator(`[data-request="${id}"] .line-open`).click();
    const drawer = page.locator(".drawer");
    const fact = async (name) => (await drawer.locator(`dt:text-is("${name}") + dd`).textContent()).replaceAll(",", "");
    assert.match(await fact("Restored"), new RegExp(`^${cached} from`), top);
    assert.equal(Number(cached) + Number(await fact("Computed")), Number(prompt), top);
    assert.equal(await page.locator(`[data-request="${id}"] .badge`).textContent(), hit, top);
    await page.keyboard.press("Escape");
    // Rows and tiers.
    await page.goto(`${server.url}/#store`);
    const tile = page.locator(".tile", { hasText: "Prefixes" }).locator(".tile-value");
    await tile.getByText(/\d/).waitFor({ timeout: WAIT });
    const [, rows] = /(\d+) rows/.exec(top) ?? assert.fail(top);
    assert.equal(await tile.textContent(), rows, top);
    await page.goto(`${server.url}/#system`);
    for (const [name, shown] of [
      ["ram", "RAM"],
      ["disk", "Disk"],
    ]) {
      const card = page.locator(".card", { has: page.locator(`h3:text-is("${shown}")`) });
      await card.waitFor({ timeout: WAIT });
      const [, used, quota, held] = /([\d.]+ \w+) of ([\d.]+ \w+), (\d+) rows/.exec(await card.textContent());
      const line = top.split("\n").find((one) => one.trimStart().startsWith(`${name} `)) ?? assert.fail(top);
      for (const figure of [used, quota, held]) assert.ok(line.includes(figure), `${name}: ${figure} in ${line}`);
    }
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
      // Both texts around the place where prompts part, and the text of a row, are for the key that sent them.
      assert.equal((await ask(server, conversation({ first: "The secret of key one?" }), "one")).status, 200);
      const [{ key }] = (await read(server, "/api/cache/rows", "one")).body.rows;
      for (const path of ["/api/requests/2/why", `/api/cache/rows/${key}/text`]) {
        const own = await read(server, path, "one");
        assert.equal(own.status, 200, JSON.stringify(own.body));
        for (const [other, status] of [
          ["two", 404],
          ["boss", 404],
          ["wrong", 401],
        ]) {
          const refused = await read(server, path, other);
          assert.equal(refused.status, status, `${path} for ${other}`);
          assert.ok(!JSON.stringify(refused.body).includes("secret"));
        }
      }
      await page.locator('[data-request="2"] .line-open').click();
      await page.locator(".excerpt").first().waitFor({ timeout: WAIT });
      assert.match(await page.locator(".why").textContent(), /Stored[\s\S]*secret[\s\S]*Sent[\s\S]*secret/);
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
        await inSight(page, '[data-request="2"]');
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
      pinned: at % 50 === 0,
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
    for (const [view, shape, seen] of [
      ["requests", null, ".line-open"],
      ["store", "Icicle", VIEWS.store],
      ["store", "List", ".row-line:not(.line-head)"],
    ]) {
      await page.goto(`${server.url}/#${view}`);
      if (shape) await page.getByRole("button", { name: shape, exact: true }).click();
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
        pane.scrollTop = 0;
        return times.sort((one, two) => one - two);
      });
      const median = times[20];
      const name = shape ? `${view}, ${shape.toLowerCase()}` : view;
      console.log(
        `  ${name}: ${drawn} drawn, frames ${median.toFixed(0)} ms in the median, ${times[39].toFixed(0)} ms at most`,
      );
      // The median: a busy machine makes single frames late.
      assert.ok(median < 100, `${name}: ${median} ms a frame`);
    }
    // What the page itself holds: its heap, its documents and styles. The browser's own memory is not counted.
    const devtools = await page.context().newCDPSession(page);
    await devtools.send("HeapProfiler.collectGarbage");
    await devtools.send("Performance.enable");
    const { metrics } = await devtools.send("Performance.getMetrics");
    const metric = (name) => metrics.find((one) => one.name === name).value;
    const [used, total, nodes] = ["JSHeapUsedSize", "JSHeapTotalSize", "Nodes"].map(metric);
    const megabytes = (bytes) => (bytes / 1e6).toFixed(0);
    console.log(`  page memory ${megabytes(used)} MB of ${megabytes(total)} MB heap, ${nodes} nodes`);
    assert.ok(total < 150e6, `${total} bytes`);
    assert.ok(nodes < 20_000, `${nodes} nodes`);
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
