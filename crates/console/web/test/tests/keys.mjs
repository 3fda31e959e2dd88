// Keys: a wrong one shows nothing, and no key reads the text of another.
import assert from "node:assert/strict";
import { conversation } from "../conversations.mjs";
import { ask, keyed, newPage, noSeriousProblems, read, startServer, WAIT } from "../harness.mjs";

/** The first piece of a stream. */
async function beginning(server, path, key) {
  const answer = await fetch(`${server.url}${path}`, { headers: keyed(key) });
  const reader = answer.body.getReader();
  const { value } = await reader.read();
  await reader.cancel();
  return new TextDecoder().decode(value);
}

export const tests = {
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
      // The key is entered once and kept for the tab.
      await page.reload();
      await page.getByText("The secret of key one.").waitFor({ timeout: WAIT });
      const other = await page.context().newPage();
      await other.goto(server.url);
      await other.getByLabel("API key").waitFor({ timeout: WAIT });
      // On a phone the key is changed in the view of the system.
      await page.setViewportSize({ width: 375, height: 740 });
      await page.goto(`${server.url}/#system`);
      await page.getByRole("button", { name: "Change key" }).click();
      await page.getByLabel("API key").waitFor({ timeout: WAIT });
      check();
    } finally {
      server.stop();
    }
  },

  async "no answer of the server has a word of another key"(_, __) {
    const server = await startServer("one", "two", "boss");
    try {
      const own = conversation({ first: "The secret of key one.", system: "A secret system prompt of key one." });
      assert.equal((await ask(server, { ...own, session_id: "secret-session" }, "one")).status, 200);
      const [{ key }] = (await read(server, "/api/cache/rows", "one")).body.rows;
      const { paths } = (await read(server, "/openapi.json", "one")).body;
      const asked = Object.keys(paths).filter((path) => paths[path].get);
      assert.ok(asked.length > 20 && asked.includes("/api/cache/rows/{id}/text"), `${asked}`);
      let own_words = 0;
      for (const path of asked) {
        const real = path.replace("{id}", path.includes("/rows/") ? key : "1").replace("{digest}", `sha256:${key}`);
        for (const who of ["one", "two", "boss", "wrong"]) {
          const answer = await fetch(`${server.url}${real}`, { headers: keyed(who) });
          const text = await answer.text();
          if (who === "one") own_words += text.includes("secret") ? 1 : 0;
          else assert.ok(!text.includes("secret"), `${real} for ${who}: ${text}`);
          if (who === "wrong")
            assert.ok(answer.status === 401 || !/rows|requests/.test(real), `${real}: ${answer.status}`);
        }
      }
      assert.ok(own_words >= 3, `the key itself reads what it sent, at ${own_words} places`);
      // The stream, and an explanation of a prompt that begins as the other one does.
      const near = conversation({ first: "The open question of key two.", system: "A s" });
      for (const who of ["two", "boss", "wrong"]) {
        const stream = await beginning(server, "/api/requests?follow=1", who);
        assert.ok(!stream.includes("secret"), `${who}: ${stream}`);
        const explained = await fetch(`${server.url}/api/cache/explain`, {
          method: "POST",
          headers: keyed(who),
          body: JSON.stringify(near),
        });
        const text = await explained.text();
        assert.ok(!text.includes("ecret"), `explain for ${who}: ${text}`);
      }
      assert.ok((await beginning(server, "/api/requests?follow=1", "one")).includes("secret"));
    } finally {
      server.stop();
    }
  },
};
