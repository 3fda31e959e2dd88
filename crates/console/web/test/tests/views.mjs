// All views: light and dark, two widths, keyboard, accessibility.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inSight, newPage, noSeriousProblems, root, shots, VIEWS, WAIT } from "../harness.mjs";

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
