// What the tests and measurements of the console share: a browser, servers of a stub model, pages, calls.
//
// With DIST=1 the page is taken from ../dist instead of the server, so that a change of the page can be tried without
// compiling. Builds nothing.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { browserOptions } from "./browser.mjs";

export const root = fileURLToPath(new URL("../../../../", import.meta.url));
const target = process.env.CARGO_TARGET_DIR ?? join(root, "target");
const profile = process.env.PONCHO_PROFILE ?? "release";
/** The program that `poncho top` is a command of. */
export const poncho = process.env.PONCHO_BIN ?? join(target, profile, "poncho");
export const shots = process.argv[2];
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** The views, and what is there once their data came. */
export const VIEWS = {
  requests: ".line-open",
  store: ".icicle .cell",
  savings: ".column",
  models: ".plan",
  chat: "select option",
  system: "tbody tr",
};
export const WAIT = 60_000;

export async function startServer(...keys) {
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

export async function output(program, args) {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"] });
  let text = "";
  for await (const piece of child.stdout) text += piece;
  return text;
}

export async function launch(...more) {
  const args = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", ...more];
  return chromium.launch({ headless: true, ...browserOptions(), args });
}

export function keyed(key) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  return headers;
}

export async function read(server, path, key) {
  const answer = await fetch(`${server.url}${path}`, { headers: keyed(key) });
  return { status: answer.status, body: await answer.json() };
}

export async function ask(server, body, key) {
  return fetch(`${server.url}/v1/chat/completions`, {
    method: "POST",
    headers: keyed(key),
    body: JSON.stringify(body),
  });
}

/** Opens the console; `prepare` is called before the page is loaded. */
export async function newPage(browser, server, options = {}, prepare = async () => {}) {
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
  await prepare(page);
  await page.goto(server.url);
  return {
    page,
    check: () => assert.deepEqual([outside, problems], [[], []], "requests elsewhere; errors of the page"),
  };
}

/** Scrolls until something is drawn: long lists draw what is seen. */
export async function inSight(page, selector) {
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

export async function noSeriousProblems(page, where) {
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
