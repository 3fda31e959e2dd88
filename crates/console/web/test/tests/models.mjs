// Models and System: downloads, plans, devices, nodes, warnings.
import assert from "node:assert/strict";
import { newPage, noSeriousProblems, read, startServer, WAIT } from "../harness.mjs";

export const tests = {
  async "a pull shows its bar"(browser, server) {
    const { page, check } = await newPage(browser, server);
    await page.getByRole("link", { name: "Models" }).click();
    await page.getByLabel("Fetch a model").fill("smollm2:135m");
    await page.keyboard.press("Enter");
    const bar = page.getByRole("progressbar", { name: /Download of smollm2/ });
    const seen = new Set();
    while (!seen.has(100)) seen.add(Number(await bar.getAttribute("aria-valuenow", { timeout: WAIT })));
    assert.ok(seen.size > 3, `it moved: ${[...seen]}`);
    const grown = [...seen].sort((one, two) => one - two);
    assert.deepEqual([...seen], grown, "it only grows");
    await page.getByText("success").waitFor({ timeout: WAIT });
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

  async "a model shows what drafts brought, or why it has none"(browser, server) {
    const { page, check } = await newPage(browser, server);
    let drafts = { off: null, drafted: 40, accepted: 30, tokens_per_step: 2.5, saved_seconds: 12.3 };
    await page.route("**/api/system", async (route) => {
      const answer = await (await route.fetch()).json();
      const models = answer.models.map((model) => ({ ...model, status: { ...model.status, drafts } }));
      return route.fulfill({ json: { ...answer, models } });
    });
    await page.goto(`${server.url}/#models`);
    const shown = (text) => page.locator(".card", { hasText: text }).first().waitFor({ timeout: WAIT });
    await shown("Drafts: 40 tokens, 75 % kept, 2.50 tokens a step, 12 s saved");
    drafts = { ...drafts, saved_seconds: -0.25 };
    await shown("250 ms lost");
    drafts = { ...drafts, off: "drafts are off by setting" };
    await shown("No drafts: drafts are off by setting");
    check();
  },

  async "a model is unloaded and loaded"(browser) {
    const server = await startServer();
    try {
      const { page, check } = await newPage(browser, server);
      await page.goto(`${server.url}/#models`);
      // The server of the tests cannot load its model again, so it refuses, and the page says why.
      await page.getByRole("button", { name: "Unload" }).click();
      await page.locator(".said").getByText("could not be loaded again; it stays").waitFor({ timeout: WAIT });
      assert.equal((await read(server, "/api/ps")).body.models.length, 1);
      const asked = [];
      await page.route("**/api/models/unload", (route) => {
        asked.push(route.request().postDataJSON());
        return route.fulfill({ json: { state: "unloaded" } });
      });
      await page.getByRole("button", { name: "Unload" }).click();
      await page.locator(".said").getByText("stub: unloaded").waitFor({ timeout: WAIT });
      await page.route("**/api/tags", (route) =>
        route.fulfill({ json: { models: [{ name: "other:latest", size: 1e9 }] } }),
      );
      await page.route("**/api/models/load", (route) => {
        asked.push(route.request().postDataJSON());
        return route.fulfill({ json: { state: "loaded" } });
      });
      await page.getByRole("button", { name: "Load", exact: true }).click({ timeout: WAIT });
      await page.locator(".said").getByText("other: loaded").waitFor({ timeout: WAIT });
      assert.deepEqual(asked, [{ model: "stub" }, { model: "other" }]);
      check();
    } finally {
      server.stop();
    }
  },
};
