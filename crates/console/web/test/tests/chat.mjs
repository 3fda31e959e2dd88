// Chat: the bar of each turn, and stored prefixes as a beginning.
import assert from "node:assert/strict";
import { join } from "node:path";
import { ask, keyed, newPage, noSeriousProblems, read, shots, VIEWS, WAIT } from "../harness.mjs";

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

  async "a reply goes on while another view is open, and a question without one is not lost"(browser, server) {
    const { page, check } = await newPage(browser, server);
    const asked = [];
    let answer;
    const said = (text) => ({
      contentType: "text/event-stream",
      body: `data: ${JSON.stringify({ choices: [{ delta: { content: text } }] })}\n\ndata: [DONE]\n\n`,
    });
    await page.route("**/v1/chat/completions", async (route) => {
      asked.push(
        route
          .request()
          .postDataJSON()
          .messages.map(({ role, content }) => [role, content]),
      );
      const how = await new Promise((decide) => {
        answer = decide;
      });
      // A stop may have ended it.
      return route.fulfill(how).catch(() => undefined);
    });
    await page.goto(`${server.url}/#chat`);
    await page.locator(VIEWS.chat).first().waitFor({ state: "attached", timeout: WAIT });
    const box = page.getByLabel("Message", { exact: true });
    const put = async (text) => {
      const [before, end] = [asked.length, Date.now() + WAIT];
      await box.fill(text);
      await page.keyboard.press("Enter");
      // The request alone is not enough: only the route knows how to answer it.
      while (asked.length === before) {
        assert.ok(Date.now() < end, `${text} was not sent`);
        await new Promise((wake) => setTimeout(wake, 10));
      }
    };
    await put("How tall is an oak?");
    await page.goto(`${server.url}/#requests`);
    await page.getByRole("heading", { name: "Requests" }).waitFor({ timeout: WAIT });
    await page.goto(`${server.url}/#chat`);
    await page.locator(".message.user").getByText("How tall is an oak?").waitFor({ timeout: WAIT });
    answer(said("Tall."));
    await page.getByText("Tall.", { exact: true }).waitFor({ timeout: WAIT });
    // An error and a stop: the question is where it was written, and no empty reply is sent with the next one.
    await put("And an ash?");
    answer({ status: 400, json: { error: { message: "Too long today.", code: "x" } } });
    await page.getByText("Too long today.").waitFor({ timeout: WAIT });
    assert.equal(await box.inputValue(), "And an ash?");
    await put("And a birch?");
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByRole("button", { name: "Send" }).waitFor({ timeout: WAIT });
    answer(said("Late."));
    assert.equal(await box.inputValue(), "And a birch?");
    assert.ok(await box.evaluate((box) => box === document.activeElement), "the focus is not lost");
    // What is being written is not sent by a stop.
    await put("And a birch?");
    await box.fill("And a bee");
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByRole("button", { name: "Send" }).waitFor({ timeout: WAIT });
    assert.equal(await box.inputValue(), "And a bee");
    // A page that is loaded again has the conversation as well.
    await page.reload();
    await page.getByText("Tall.", { exact: true }).waitFor({ timeout: WAIT });
    // Nothing is sent before the page knows a model.
    await page.locator(VIEWS.chat).first().waitFor({ state: "attached", timeout: WAIT });
    await put("And a yew?");
    answer(said("Old."));
    await page.getByText("Old.", { exact: true }).waitFor({ timeout: WAIT });
    assert.deepEqual(asked.at(-1), [
      ["user", "How tall is an oak?"],
      ["assistant", "Tall."],
      ["user", "And a yew?"],
    ]);
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
    // A text without the marks of messages goes on with its tokens. One with tools would too, or not: that depends on
    // whether its reply is read as the same tokens again.
    const text = "A bench for the garden has four legs, a seat and a back, all of oak. ".repeat(14);
    const body = JSON.stringify({ ...asked, prompt: text });
    const completed = await fetch(`${server.url}/v1/completions`, { method: "POST", headers: keyed(), body });
    assert.equal(completed.status, 200, await completed.text());
    let plain = await longest(text);
    while (!plain) plain = await longest(text);
    await page.goto(`${server.url}/#store`);
    await page.goto(`${server.url}/#chat/${plain.key}`);
    await page.getByText("the model goes on with the text itself").waitFor({ timeout: WAIT });
    await page.getByLabel("Message", { exact: true }).fill("A bench");
    await page.keyboard.press("Enter");
    await bar.waitFor({ timeout: WAIT });
    const exact = Number(/([\d,]+) tokens from/.exec(await bar.textContent())?.[1].replaceAll(",", ""));
    assert.ok(exact >= plain.tokens - 1, `${exact} of ${plain.tokens} tokens were reused`);
    await page.getByRole("button", { name: "Send" }).waitFor({ timeout: WAIT });
    await page.getByRole("button", { name: "New chat" }).click();
    await page.getByText("Say something").waitFor({ timeout: WAIT });
    check();
  },
};
