// Chat: the bar of each turn, and stored prefixes as a beginning.
import assert from "node:assert/strict";
import { join } from "node:path";
import { PLANTED } from "../conversations.mjs";
import { ask, newPage, noSeriousProblems, read, shots, VIEWS, WAIT } from "../harness.mjs";

export const tests = {
  async "the chat shows the bar of each turn"(browser, server) {
    const { page, check } = await newPage(browser, server);
    await page.goto(`${server.url}/#chat`);
    await page.locator(VIEWS.chat).first().waitFor({ state: "attached", timeout: WAIT });
    for (const turn of [1, 2]) {
      await page.getByLabel("Message", { exact: true }).fill(`Hello, number ${turn}.`);
      await page.keyboard.press("Enter");
      await page.getByRole("button", { name: "Send" }).waitFor({ timeout: WAIT });
      await page
        .locator(".turn-bar")
        .nth(turn - 1)
        .waitFor({ timeout: WAIT });
    }
    // The history is written when the page has time.
    const kept = () => JSON.parse(localStorage.getItem("poncho-chat") ?? '{"messages":[]}').messages.length === 4;
    await page.waitForFunction(kept, null, { timeout: WAIT });
    check();
  },

  async "the chat begins with a stored prefix"(browser, server) {
    const system =
      "You are the keeper of a small library of seeds, and you answer in short sentences about plants only.";
    const question = "Which seeds do I sow in March, if the ground is still cold?";
    // Always the same reply: the text of a random one may be read as other tokens, and then the tokens go on.
    const asked = { model: "stub", max_tokens: 40, ignore_eos: true, temperature: 0 };
    const messages = [
      { role: "system", content: system },
      { role: "user", content: question },
    ];
    const { usage } = await (await ask(server, { ...asked, messages })).json();
    const longest = async (text) => {
      const { rows } = (await read(server, "/api/cache/rows?limit=1000")).body;
      let best = null;
      for (const row of rows) {
        const stored = (await read(server, `/api/cache/rows/${row.key}/text`)).body;
        if (stored.text.includes(text) && (!best || row.tokens > best.tokens)) best = row;
      }
      return best;
    };
    const { page, check } = await newPage(browser, server);
    // A conversation of plain messages goes on with its messages.
    let row = await longest(question);
    // The reply is saved after it was sent.
    while (!row || row.tokens < usage.total_tokens - 8) row = await longest(question);
    await page.goto(`${server.url}/#chat`);
    const choice = page.getByLabel("Start from a stored prefix");
    await choice.waitFor({ timeout: WAIT });
    await choice.selectOption(row.key);
    await page.getByText(`Begins with a stored prefix of ${row.tokens} tokens`).waitFor({ timeout: WAIT });
    await page.locator(".message.user").getByText(question).waitFor({ timeout: WAIT });
    assert.equal(await page.getByLabel("System prompt").inputValue(), system);
    await page.getByLabel("Message", { exact: true }).fill("And in April?");
    await page.keyboard.press("Enter");
    const bar = page.locator(".turn-bar");
    await bar.waitFor({ timeout: WAIT });
    const cached = Number(/([\d,]+) tokens from/.exec(await bar.textContent())?.[1].replaceAll(",", ""));
    assert.ok(cached >= row.tokens - 8, `${cached} of ${row.tokens} tokens were reused`);
    await noSeriousProblems(page, "chat from a prefix");
    if (shots) await page.screenshot({ path: join(shots, "chat-prefix-desktop-light.png") });
    // One with tools is not plain messages: it goes on with its tokens.
    const tooled = await longest(PLANTED[1].before.first);
    await page.goto(`${server.url}/#store`);
    await page.goto(`${server.url}/#chat/${tooled.key}`);
    await page.getByText("the model goes on with the text itself").waitFor({ timeout: WAIT });
    await page.getByLabel("Message", { exact: true }).fill("A bench");
    await page.keyboard.press("Enter");
    await bar.waitFor({ timeout: WAIT });
    const exact = Number(/([\d,]+) tokens from/.exec(await bar.textContent())?.[1].replaceAll(",", ""));
    assert.ok(exact >= tooled.tokens - 1, `${exact} of ${tooled.tokens} tokens were reused`);
    await page.getByRole("button", { name: "Send" }).waitFor({ timeout: WAIT });
    await page.getByRole("button", { name: "New chat" }).click();
    await page.getByText("Say something").waitFor({ timeout: WAIT });
    check();
  },
};
