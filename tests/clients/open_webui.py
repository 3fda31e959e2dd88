#!/usr/bin/env python3
# Runs Open WebUI against Poncho in a real browser, with OpenAI's API and with Ollama's.
#
# Called by `make open-webui`, which is not part of `make test`: it installs 1.8 GB into .tools/agents. Each round starts a
# server with two models, and Open WebUI with the block of docs/agents.md for that API, an empty home and proxies that lead
# nowhere. A browser then chats, stops a reply and switches the model (crates/console/web/test/open_webui.mjs), and the
# server's list of requests must show all three. `open_webui.py ollama` runs one round. It must never touch a folder of
# the user, and it must never leave a process running.
import contextlib
import os
import pathlib
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import agents
import run as clients
from agent_table import blocks, python_tools

START_SECONDS = 180
BROWSER_SECONDS = 240
ROUNDS = {"openai": (0, "/v1/chat/completions"), "ollama": (1, "/api/chat")}
# Embeddings by an API that nobody asks: its own ones need torch.
QUIET = {
    "WEBUI_AUTH": "False",
    "OFFLINE_MODE": "true",
    "HF_HUB_OFFLINE": "1",
    "RAG_EMBEDDING_ENGINE": "openai",
    "BYPASS_EMBEDDING_AND_RETRIEVAL": "true",
    "ANONYMIZED_TELEMETRY": "false",
    "SCARF_NO_ANALYTICS": "true",
    # Its tools take 6,400 tokens, and the default model cannot use them.
    "DEFAULT_MODEL_METADATA": '{"capabilities": {"builtin_tools": false}}',
    # Requests of its own for titles, tags and questions would mix with those of the test.
    "ENABLE_TITLE_GENERATION": "false",
    "ENABLE_TAGS_GENERATION": "false",
    "ENABLE_FOLLOW_UP_GENERATION": "false",
}


def exported(block):
    """The variables of a block of the guide."""
    return dict(re.findall(r"^export (\w+)=(.*)$", block, re.M))


def is_ready(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def front_end(home, variables):
    """Open WebUI on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    data = home / "data"
    data.mkdir()
    more = {**QUIET, **variables, "DATA_DIR": str(data), "WEBUI_SECRET_KEY": secrets.token_hex(32), "CORS_ALLOW_ORIGIN": url}
    command = [python_tools("open-webui") / "open-webui", "serve", "--host", "127.0.0.1", "--port", str(port)]
    log = home / "log"
    with log.open("w") as out:
        environ = agents.environment(home, more)
        process = subprocess.Popen(command, cwd=home, env=environ, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(url):
            if process.poll() is not None or time.monotonic() > deadline:
                clients.fail(f"Open WebUI did not start:\n{log.read_text()[-4000:]}")
            time.sleep(0.5)
        yield url, log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check(url, route, models):
    """What the server says that happened."""
    requests = agents.answer(url, "/api/requests")["requests"]
    seen = [(request["model"], request["outcome"]) for request in requests]
    called = {labels["route"] for labels, _ in agents.metrics(url, "poncho_http_responses_total")}
    found = agents.refused(url)
    if route not in called:
        found.append(f"{route} was not called, but {sorted(called)}")
    for wanted, holds in [
        ("a whole reply", any(outcome in ("stop", "length") for _, outcome in seen)),
        # Its stop closes the connection.
        ("a stopped reply", any(outcome == "abandoned" for _, outcome in seen)),
        ("both models", {model for model, _ in seen} == set(models)),
    ]:
        if not holds:
            found.append(f"no sign of {wanted}: {seen}")
    return found, seen


def attempt(name):
    number, route = ROUNDS[name]
    with tempfile.TemporaryDirectory(prefix="poncho-webui-", ignore_cleanup_errors=True) as folder:
        home = pathlib.Path(folder)
        # The same file under another name is another model.
        other = home / "other.gguf"
        other.symlink_to(clients.MODEL_FILE)
        models = [clients.MODEL_FILE.stem, other.stem]
        with clients.server(clients.poncho("--model", other, "--parallel", "1", "--ctx-size", "4096"), "poncho") as (url, _):
            block = blocks("Open WebUI")[number].replace("127.0.0.1:8080", url.removeprefix("http://"))
            with front_end(home, exported(block)) as (page, log):
                command = [clients.ROOT / "scripts" / "console.sh", "open-webui", page, *models]
                ended = subprocess.run([str(word) for word in command], timeout=BROWSER_SECONDS)
                found, seen = check(url, route, models)
                if ended.returncode != 0:
                    found.append(f"the browser ended with {ended.returncode}; the end of Open WebUI's log:\n{log.read_text()[-3000:]}")
        for problem in found:
            print(f"open-webui: {name}: {problem}", flush=True)
        print(f"open-webui: {name}: {'FAILED' if found else 'good'}: {seen}", flush=True)
        return not found


def main():
    # Installing is not timed.
    python_tools("open-webui")
    sys.exit(not all([attempt(name) for name in sys.argv[1:] or ROUNDS]))


if __name__ == "__main__":
    main()
