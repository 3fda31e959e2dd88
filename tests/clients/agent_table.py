# The clients that tests/clients/agents.py runs: how each is installed, set up as docs/agents.md says, and asked.
#
# A flat table. It installs programs into .tools/agents and reads docs/agents.md; it must never touch a folder of the user.
import json
import re
import secrets
import subprocess
import sys

import run as clients

PINS = clients.HERE / "agents"
TOOLS = clients.ROOT / ".tools" / "agents"
GUIDE = clients.ROOT / "docs" / "agents.md"
ADDRESS_IN_GUIDE = "127.0.0.1:8080"
CONTEXT_IN_GUIDE = "32768"
# The stub's tokens are bytes, and an agent's prompt has tens of thousands of them. Codex takes at most 272000.
CONTEXT = "250000"
# How long an agent waits for a silent stream.
IDLE_SECONDS = 6
NOTE = "the note was read"
# What the model hears in the result of a step, and in its own summary.
GO_ON = "GO-ON-WITH-THE-STEPS"
# What the model answers to a message of the agent that no user wrote.
SUMMARY, NEXT_STEP = "a summary", "the next step"


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

    def __init__(
        self, name, *, section=None, block=0, settings=None, command=None, variables=None, shell=None, stdin=False,
        launch=None, program=None, believes=None, idle=None, window=None, compaction=(), freely=(), trust="", overflows=0,
    ):
        self.name = name
        self.block = (section or name, block)
        self.settings = settings
        self.command = command
        self.variables = variables or {}
        # The call that runs a command in its shell.
        self.shell = shell
        self.stdin = stdin
        # The name for `poncho launch`, and the program that it looks for; the words of a command before its arguments.
        self.launch = launch
        self.program = program
        # How it shows the window that it works with: words for it or a file of its own, and the text there.
        self.believes = believes
        # What limits its patience with a silent stream: variables, words after the command, a change of its settings.
        self.idle = idle
        # A window for a task of twelve turns that does not fit into it, what the agent writes when it asks for a
        # summary or goes on after one, words and settings that let it run any command in a folder, and how many
        # prompts the server refuses before: some agents compact only then while a task runs.
        self.window = window
        self.compaction = compaction
        self.freely = freely
        self.trust = trust
        self.overflows = overflows

    def prompts(self):
        """Each with what must come out."""
        words = ["the first answer has arrived", "the second answer has arrived"]
        # A client without a long prompt of its own needs one to be worth a place in the cache.
        opening = "Greet me. " if self.shell else "Greet me in one short sentence, and add nothing to it. " * 40
        yield from ((f"{opening}[say:{text}:say]", text) for text in words)
        if self.shell:
            yield f"Read note.txt. [say:{self.shell('cat note.txt')}:say]", NOTE


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
        believes=(["-p", "/context"], "/ 250k"),
        command=lambda prompt, _: [*script("@anthropic-ai/claude-code", "cli-wrapper.cjs"), "-p", "--allowed-tools", "Bash", "--", prompt],
        # It takes no limit below 10 s. Its limit for events is 300 s or more, and pings do not count there.
        idle={"variables": {"CLAUDE_ENABLE_BYTE_WATCHDOG": "1", "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": str(IDLE_SECONDS * 1000)}},
        shell=lambda command: call("Bash", command=command, description="Does what was asked"),
        window=200_000,
        compaction=[("create a detailed summary of", SUMMARY)],
    ),
    Client(
        "Codex",
        settings=".codex/config.toml",
        launch="codex",
        program=lambda: ("codex", script("@openai/codex", "bin/codex.js")),
        # It keeps 5 % of the window free.
        believes=(".codex/sessions/**/*.jsonl", '"model_context_window":237500'),
        command=lambda prompt, _: [*script("@openai/codex", "bin/codex.js"), "exec", "--skip-git-repo-check", prompt],
        variables={"PONCHO_API_KEY": "any"},
        shell=lambda command: call("exec_command", cmd=command),
        window=100_000,
        compaction=[("CONTEXT CHECKPOINT COMPACTION", SUMMARY)],
        freely=["--sandbox", "danger-full-access"],
        # Otherwise it notes so itself, in the settings of the user.
        trust='\n[projects."FOLDER"]\ntrust_level = "trusted"\n',
        idle={"settings": ('env_key = "PONCHO_API_KEY"', f'env_key = "PONCHO_API_KEY"\nstream_idle_timeout_ms = {IDLE_SECONDS * 1000}')},
    ),
    Client(
        "opencode",
        settings=".config/opencode/opencode.json",
        launch="opencode",
        program=lambda: ("opencode", opencode()),
        believes=(["models", "poncho", "--verbose"], '"context": 250000'),
        # As an argument it would be put in quotes, and the script with it.
        command=lambda prompt, _: [*opencode(), "run"],
        stdin=True,
        variables={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        shell=lambda command: call("bash", command=command, description="Does what was asked"),
        window=160_000,
        compaction=[("anchored summary", SUMMARY), ("<prior-summary>", SUMMARY), ("Continue if you have next steps", NEXT_STEP)],
        idle={"settings": ('"apiKey": "any"', f'"apiKey": "any", "chunkTimeout": {IDLE_SECONDS * 1000}')},
    ),
    Client(
        "aider",
        settings=".aider.conf.yml",
        launch="aider",
        program=lambda: ("aider", [python_tools("aider") / "aider"]),
        believes=([*QUIET_AIDER, "--message", "/tokens"], "250,000 tokens max context window"),
        command=lambda prompt, _: [python_tools("aider") / "aider", *QUIET_AIDER, "--message", prompt],
        variables={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        idle={"settings": ("show-model-warnings: false", f"show-model-warnings: false\ntimeout: {IDLE_SECONDS}")},
    ),
    Client(
        # It has no section in the guide: `poncho launch` is the way.
        "pi",
        launch="pi",
        program=lambda: ("pi", script("@mariozechner/pi-coding-agent", "dist/cli.js")),
        believes=(["--list-models"], "250K"),
        command=lambda prompt, _: [*script("@mariozechner/pi-coding-agent", "dist/cli.js"), "-p", prompt],
        shell=lambda command: call("bash", command=command),
        window=200_000,
        compaction=[("conversation to summarize", SUMMARY), ("the PREFIX of a turn", SUMMARY)],
        overflows=1,
    ),
    Client(
        "Continue",
        settings=".continue/config.yaml",
        launch="continue",
        program=lambda: ("cn", script("@continuedev/cli", "dist/cn.js")),
        command=lambda prompt, _: [*script("@continuedev/cli", "dist/cn.js"), "-p", "--auto", prompt],
        variables={"CONTINUE_TELEMETRY_ENABLED": "0"},
        shell=lambda command: call("Bash", command=command),
    ),
    langchain(0, "OpenAI"),
    langchain(1, "Anthropic"),
    langchain(2, "Ollama"),
    Client("LiteLLM", settings="config.yaml", command=litellm, variables=LITELLM_VARIABLES),
]
