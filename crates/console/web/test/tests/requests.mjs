// Requests: causes, progress, cancelling, and the same numbers as in a terminal.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { conversation, PLANTED, slow } from "../conversations.mjs";
import { ask, newPage, noSeriousProblems, output, poncho, read, WAIT } from "../harness.mjs";
import { manyPage } from "../many.mjs";

export const tests = {
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

  async "a request shows what its drafts saved"(browser, server) {
    const { page, check } = await manyPage(browser, server, "chains");
    const why = { cause: "cached", reason: "all of it is cached", tokens: 9, found: 9, lost: 0, hygiene: [] };
    await page.route("**/api/requests/*/why", (route) => route.fulfill({ json: why }));
    await page.locator(".line:not(.under-way) .line-open").first().click();
    const fact = (name) => page.locator(`.drawer dt:text-is("${name}") + dd`).textContent({ timeout: WAIT });
    assert.equal(await fact("Drafts"), "60 of 80 kept");
    assert.equal(await fact("Tokens a step"), "2.50, 1.2 s saved");
    check();
  },

  async "a request under way shows what is done, and a server that started again has other requests"(browser, server) {
    const row = {
      id: 1,
      model: "stub",
      key: null,
      conversation: "a",
      title: "Under way",
      arrived_ms: Date.now(),
      stage: "prefilling",
      prompt_tokens: 1000,
      cached_tokens: 200,
      new_tokens: 800,
      processed_tokens: 300,
      generated_tokens: 0,
      tokens_per_second: 50,
      age_ms: 10,
    };
    let rows = [row];
    const { page, check } = await newPage(browser, server, {}, (page) =>
      page.route("**/api/requests?follow=1", (route) =>
        route.fulfill({
          contentType: "text/event-stream",
          body: `data: ${JSON.stringify({ version: 1, requests: rows })}\n\n`,
        }),
      ),
    );
    await page.locator(".line-open").first().click({ timeout: WAIT });
    const drawer = page.locator(".drawer");
    const fact = (name) => drawer.locator(`dt:text-is("${name}") + dd`).textContent();
    assert.equal(await fact("Computed"), "100 at 50/s");
    assert.equal(await fact("Generated"), "0");
    rows = [];
    await drawer.waitFor({ state: "detached", timeout: WAIT });
    rows = [{ ...row, title: "Another one", arrived_ms: row.arrived_ms + 60_000 }];
    await page.getByText("Another one").waitFor({ timeout: WAIT });
    assert.equal(await drawer.count(), 0, "nobody asked for this one");
    check();
  },

  async "the page keeps as many requests as the server"(browser, server) {
    let kept = 3000;
    const rows = Array.from({ length: 2500 }, (_, at) => ({
      id: at + 1,
      model: "stub",
      key: null,
      conversation: "a",
      title: "Many",
      arrived_ms: Date.now(),
      stage: "ended",
      outcome: "stop",
      hit: "cold",
      prompt_tokens: 10,
      cached_tokens: 0,
      new_tokens: 10,
      generated_tokens: 1,
      total_ms: 1,
    }));
    const { page, check } = await newPage(browser, server, {}, (page) =>
      page.route("**/api/requests?follow=1", (route) =>
        route.fulfill({
          contentType: "text/event-stream",
          body: `data: ${JSON.stringify({ version: 1, kept, requests: kept ? rows : [] })}\n\n`,
        }),
      ),
    );
    const tile = page.locator(".tile", { hasText: "Kept" }).locator(".tile-value");
    await tile.getByText("2,500").waitFor({ timeout: WAIT });
    kept = 0;
    await page.getByText("Requests are not kept").waitFor({ timeout: WAIT });
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
};
