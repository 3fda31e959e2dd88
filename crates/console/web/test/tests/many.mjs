// Many rows and requests: what is drawn, how often, and the memory of the page.
//
// Nothing here is a time: a busy machine makes any frame late. `scripts/console.sh frames` measures.
import assert from "node:assert/strict";
import { VIEWS, WAIT } from "../harness.mjs";
import { manyPage, memory, ROWS } from "../many.mjs";

/** Elements that a view may have at once. */
const MOST_ELEMENTS = 6000;
/** Events that come while a view is open. */
const EVENTS = 20;

/** Counts how often a function of the page, found by a text in it, was called since the last count of any. */
async function counter(page) {
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Profiler.enable");
  await devtools.send("Profiler.startPreciseCoverage", { callCount: true, detailed: false });
  const source = await page.evaluate(async () => (await fetch("/console/app.js")).text());
  return async (text) => {
    const at = source.indexOf(text);
    assert.ok(at >= 0 && source.indexOf(text, at + 1) < 0, `${text} is once in the script`);
    const { result } = await devtools.send("Profiler.takePreciseCoverage");
    const script = result.find(({ url }) => url.endsWith("/console/app.js"));
    const around = (script?.functions ?? []).flatMap(({ ranges: [range] }) =>
      range.startOffset <= at && at < range.endOffset ? [range] : [],
    );
    around.sort((one, two) => one.endOffset - one.startOffset - (two.endOffset - two.startOffset));
    return around[0]?.count ?? 0;
  };
}

const frames = (page, some) =>
  page.evaluate(async (some) => {
    for (let frame = 0; frame < some; frame += 1) await new Promise(requestAnimationFrame);
  }, some);

async function scrollThrough(page) {
  const most = await page.evaluate(async () => {
    const pane = document.querySelector(".pane");
    let most = 0;
    for (let step = 0; step < 8; step += 1) {
      pane.scrollTop += 1500;
      for (let frame = 0; frame < 3; frame += 1) await new Promise(requestAnimationFrame);
      most = Math.max(most, pane.querySelectorAll("*").length);
    }
    pane.scrollTop = 0;
    return most;
  });
  assert.ok(most < MOST_ELEMENTS, `${most} elements`);
  return most;
}

export const tests = {
  async "ten thousand rows and a thousand requests draw what is seen"(browser, server) {
    for (const shape of ["branches", "chains", "comb"]) {
      const { page, check } = await manyPage(browser, server, shape);
      const most = {};
      for (const [view, button, seen] of [
        ["requests", null, ".line-open"],
        ["store", "Icicle", VIEWS.store],
        ["store", "List", ".row-line:not(.line-head)"],
      ]) {
        // The others do not depend on how rows belong together.
        if (button !== "Icicle" && shape !== "branches") continue;
        await page.goto(`${server.url}/#${view}`);
        if (button) await page.getByRole("button", { name: button, exact: true }).click();
        await page.locator(seen).first().waitFor({ timeout: WAIT });
        await frames(page, 10);
        most[button ?? view] = await scrollThrough(page);
      }
      assert.equal(await page.locator(".tile-value").first().textContent(), ROWS.toLocaleString("en"));
      // What the page itself holds: its heap, its documents and styles. The browser's own memory is not counted.
      const { used, heap, nodes } = await memory(page);
      const megabytes = (bytes) => (bytes / 1e6).toFixed(0);
      console.log(`  ${shape}: elements ${JSON.stringify(most)}, ${megabytes(used)} of ${megabytes(heap)} MB heap`);
      assert.ok(heap < 150e6, `${heap} bytes`);
      assert.ok(nodes < 40_000, `${nodes} nodes`);
      check();
      await page.context().close();
    }
  },

  async "a change is drawn where it is shown and nowhere else"(browser, server) {
    const { page, push, check } = await manyPage(browser, server, "branches");
    await page.locator(VIEWS.requests).first().waitFor({ timeout: WAIT });
    const calls = await counter(page);
    const changes = async (some) => {
      for (let one = 0; one < some; one += 1) {
        await push();
        await frames(page, 2);
      }
    };
    // The requests are drawn once for each change, and once for those that come within a frame.
    await changes(EVENTS);
    const apart = await calls("Requests by conversation");
    // A second has passed or not: the times of running requests are drawn too.
    assert.ok(apart >= EVENTS && apart <= 2 * EVENTS + 10, `${apart} times for ${EVENTS} changes`);
    await page.evaluate((text) => {
      for (let one = 0; one < 200; one += 1) globalThis.pushEvent(text);
    }, 'event: requests\ndata: {"version":1,"requests":[]}\n\n');
    await frames(page, 4);
    const together = await calls("Requests by conversation");
    assert.ok(together < 40, `${together} times for 200 changes within a few frames`);
    // Other views are not drawn for them.
    for (const [view, button, seen, text] of [
      ["store", "Icicle", VIEWS.store, "icicle-box"],
      ["store", "List", ".row-line:not(.line-head)", "Stored prefixes, list"],
      ["savings", null, "h1", "Savings by model, table"],
    ]) {
      await page.goto(`${server.url}/#${view}`);
      if (button) await page.getByRole("button", { name: button, exact: true }).click();
      await page.locator(seen).first().waitFor({ timeout: WAIT });
      await frames(page, 10);
      await calls(text);
      await changes(EVENTS);
      const drawn = await calls(text);
      // Polled figures may come in between.
      assert.ok(drawn < 6, `${text} was drawn ${drawn} times for ${EVENTS} changes of requests`);
    }
    check();
  },
};
