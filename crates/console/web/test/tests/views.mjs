// All views: light and dark, two widths, keyboard, accessibility.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inSight, newPage, noSeriousProblems, root, shots, startServer, VIEWS, WAIT } from "../harness.mjs";

/** Presses Tab until something has the focus, and checks that the focus is seen on the way. */
async function tabTo(page, selector) {
  for (let step = 0; step < 150; step += 1) {
    await page.keyboard.press("Tab");
    const [isThere, outline] = await page.evaluate((selector) => {
      const { activeElement: now } = document;
      const style = now && getComputedStyle(now);
      return [now?.matches(selector), style ? style.outlineStyle !== "none" || style.boxShadow !== "none" : false];
    }, selector);
    if (isThere) {
      assert.ok(outline, `the focus of ${selector} is seen`);
      return;
    }
  }
  assert.fail(`Tab does not reach ${selector}`);
}

/** Whether nothing is wider than the window; the pane scrolls by itself. */
const fits = (page) =>
  page.evaluate(() => {
    const boxes = [document.documentElement, ...document.querySelectorAll(".pane")];
    return boxes.every((box) => box.scrollWidth <= box.clientWidth);
  });

const focused = (page) =>
  page.evaluate(() => document.activeElement?.getAttribute("aria-label") ?? document.activeElement?.textContent);

export const tests = {
  async "every view is right in light and dark, from phone width up"(browser, server) {
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
          assert.ok(await fits(page), `${view} fits into ${size}`);
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

  async "a server that went away is not an empty one"(browser) {
    const server = await startServer();
    const { page } = await newPage(browser, server, { viewport: { width: 375, height: 740 } });
    await page.getByText("No requests yet").waitFor({ timeout: WAIT });
    server.stop();
    const lost = page.getByText("The server does not answer");
    await lost.waitFor({ timeout: WAIT });
    for (const [view, shown, never] of [
      ["system", "The system cannot be read", "Only for an admin"],
      ["models", "The models cannot be read", "No models"],
      ["chat", "The models cannot be read", "No reply"],
      ["store", "The store cannot be read", "Nothing is stored yet"],
    ]) {
      await page.goto(`${server.url}/#${view}`);
      await page.getByText(shown).first().waitFor({ timeout: WAIT });
      assert.ok(await lost.isVisible(), view);
      assert.equal(await page.getByText(never).count(), 0, `${never} in ${view}`);
    }
    await noSeriousProblems(page, "without a server");
    await page.context().close();
  },

  async "times that round up have no rest of a whole unit"(browser, server) {
    const TIMES = { 999.7: "1.00 s", 59960: "1 min", 119600: "2 min", 3599700: "1 h", 7190000: "2 h" };
    const rows = Object.keys(TIMES).map((total_ms, at) => ({
      id: at + 1,
      model: "stub",
      key: null,
      conversation: "a",
      title: "Times",
      arrived_ms: Date.now(),
      stage: "ended",
      outcome: "stop",
      hit: "cold",
      prompt_tokens: 999_600,
      cached_tokens: 0,
      new_tokens: 999_600,
      generated_tokens: 1,
      total_ms: Number(total_ms),
    }));
    const { page, check } = await newPage(browser, server, {}, (page) =>
      page.route("**/api/requests?follow=1", (route) =>
        route.fulfill({
          contentType: "text/event-stream",
          body: `data: ${JSON.stringify({ version: 1, requests: rows })}\n\n`,
        }),
      ),
    );
    for (const [at, shown] of Object.values(TIMES).entries()) {
      const line = page.locator(`[data-request="${at + 1}"]`);
      await line.waitFor({ timeout: WAIT });
      assert.equal(await line.locator(".right").first().textContent(), shown);
      assert.equal(await line.locator("small").textContent(), "0 + 1.0M → 1");
    }
    check();
  },

  async "long names of models fit into a phone"(browser, server) {
    const name = "hf.co/somebody-with-a-long-name/Some-Model-With-A-Long-Name-Instruct-GGUF:Q4_K_M";
    const { page, check } = await newPage(browser, server, { viewport: { width: 360, height: 740 } }, async (page) => {
      await page.route("**/v1/models", (route) => route.fulfill({ json: { data: [{ id: name }] } }));
      await page.route("**/api/tags", (route) => route.fulfill({ json: { models: [{ name, size: 1e9 }] } }));
    });
    for (const view of ["chat", "models"]) {
      await page.goto(`${server.url}/#${view}`);
      await page.getByText(name).first().waitFor({ state: "attached", timeout: WAIT });
      assert.ok(await fits(page), view);
    }
    check();
  },

  async "the keyboard is enough"(browser, server) {
    const { page, check } = await newPage(browser, server);
    await page.locator(".line-open").first().waitFor({ timeout: WAIT });
    // Straight to the content, and from there to a request.
    await tabTo(page, ".skip");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement?.tagName), "MAIN");
    await tabTo(page, ".line-open");
    const request = await focused(page);
    assert.match(
      request,
      /^Request \d+ at [\d:]+: \w+, .* computed, \d+ generated$/,
      "what a screen reader says of it",
    );
    await page.keyboard.press("Enter");
    await page.locator(".drawer").waitFor({ timeout: WAIT });
    assert.equal(await focused(page), /Request \d+/.exec(request)[0], "the focus is on the heading of the panel");
    await page.keyboard.press("Escape");
    await page.locator(".drawer").waitFor({ state: "detached", timeout: WAIT });
    assert.equal(await focused(page), request, "the focus is back");
    // To each view by its link.
    for (const view of ["store", "savings", "models", "chat", "system"]) {
      await page.reload();
      await page.locator("nav a").first().waitFor({ timeout: WAIT });
      await tabTo(page, `nav a[href="#${view}"]`);
      await page.keyboard.press("Enter");
      await page.locator("h1", { hasText: new RegExp(view, "i") }).waitFor({ timeout: WAIT });
    }
    // A row is pinned and unpinned.
    await page.goto(`${server.url}/#store`);
    await page.locator(VIEWS.store).first().waitFor({ timeout: WAIT });
    await tabTo(page, ".cell");
    const row = await focused(page);
    await page.keyboard.press("Space");
    await tabTo(page, ".drawer .actions button:not(.danger)");
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Unpin" }).waitFor({ timeout: WAIT });
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Pin", exact: true }).waitFor({ timeout: WAIT });
    await page.keyboard.press("Escape");
    assert.equal(await focused(page), row, "the focus is back");
    check();
  },

  async "a machine without node builds all the same"(browser, server) {
    // The script of `make build` where neither node nor npm is found.
    const folder = mkdtempSync(join(tmpdir(), "poncho-console-"));
    try {
      for (const name of ["sh", "dirname", "cat", "cksum"]) {
        const found = spawnSync("sh", ["-c", `command -v ${name}`], { encoding: "utf8" }).stdout.trim();
        symlinkSync(found, join(folder, name));
      }
      const script = join(root, "scripts/console.sh");
      const built = spawnSync(join(folder, "sh"), [script, "build"], { env: { PATH: folder }, encoding: "utf8" });
      assert.equal(built.status, 0, built.stderr);
      assert.match(built.stdout, /the server is built without the console/);
    } finally {
      rmSync(folder, { recursive: true });
    }
    // The page of such a build, with the headers of the real one.
    const { page, check } = await newPage(browser, server, {}, async (page) => {
      for (const [path, name] of [
        ["/", "index.html"],
        ["/console/app.css", "app.css"],
        ["/console/app.js", "app.js"],
      ]) {
        await page.route(`${server.url}${path}`, async (route) => {
          const { headers } = await route.fetch().then((answer) => ({ headers: answer.headers() }));
          const kept = {
            "content-type": headers["content-type"],
            "content-security-policy": headers["content-security-policy"],
          };
          return route.fulfill({ path: join(root, "crates/console/without", name), headers: kept });
        });
      }
    });
    await page.getByRole("heading", { name: "Poncho is running" }).waitFor({ timeout: WAIT });
    assert.match(await page.locator("main").textContent(), /install node 20 or newer, run make build/);
    await noSeriousProblems(page, "without the console");
    if (shots) await page.screenshot({ path: join(shots, "without-desktop-light.png") });
    check();
  },
};
