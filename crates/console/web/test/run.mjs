// The tests of the console in a real browser, against servers of a stub model.
//
// Called by `make test` after the page and the example `console_server` were built; builds nothing itself. With a folder as
// its argument it writes screenshots of every view there. With ONLY=words it runs the tests with these words in their
// names; several are divided by commas. It must never use a server that it did not start.
import { launch, startServer } from "./harness.mjs";
import { tests as chat } from "./tests/chat.mjs";
import { tests as keys } from "./tests/keys.mjs";
import { tests as many } from "./tests/many.mjs";
import { tests as models } from "./tests/models.mjs";
import { tests as requests } from "./tests/requests.mjs";
import { tests as store } from "./tests/store.mjs";
import { tests as views } from "./tests/views.mjs";

// The first tests count on a server without requests, the views on one with some.
const tests = { ...requests, ...models, ...chat, ...store, ...keys, ...views, ...many };
const browser = await launch();
const server = await startServer();
let failed = 0;
try {
  for (const [name, test] of Object.entries(tests)) {
    if (process.env.ONLY && !process.env.ONLY.split(",").some((words) => name.includes(words))) continue;
    const begun = Date.now();
    try {
      await test(browser, server);
      console.log(`ok ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${name}\n${error.stack}`);
    }
  }
} finally {
  await browser.close();
  server.stop();
}
process.exit(failed > 0 ? 1 : 0);
