// Store: what can be done with a row.
import assert from "node:assert/strict";
import { join } from "node:path";
import { conversation } from "../conversations.mjs";
import { ask, inSight, newPage, noSeriousProblems, read, shots, VIEWS, WAIT } from "../harness.mjs";

export const tests = {
  async "a row is checked, pinned, unpinned and evicted"(browser, server) {
    assert.equal((await ask(server, conversation({ first: "How do I glue end grain?" }))).status, 200);
    const { page, check } = await newPage(browser, server);
    await page.goto(`${server.url}/#store`);
    await page.locator(VIEWS.store).first().waitFor({ timeout: WAIT });
    // The list has size, uses and age of each row. Rows that others build on cannot be evicted.
    await page.getByRole("button", { name: "List", exact: true }).click();
    const rows = async () => (await read(server, "/api/cache/rows?limit=1000")).body.rows;
    const free = (await rows()).filter((row) => row.children === 0 && !row.pending);
    const { key } = free.sort((one, two) => two.last_used - one.last_used)[0];
    await inSight(page, `[aria-label^="Row ${key.slice(0, 8)}"]`);
    const line = page.locator(".row-line", { has: page.locator(`[aria-label^="Row ${key.slice(0, 8)}"]`) });
    assert.match(await line.textContent(), /[KM]iB.*(just now|min ago)/);
    await noSeriousProblems(page, "store, list");
    if (shots) await page.screenshot({ path: join(shots, "store-list-desktop-light.png") });
    await line.getByRole("button").click();
    const drawer = page.locator(".drawer");
    await drawer.getByRole("button", { name: "Verify" }).click();
    await page.getByLabel("Checked copies").getByText("match their checksums").waitFor({ timeout: WAIT });
    const evict = drawer.getByRole("button", { name: "Evict this row" });
    await drawer.getByRole("button", { name: "Pin", exact: true }).click();
    await drawer.getByRole("button", { name: "Unpin" }).waitFor({ timeout: WAIT });
    assert.ok(await evict.isDisabled(), "a pinned row is not evicted");
    assert.equal((await rows()).find((row) => row.key === key).pinned, true);
    await noSeriousProblems(page, "row");
    if (shots) await page.screenshot({ path: join(shots, "row-desktop-light.png") });
    await drawer.getByRole("button", { name: "Unpin" }).click();
    await drawer.getByRole("button", { name: "Pin", exact: true }).waitFor({ timeout: WAIT });
    await evict.click();
    await drawer.waitFor({ state: "detached", timeout: WAIT });
    assert.ok(!(await rows()).some((row) => row.key === key));
    await page.locator(".causes").getByText("somebody asked for it").waitFor({ timeout: WAIT });
    check();
  },
};
