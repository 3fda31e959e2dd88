// The browser of the tests and measurements: a Chromium on PATH, or else the one that the npm package @sparticuz/chromium
// carries, with the libraries and the fonts that it brings for machines without them.
//
// Called by harness.mjs. The package unpacks itself into TMPDIR, takes a half of a browser that is left there for a whole
// one, and unpacks its libraries only where the environment says that Amazon runs it. So the environment says so here, and
// TMPDIR is a folder of .tools that is put in place by a rename. It must never leave a folder there that is not whole.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { fileURLToPath } from "node:url";

const NAME = "@sparticuz/chromium";
const here = fileURLToPath(new URL("./", import.meta.url));
const tools = fileURLToPath(new URL("../../../../.tools/", import.meta.url));
const UNPACK = `const { default: carried } = await import("${NAME}"); await carried.executablePath();`;

// The package's own names a folder of /tmp.
const FONTS = `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">fonts</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
`;

function onPath() {
  for (const name of ["chromium", "chromium-browser", "google-chrome"]) {
    for (const folder of (process.env.PATH ?? "").split(delimiter)) {
      if (existsSync(join(folder, name))) return join(folder, name);
    }
  }
  return undefined;
}

/** The folder of the browser that the package carries. */
function unpacked() {
  const pins = JSON.parse(readFileSync(join(here, "package.json"), "utf8"));
  const folder = join(tools, `chromium-${pins.devDependencies[NAME]}`);
  if (existsSync(folder)) return folder;
  mkdirSync(tools, { recursive: true });
  const part = mkdtempSync(join(tools, "chromium-part-"));
  try {
    const env = { ...process.env, TMPDIR: part, AWS_LAMBDA_JS_RUNTIME: "nodejs20.x" };
    const words = ["--input-type=module", "-e", UNPACK];
    const ran = spawnSync(process.execPath, words, { cwd: here, env, stdio: "inherit" });
    if (ran.status !== 0) throw new Error(`${NAME} could not be unpacked into ${part}: see above`);
    writeFileSync(join(part, "fonts", "fonts.conf"), FONTS);
    renameSync(part, folder);
  } finally {
    rmSync(part, { recursive: true, force: true });
  }
  return folder;
}

/** What Playwright has to know to start the browser. */
export function browserOptions() {
  const installed = onPath();
  if (installed) return { executablePath: installed };
  const folder = unpacked();
  const libraries = [join(folder, "al2023", "lib"), process.env.LD_LIBRARY_PATH].filter(Boolean).join(delimiter);
  const env = { ...process.env, LD_LIBRARY_PATH: libraries };
  if (!existsSync("/etc/fonts/fonts.conf")) env.FONTCONFIG_PATH ??= join(folder, "fonts");
  return { executablePath: join(folder, "chromium"), env };
}
