#!/usr/bin/env python3
# Runs real agents and front ends against Poncho, each with the settings that docs/agents.md gives for it.
#
# Called by `make agents`, which is not part of `make test`: it installs 2 GB of clients into .tools/agents. A client gets
# the block of its section with the server's port in it, an empty home, and proxies that lead nowhere. Its server has a
# model that says what a prompt has between `[say:` and `:say]`, so each prompt is a script: an answer, a second one that
# must find the first prompt in the cache, and, for agents, a call of one of their tools. Agents that `poncho launch` knows
# run a second time through it, in a home with settings that lead nowhere: those must neither be used nor changed.
# `agents.py codex aider` runs some of them. It must never touch a folder of the user.
import json
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import run as clients

PINS = clients.HERE / "agents"
TOOLS = clients.ROOT / ".tools" / "agents"
GUIDE = clients.ROOT / "docs" / "agents.md"
ADDRESS_IN_GUIDE = "127.0.0.1:8080"
CONTEXT_IN_GUIDE = "32768"
# The stub's tokens are bytes, and an agent's prompt has a hundred thousand of them.
CONTEXT = "400000"
PROMPT_SECONDS = 120
# Nothing listens there, so a client that wants to reach beyond this machine fails at once.
NOWHERE = "http://127.0.0.1:9"
NOTE = "the note was read"


def blocks(section):
    """The fenced blocks of a section of the guide."""
    text = GUIDE.read_text()
    found = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    if not found:
        clients.fail(f"docs/agents.md has no section {section!r}")
    return [body for _, body in re.findall(r"^```(\w+)\n(.*?)^```", found[1], re.S | re.M)]


def routes_in_guide(client):
    """What the guide's table says that a client calls, as paths of the server."""
    for line in GUIDE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == client and len(cells) == 3:
            base = "/v1" if cells[1].strip("`").endswith("/v1") else ""
            return [base + path for path in re.findall(r"`([^`]+)`", cells[2])]
    clients.fail(f"the table of docs/agents.md has no row {client!r}")


def make_python(pins):
    def make(folder):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "python", "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "-r", pins], check=True)
    return make


def make_node(folder):
    folder.mkdir()
    (folder / "package.json").write_bytes((PINS / "package.json").read_bytes())
    quiet = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    subprocess.run([*clients.node()[1], "install", *quiet], cwd=folder, check=True)


def python_tools(name):
    pins = PINS / f"{name}.txt"
    return clients.install(TOOLS / name, pins, make_python(pins)) / "bin"


def node_tools():
    return clients.install(TOOLS / "node", PINS / "package.json", make_node) / "node_modules"


def script(package, path):
    return [*clients.node()[0], node_tools() / package / path]


def opencode():
    # The package's own command is a place that its install script fills; the binary lies in the package of the platform.
    found = sorted(node_tools().glob("opencode-*/bin/opencode"), key=lambda path: ("baseline" in str(path), str(path)))
    return [found[0]] if found else clients.fail("opencode has no binary for this platform")


def call(name, **arguments):
    """The script of a tool call, and of the reply to what the tool returns."""
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


class Client:
    """A client: where its settings go, how it is asked, and which of its tools reads a file."""

    def __init__(self, name, *, section=None, block=0, settings=None, command=None, variables=None, tool=None, stdin=False, launch=None, program=None):
        self.name = name
        self.block = (section or name, block)
        self.settings = settings
        self.command = command
        self.variables = variables or {}
        self.tool = tool
        self.stdin = stdin
        # The name for `poncho launch`, and the program that it looks for; the words of a command before its arguments.
        self.launch = launch
        self.program = program

    def prompts(self):
        """Each with what must come out."""
        words = ["the first answer has arrived", "the second answer has arrived"]
        # A client without a long prompt of its own needs one to be worth a place in the cache.
        opening = "Greet me. " if self.tool else "Greet me in one short sentence, and add nothing to it. " * 40
        yield from ((f"{opening}[say:{text}:say]", text) for text in words)
        if self.tool:
            yield f"Read note.txt. [say:{self.tool}:say]", NOTE


LANGCHAIN = """
import sys
for chunk in model.stream(sys.argv[1]):
    print(chunk.text if isinstance(chunk.text, str) else chunk.text(), end="")
"""


def langchain(number, family):
    def command(prompt, home):
        source = home / "ask.py"
        source.write_text(guide_block("LangChain", number, home) + LANGCHAIN)
        return [python_tools("langchain") / "python", source, prompt]
    return Client(f"LangChain, {family}", section="LangChain", block=number, command=command)


def guide_block(section, number, home):
    """A block with the address of this run's server, which the home knows, and its context."""
    text = blocks(section)[number].replace(CONTEXT_IN_GUIDE, CONTEXT)
    return text.replace(ADDRESS_IN_GUIDE, (home / "address").read_text())


def litellm(prompt, home):
    """A client of LiteLLM's proxy, which runs beside it."""
    return [python_tools("litellm") / "python", clients.HERE / "agents" / "ask_litellm.py", home / "config.yaml", prompt]


LITELLM_VARIABLES = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": f"sk-{secrets.token_hex(32)}"}
QUIET_AIDER = ["--yes-always", "--no-git", "--no-analytics", "--no-check-update", "--no-show-release-notes", "--no-pretty"]

CLIENTS = [
    Client(
        "Claude Code",
        settings=".claude/settings.json",
        launch="claude",
        program=lambda: ("claude", script("@anthropic-ai/claude-code", "cli-wrapper.cjs")),
        command=lambda prompt, _: [*script("@anthropic-ai/claude-code", "cli-wrapper.cjs"), "-p", "--allowed-tools", "Bash", "--", prompt],
        tool=call("Bash", command="cat note.txt", description="Reads the note"),
    ),
    Client(
        "Codex",
        settings=".codex/config.toml",
        launch="codex",
        program=lambda: ("codex", script("@openai/codex", "bin/codex.js")),
        command=lambda prompt, _: [*script("@openai/codex", "bin/codex.js"), "exec", "--skip-git-repo-check", prompt],
        variables={"PONCHO_API_KEY": "any"},
        tool=call("exec_command", cmd="cat note.txt"),
    ),
    Client(
        "opencode",
        settings=".config/opencode/opencode.json",
        launch="opencode",
        program=lambda: ("opencode", opencode()),
        # As an argument it would be put in quotes, and the script with it.
        command=lambda prompt, _: [*opencode(), "run"],
        stdin=True,
        variables={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        tool=call("bash", command="cat note.txt", description="Reads the note"),
    ),
    Client(
        "aider",
        settings=".aider.conf.yml",
        launch="aider",
        program=lambda: ("aider", [python_tools("aider") / "aider"]),
        command=lambda prompt, _: [python_tools("aider") / "aider", *QUIET_AIDER, "--message", prompt],
        variables={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Client(
        "Continue",
        settings=".continue/config.yaml",
        launch="continue",
        program=lambda: ("cn", script("@continuedev/cli", "dist/cn.js")),
        command=lambda prompt, _: [*script("@continuedev/cli", "dist/cn.js"), "-p", "--auto", prompt],
        variables={"CONTINUE_TELEMETRY_ENABLED": "0"},
        tool=call("Bash", command="cat note.txt"),
    ),
    langchain(0, "OpenAI"),
    langchain(1, "Anthropic"),
    langchain(2, "Ollama"),
    Client("LiteLLM", settings="config.yaml", command=litellm, variables=LITELLM_VARIABLES),
]


def environment(home, more):
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TERM") if name in os.environ}
    proxies = {name: NOWHERE for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    direct = {name: "127.0.0.1,localhost" for name in ("no_proxy", "NO_PROXY")}
    return {**kept, **proxies, **direct, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", "DO_NOT_TRACK": "1", **more}


def metrics(url, name):
    """The samples of a counter: labels and value."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    found = [re.fullmatch(rf"{name}{{(.*)}} (\S+)", line) for line in lines]
    return [(dict(re.findall(r'(\w+)="([^"]*)"', match[1])), float(match[2])) for match in found if match]


def ask(command, environ, folder, stdin):
    """Exit code and output of one prompt; a client that takes too long is ended with all that it started."""
    process = subprocess.Popen(
        [str(part) for part in command],
        env=environ,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(stdin.encode(), timeout=PROMPT_SECONDS)
        return process.returncode, out.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        return f"no end after {PROMPT_SECONDS} s", out.decode(errors="replace")


def launched(client, command, url, home):
    """The same command through `poncho launch`, which finds the program on PATH."""
    name, words = client.program()
    programs = home / "programs"
    programs.mkdir(exist_ok=True)
    shim = programs / name
    shim.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in words) + ' "$@"\n')
    shim.chmod(0o755)
    binary = clients.TARGET / "poncho"
    if not binary.is_file():
        clients.fail("poncho is missing; run `make build`")
    return [binary, "launch", client.launch, "--url", url, "--", *command[len(words):]]


def problems(client, url, home, folder, way):
    """Everything that went wrong, and how much of the second prompt was found."""
    found, share = [], 0.0
    environ = environment(home, client.variables)
    if way == "launch":
        environ["PATH"] = f"{home / 'programs'}:{environ['PATH']}"
        environ.pop("PONCHO_API_KEY", None)
    for number, (prompt, expected) in enumerate(client.prompts(), start=1):
        before = metrics(url, "poncho_prompt_tokens_total")
        command = client.command(prompt, home)
        if way == "launch":
            command = launched(client, command, url, home)
        code, out = ask(command, environ, folder, prompt if client.stdin else "")
        # A client may print its prompt, with the script in it.
        said = expected in out.replace(prompt, "").replace(f"[say:{expected}:say]", "")
        if code != 0 or not said:
            found.append(f"prompt {number}: exit code {code}, reply {'found' if said else 'missing'}:\n{out[-3000:]}")
        if number == 2:
            total = lambda samples, source: sum(v for labels, v in samples if source in ("", labels["source"]))
            after = metrics(url, "poncho_prompt_tokens_total")
            read, sent = (total(after, source) - total(before, source) for source in ("cached", ""))
            share = read / sent if sent else 0.0
    answers = metrics(url, "poncho_http_responses_total")
    for labels, count in answers:
        if int(labels["status"]) >= 400:
            found.append(f"{labels['route']} answered {labels['status']} ({count:.0f} times)")
    called = {labels["route"] for labels, _ in answers}
    listed = routes_in_guide(client.name)
    if not called & set(listed):
        found.append(f"calls {sorted(called)}; docs/agents.md says {listed}")
    if share == 0.0:
        found.append("nothing of the second prompt was found in the cache")
    return found, share, sorted(called - {"/metrics"})


def attempt(client, way="guide"):
    with tempfile.TemporaryDirectory(prefix="poncho-agents-", ignore_cleanup_errors=True) as home:
        home = pathlib.Path(home)
        folder = home / "project"
        folder.mkdir()
        (folder / "note.txt").write_text(f"[say:{NOTE}:say]\n")
        subprocess.run(["git", "init", "--quiet", folder], check=True)
        with clients.server([*clients.stub(), CONTEXT], "the stub") as (url, _):
            (home / "address").write_text(url.removeprefix("http://"))
            if client.settings:
                target = home / client.settings
                target.parent.mkdir(parents=True, exist_ok=True)
                text = guide_block(*client.block, home)
                if way == "launch":
                    # Settings of the user that would lead nowhere.
                    text = text.replace(url.removeprefix("http://"), NOWHERE.removeprefix("http://"))
                target.write_text(text)
            found, share, called = problems(client, url, home, folder, way)
            if way == "launch" and target.read_text() != text:
                found.append(f"{client.settings} was changed")
            return found, share, called


def main():
    asked = [name.lower() for name in sys.argv[1:]]
    chosen = [client for client in CLIENTS if not asked or any(client.name.lower().startswith(name) for name in asked)]
    if not chosen:
        clients.fail(f"no client is called so; there are {', '.join(client.name for client in CLIENTS)}")
    rows = []
    for client in chosen:
        print(f"agents: {client.name}", flush=True)
        # Installing is not timed.
        client.command("", pathlib.Path(tempfile.gettempdir())) if client.settings else python_tools("langchain")
        for way in ["guide", "launch"] if client.launch else ["guide"]:
            name = client.name + (", launched" if way == "launch" else "")
            start = time.monotonic()
            found, share, called = attempt(client, way)
            for problem in found:
                print(f"agents: {name}: {problem}", flush=True)
            rows.append((name, "FAILED" if found else "good", f"{share:.0%}", f"{time.monotonic() - start:.0f} s", " ".join(called)))
    head = ("client", "result", "found", "time", "calls")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    sys.exit(any(row[1] == "FAILED" for row in rows))


if __name__ == "__main__":
    main()
