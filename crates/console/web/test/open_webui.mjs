// Drives Open WebUI in a real browser: a chat, a stop, another model.
//
// usage: node open_webui.mjs URL MODEL OTHER_MODEL. Called by tests/clients/open_webui.py through scripts/console.sh, with
// an Open WebUI that has no accounts and a server behind it. That file looks at what the server saw. With SHOT=file it
// writes a screenshot when something fails.
import assert from "node:assert/strict";
import { launch, WAIT } from "./harness.mjs";

const [url, model, other] = process.argv.slice(2);
const INPUT = "#chat-input";
const STOP = "button[aria-label='Stop']";
const REPLY = "#response-content-container";

async function choose(page, name) {
  await page.locator("[id^='model-selector-'][id$='-button']").first().click();
  await page.locator("#model-search-input").fill(name);
  await page.locator(`[role='option']:has-text("${name}")`).first().click();
}

/** Sends a message; returns the number of its reply. */
async function send(page, text) {
  const before = await page.locator(REPLY).count();
  await page.locator(INPUT).click();
  await page.keyboard.type(text);
  await page.locator("#send-message-button").click();
  await page.locator(REPLY).nth(before).waitFor({ timeout: WAIT });
  return before;
}

async function until(what, holds) {
  const end = Date.now() + WAIT;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`not in time: ${what}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

const words = async (page, number) => ((await page.locator(REPLY).nth(number).textContent()) ?? "").trim();
const isIdle = async (page) => (await page.locator(STOP).count()) === 0;

const browser = await launch();
// Open WebUI shows no message where the language of the browser is not a valid tag, as with LANG=C.
const view = { viewport: { width: 1280, height: 900 }, locale: "en-US" };
const page = await (await browser.newContext(view)).newPage();
const problems = new Set();
page.on("pageerror", (error) => problems.add(String(error)));
try {
  await page.goto(url, { timeout: WAIT });
  await page.locator(INPUT).waitFor({ timeout: WAIT });
  const news = page.getByText("Okay, Let's Go!");
  if (await news.count()) await news.click();
  await choose(page, model);
  const first = await send(page, "What is the capital of France? Answer in one word.");
  await until("a whole reply", async () => (await words(page, first)).length > 2 && (await isIdle(page)));
  console.log(`open-webui: a reply of ${(await words(page, first)).length} characters`);

  // A small model may end a long reply by itself before it is stopped: then it is asked again.
  let second;
  for (let left = 5; second === undefined; left -= 1) {
    assert.ok(left > 0, "no reply was long enough for a stop");
    const number = await send(page, "Write down the numbers from one to one thousand, as words.");
    await until(
      "the start of a long reply",
      async () => (await words(page, number)).length > 20 || (await isIdle(page)),
    );
    const isStopped = await page
      .locator(STOP)
      .first()
      .click({ timeout: 2000 })
      .then(
        () => true,
        () => false,
      );
    if (isStopped) second = number;
  }
  await until("the end after a stop", () => isIdle(page));
  const stopped = await words(page, second);
  await new Promise((done) => setTimeout(done, 1500));
  assert.equal(await words(page, second), stopped, "text arrives after a stop");
  console.log(`open-webui: stopped after ${stopped.length} characters`);

  await choose(page, other);
  const third = await send(page, "What is the capital of Italy? Answer in one word.");
  await until("a reply of the other model", async () => (await words(page, third)).length > 2 && (await isIdle(page)));
  console.log(`open-webui: the other model replied with ${(await words(page, third)).length} characters`);
} catch (error) {
  console.log(`open-webui: errors of the page: ${[...problems].join("; ")}`);
  if (process.env.SHOT) await page.screenshot({ path: process.env.SHOT });
  throw error;
} finally {
  await browser.close();
}
