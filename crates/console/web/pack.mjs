// Copies the built files into dist/ and packs them with gzip. Files that did not change are left alone, so that cargo does
// not compile the server again. Refuses a page that breaks the promises of the console: small, no inline code.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const built = new URL("build/", import.meta.url);
const dist = new URL("dist/", import.meta.url);
const limit = 250_000;

function put(name, bytes) {
  const file = new URL(name, dist);
  if (!existsSync(file) || !readFileSync(file).equals(bytes)) writeFileSync(file, bytes);
}

const page = readFileSync(new URL("index.html", built), "utf8");
if (/<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=/i.test(page)) throw new Error("the page has inline code");
let total = 0;
for (const name of ["index.html", "app.js", "app.css", "icon.svg"]) {
  const bytes = readFileSync(new URL(name, built));
  const packed = gzipSync(bytes, { level: 9 });
  put(name, bytes);
  put(`${name}.gz`, packed);
  total += packed.length;
}
if (total > limit) throw new Error(`the console has ${total} bytes packed, and ${limit} are allowed`);
console.log(`console: ${total} bytes packed`);
