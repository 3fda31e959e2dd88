// Measures what an open console costs a server with 16 streams: tokens per second, and the processor time of the server.
//
// usage: scripts/console.sh streams MODEL.gguf [ROUNDS] [--apart]
//
// A real `poncho serve` decodes 16 replies at once, in turn with the page closed, with the page open in a browser, with its
// store open, and with a plain HTTP client that reads the same stream of changes. On a small machine the browser and the
// server share the processor, so that the page costs tokens even if the server does nothing for it: the plain client shows
// what the server itself spends. With --apart the server has the first processor and all else the other ones. The store has
// rows of the same replies. The speeds are those of the server's own record of requests. Where the speed of the machine
// varies more than the page costs, the processor time outside the engine shows it: that part serves the page, and the engine
// computes the same in all cases.
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { get } from "node:http";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { ask, launch, newPage, poncho, read, VIEWS, WAIT } from "./harness.mjs";

const STREAMS = 16;
const TOKENS = 160;
const [file, ...rest] = process.argv.slice(2);
const isApart = rest.includes("--apart");
const rounds = Number(rest.find((one) => /^\d+$/.test(one)) ?? 6);
if (!file) {
  console.error("usage: scripts/console.sh streams MODEL.gguf [ROUNDS] [--apart]");
  process.exit(2);
}

async function startPoncho(folder) {
  const threads = isApart ? 1 : availableParallelism();
  const args = ["serve", file, "--port", "0", "--cache-dir", join(folder, "kv"), "--threads", String(threads)];
  args.push("--parallel", String(STREAMS), "--ctx-size", "1024", "--drafts", "off");
  // The replies are short, and the store shows what is kept of them.
  args.push("--save-min-tokens", "32");
  const command = isApart ? ["taskset", "-c", "0", poncho, ...args] : [poncho, ...args];
  const { PONCHO_BIN: _, ...env } = process.env;
  const child = spawn(command[0], command.slice(1), { env, stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise((end) => child.on("exit", end));
  let text = "";
  const url = await new Promise((found, failed) => {
    child.stdout.on("data", (piece) => {
      text += piece;
      const address = /http:\/\/[\d.:]+/.exec(text);
      if (address) found(address[0]);
    });
    ended.then(() => failed(new Error(`the server did not start: ${text}`)));
  });
  const stop = async () => {
    child.kill("SIGTERM");
    await ended;
  };
  const [{ id }] = (await read({ url }, "/v1/models")).body.data;
  return { url, pid: child.pid, model: id, stop };
}

/** The seconds that a process has worked, without its children. */
function ownSeconds(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

/** The same with its children. */
function cpuSeconds(pid) {
  let seconds = ownSeconds(pid);
  for (const task of readdirSync(`/proc/${pid}/task`)) {
    const children = readFileSync(`/proc/${pid}/task/${task}/children`, "utf8").trim();
    for (const child of children ? children.split(" ") : []) seconds += cpuSeconds(child);
  }
  return seconds;
}

/** Sixteen replies at once: their tokens per second, and the processor time of a thousand tokens. */
async function decode(server, name) {
  const [before, own] = [cpuSeconds(server.pid), ownSeconds(server.pid)];
  const since = Math.max(0, ...(await read(server, "/api/requests")).body.requests.map((one) => one.id));
  const replies = Array.from({ length: STREAMS }, async (_, at) => {
    const content = `Story ${at} of ${name}: tell me of the sea.`;
    const messages = [{ role: "user", content }];
    const body = { model: server.model, max_tokens: TOKENS, ignore_eos: true, stream: true, messages };
    const answer = await ask(server, body);
    if (!answer.ok) throw new Error(await answer.text());
    for await (const _ of answer.body);
  });
  await Promise.all(replies);
  for (;;) {
    const all = (await read(server, "/api/requests")).body.requests.filter((one) => one.id > since);
    if (all.some((one) => one.stage !== "ended")) {
      await new Promise((wake) => setTimeout(wake, 100));
      continue;
    }
    const rate = all.reduce((sum, one) => sum + (1000 * one.generated_tokens) / one.decode_ms, 0);
    const perToken = (seconds) => (1000 * seconds) / (STREAMS * TOKENS);
    return { rate, cpu: perToken(cpuSeconds(server.pid) - before), front: perToken(ownSeconds(server.pid) - own) };
  }
}

/** What is open while the replies are decoded; each returns how to close it. */
const OPEN = {
  closed: async () => () => {},
  "plain client": async (server) => {
    const request = get(`${server.url}/api/requests?follow=1`, (answer) => answer.resume());
    request.on("error", () => {});
    return () => request.destroy();
  },
  "page, requests": async (server, browser) => {
    const { page } = await newPage(browser, server);
    await page.locator(VIEWS.requests).first().waitFor({ timeout: WAIT });
    return () => page.context().close();
  },
  "page, store": async (server, browser) => {
    const { page } = await newPage(browser, server);
    await page.goto(`${server.url}/#store`);
    await page.locator(VIEWS.store).first().waitFor({ timeout: WAIT });
    return () => page.context().close();
  },
};

const median = (list) => [...list].sort((one, two) => one - two)[list.length >> 1];
if (isApart) spawnSync("taskset", ["-cp", `1-${availableParallelism() - 1}`, String(process.pid)]);
const folder = mkdtempSync(join(tmpdir(), "poncho-streams-"));
const server = await startPoncho(folder);
const browser = await launch();
try {
  const names = Object.keys(OPEN);
  const found = Object.fromEntries(names.map((name) => [name, []]));
  await decode(server, "warm up");
  for (let round = 0; round < rounds; round += 1) {
    // Each round begins with another one: what comes first or last has no advantage.
    for (let at = 0; at < names.length; at += 1) {
      const name = names[(at + round) % names.length];
      const close = await OPEN[name](server, browser);
      found[name].push(await decode(server, `round ${round} ${name}`));
      await close();
    }
  }
  console.log(
    `${STREAMS} streams, ${TOKENS} tokens each, ${rounds} rounds${isApart ? ", on processors of their own" : ""}`,
  );
  console.log(
    "                    tokens/s    of closed: median, all rounds       ms of CPU per token, of these outside the engine",
  );
  for (const name of names) {
    const shares = found[name].map((one, round) => one.rate / found.closed[round].rate);
    const [cpu, front] = ["cpu", "front"].map((what) => median(found[name].map((one) => one[what])).toFixed(3));
    const all = shares.map((share) => share.toFixed(3)).join(" ");
    const rate = median(found[name].map((one) => one.rate)).toFixed(1);
    console.log(`  ${name.padEnd(18)}${rate.padStart(8)}    ${median(shares).toFixed(3)}   ${all}   ${cpu}   ${front}`);
  }
} finally {
  await browser.close();
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
}
