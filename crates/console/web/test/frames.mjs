// Measures the console with 10,000 rows and 1,000 requests: the longest task and the longest frame of each view, and the
// memory of the page.
//
// usage: scripts/console.sh frames [ROUNDS]
//
// Each view is opened, scrolled, changed by 16 running requests four times a second and read again, with the whole speed of
// the processor and with a quarter of it, for stores of different shapes. `cpu` is the time that the main thread of the page
// itself worked, which other programs on the machine do not change; `wall` and `frame` are times of the clock. Exits with 1
// if a task worked for 100 ms or longer at the whole speed, or the page holds 150 MB.
import { readFileSync } from "node:fs";
import { conversation } from "./conversations.mjs";
import { ask, launch, startServer, VIEWS, WAIT } from "./harness.mjs";
import { manyPage, memory, SHAPES } from "./many.mjs";

const LIMIT_MS = 100;
const LIMIT_BYTES = 150e6;
const rounds = Number(process.argv[2] ?? 2);

/** Notes the longest time between frames. */
function watchFrames() {
  globalThis.longest = 0;
  let last = performance.now();
  const step = () => {
    const now = performance.now();
    globalThis.longest = Math.max(globalThis.longest, now - last);
    last = now;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

async function scroll(page, steps = 25) {
  await page.evaluate(async (steps) => {
    const pane = document.querySelector(".pane");
    for (let step = 0; step < steps; step += 1) {
      pane.scrollTop += 700;
      for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
    }
    pane.scrollTop = 0;
  }, steps);
}

/** Runs something while requests change as often as a server reports them. */
async function live(push, work) {
  const timer = setInterval(() => push().catch(() => {}), 250);
  try {
    await work();
  } finally {
    clearInterval(timer);
  }
}

const go = (page, view) =>
  page.evaluate((view) => {
    location.hash = view;
  }, view);

/** The parts of a measurement, by name. */
const PARTS = {
  async "requests, open"({ page }) {
    await page.reload();
    await page.locator(VIEWS.requests).first().waitFor({ timeout: WAIT });
  },
  async "requests, scroll and change"({ page, push }) {
    await live(push, async () => {
      await scroll(page);
      await page.getByRole("button", { name: "All", exact: true }).click();
      await scroll(page);
    });
  },
  async "store, open the icicle"({ page }) {
    await go(page, "store");
    await page.locator(VIEWS.store).first().waitFor({ timeout: WAIT });
  },
  async "store, scroll and change"({ page, push }) {
    await live(push, () => scroll(page));
  },
  async "store, read again"({ page, push, use }) {
    use();
    await live(push, async () => {
      await Promise.all([
        page.waitForResponse(/offset=9000/, { timeout: WAIT }),
        page.getByRole("button", { name: "Refresh" }).click(),
      ]);
      await page.waitForTimeout(500);
    });
  },
  async "store, open the list"({ page }) {
    await page.getByRole("button", { name: "List", exact: true }).click();
    await page.locator(".row-line:not(.line-head)").first().waitFor({ timeout: WAIT });
  },
  async "store, list: scroll, order, row"({ page, push }) {
    await live(push, async () => {
      await scroll(page);
      for (const order of ["bytes", "hits", "tokens", "last"]) await page.getByLabel("Order").selectOption(order);
      await page.locator(".row-line:not(.line-head) .line-open").first().click();
      await page.keyboard.press("Escape");
    });
  },
  async "switch between views"({ page, push }) {
    await live(push, async () => {
      for (const view of [...Object.keys(VIEWS), ...Object.keys(VIEWS)]) {
        await go(page, view);
        await page.locator(VIEWS[view]).first().waitFor({ state: "attached", timeout: WAIT });
      }
    });
  },
  async "chat, a reply"({ page, push }) {
    await go(page, "chat");
    await page.getByLabel("Start from a stored prefix").waitFor({ timeout: WAIT });
    await live(push, async () => {
      await page.getByLabel("Message", { exact: true }).fill("Tell me of the sea.");
      await page.keyboard.press("Enter");
      await page.getByRole("button", { name: "Send" }).waitFor({ timeout: WAIT });
    });
  },
};

/** The longest task of the page's main thread in a trace, in milliseconds. */
function longestTask(trace) {
  const { traceEvents } = JSON.parse(trace);
  const main = new Set(
    traceEvents
      .filter((one) => one.name === "thread_name" && one.args.name === "CrRendererMain")
      .map((one) => `${one.pid}/${one.tid}`),
  );
  const tasks = traceEvents.filter((one) => one.name === "RunTask" && main.has(`${one.pid}/${one.tid}`));
  const most = (name) => Math.max(0, ...tasks.map((one) => (one[name] ?? 0) / 1000));
  return { wall: most("dur"), cpu: most("tdur") };
}

/** The memory that the largest process of a page shares with nobody. */
async function privateBytes(browser) {
  const devtools = await browser.newBrowserCDPSession();
  const { processInfo } = await devtools.send("SystemInfo.getProcessInfo");
  await devtools.detach();
  const sizes = processInfo
    .filter((one) => one.type === "renderer")
    .map((one) => {
      const text = readFileSync(`/proc/${one.id}/smaps_rollup`, "utf8");
      return [...text.matchAll(/^Private_\w+:\s+(\d+) kB/gm)].reduce((sum, [, size]) => sum + Number(size) * 1024, 0);
    });
  return Math.max(...sizes);
}

let isOver = false;
const server = await startServer();
try {
  // So that all views have something to show.
  await ask(server, conversation({ first: "Which kinds of wood are in the workshop?" }));
  for (const slower of [1, 4]) {
    for (const shape of Object.keys(SHAPES)) {
      const found = Object.fromEntries(Object.keys(PARTS).map((name) => [name, []]));
      let [heap, own] = [0, 0];
      for (let round = 0; round < rounds; round += 1) {
        const browser = await launch();
        const opened = await manyPage(browser, server, shape);
        const devtools = await opened.page.context().newCDPSession(opened.page);
        await opened.page.addInitScript(watchFrames);
        await devtools.send("Emulation.setCPUThrottlingRate", { rate: slower });
        for (const [name, part] of Object.entries(PARTS)) {
          await opened.page.evaluate(() => {
            globalThis.longest = 0;
          });
          await browser.startTracing(opened.page, {
            categories: ["disabled-by-default-devtools.timeline", "devtools.timeline"],
          });
          await part(opened);
          const task = longestTask(await browser.stopTracing());
          found[name].push({ ...task, frame: await opened.page.evaluate(() => globalThis.longest) });
        }
        heap = Math.max(heap, (await memory(opened.page)).heap);
        own = Math.max(own, await privateBytes(browser));
        await browser.close();
      }
      console.log(`\n${shape}, ${slower === 1 ? "the whole speed" : `a quarter of the speed`}, ${rounds} rounds`);
      console.log("  longest of each round, ms        cpu                wall               frame");
      for (const [name, all] of Object.entries(found)) {
        const column = (kind) =>
          all
            .map((one) => one[kind].toFixed(0).padStart(4))
            .join(" ")
            .padEnd(19);
        console.log(`  ${name.padEnd(32)}${column("cpu")}${column("wall")}${column("frame")}`);
        isOver ||= slower === 1 && all.some((one) => one.cpu >= LIMIT_MS);
      }
      console.log(`  page memory ${(heap / 1e6).toFixed(0)} MB of heap, ${(own / 1e6).toFixed(0)} MB of its process`);
      isOver ||= heap >= LIMIT_BYTES;
    }
  }
} finally {
  server.stop();
}
process.exit(isOver ? 1 : 0);
