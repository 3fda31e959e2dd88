#!/usr/bin/env python3
# Runs real agents and front ends against Poncho, each with the settings that docs/agents.md gives for it.
#
# Called by `make agents`, which is not part of `make test`: it installs 2 GB of clients into .tools/agents. A client gets
# the block of its section with the server's port in it, an empty home, and proxies that lead nowhere. Its server has a
# model that says what a prompt has between `[say:` and `:say]`, so each prompt is a script: an answer, a second one that
# must find the first prompt in the cache, and, for agents, a call of one of their tools. Agents that `poncho launch` knows
# run a second time through it, in a home with settings that lead nowhere: those must neither be used nor changed, and the
# window that the agent gets must be the server's. Then the model takes longer for a prompt than an agent waits for a
# silent stream: there must be one attempt, and more without the events that keep it waiting. Finally, a task of
# twelve turns exceeds the window: the agent must compact and finish. For each token of the second prompt that was not
# found, the cause is printed. `agents.py codex aider` runs some of them. It must never touch a folder of the user.
import contextlib
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import run as clients
from agent_table import CLIENTS, CONTEXT, GO_ON, NOTE, SUMMARY, guide_block, python_tools, routes_in_guide

PROMPT_SECONDS = int(os.environ.get("PONCHO_AGENT_SECONDS", 120))
# How long a slow model takes for a prompt; an agent waits for 6 s, Claude Code for 10 s.
PREFILL_SECONDS = 30
# The pauses between two events of a quiet stream: the server's, and one that is never reached.
KEEP_ALIVE, SILENT = 2, 3600
# A task of that many turns, each with that many bytes; the stub's tokens are bytes.
TURNS, TURN_BYTES = 12, 20_000
# A prompt that is found whole still has a last token to compute.
LEAST_LOST = 1
# The share of a prompt that the next turn of its conversation must find.
LEAST_FOUND = 0.98
DONE = "all steps are done"
# Nothing listens there, so a client that wants to reach beyond this machine fails at once.
NOWHERE = "http://127.0.0.1:9"


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


def ask(command, environ, folder, stdin, seconds=PROMPT_SECONDS):
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
        out, _ = process.communicate(stdin.encode(), timeout=seconds)
        return process.returncode, out.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        return f"no end after {seconds} s", out.decode(errors="replace")


def launch_environment(client, home):
    environ = environment(home, client.variables)
    environ["PATH"] = f"{home / 'programs'}:{environ['PATH']}"
    environ.pop("PONCHO_API_KEY", None)
    return environ


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


def answer(url, path):
    with urllib.request.urlopen(f"{url}{path}", timeout=30) as page:
        return json.load(page)


def causes(url, known, least=0):
    """Why tokens of the requests since then were not found: each cause with its tokens and the text at that place."""
    told, problems = [], []
    for request in answer(url, "/api/requests")["requests"]:
        if request["id"] in known or (request.get("new_tokens") or 0) <= least:
            continue
        why = answer(url, f"/api/requests/{request['id']}/why")
        lost = request["new_tokens"] - (request["prompt_tokens"] - (why.get("agree") or 0))
        if lost > LEAST_LOST:
            problems.append(f"{lost} tokens of a prompt were not found though they are the same: {json.dumps(why)[:900]}")
        shown = {name: why.get(name) for name in ("cause", "agree", "usable", "message", "cached", "asked")}
        told.append(f"{request['new_tokens']} of {request['prompt_tokens']} tokens: {json.dumps(shown)[:900]}")
    return told, problems


def window(client, url, environ, home, folder):
    """Whether `poncho launch` gives an agent the context of the server, and whether the agent works with it."""
    words = [clients.TARGET / "poncho", "launch", client.launch, "--url", url, "--print"]
    printed = subprocess.run(words, env=environ, capture_output=True, text=True)
    found = [] if CONTEXT in printed.stdout else [f"the window is not {CONTEXT}:\n{printed.stdout}{printed.stderr}"]
    where, wanted = client.believes or ([], "")
    if isinstance(where, str):
        shown = "".join(path.read_text(errors="replace") for path in home.glob(where))
    else:
        shown = ask(launched(client, [*client.program()[1], *where], url, home), environ, folder, "")[1] if where else ""
    if wanted not in shown:
        found.append(f"it does not show {wanted!r} as its window:\n{shown[-3000:]}")
    return found


def problems(client, url, home, folder, way):
    """Everything that went wrong, and how much of the second prompt was found."""
    found, share = [], 0.0
    known = set()
    environ = launch_environment(client, home) if way == "launch" else environment(home, client.variables)
    for number, (prompt, expected) in enumerate(client.prompts(), start=1):
        if number == 2:
            known = {request["id"] for request in answer(url, "/api/requests")["requests"]}
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
            told, lost = causes(url, known)
            found += lost
            for cause in told:
                print(f"agents: {client.name}: not found: {cause}", flush=True)
    if way == "launch":
        found += window(client, url, environ, home, folder)
    found += refused(url)
    called = {labels["route"] for labels, _ in metrics(url, "poncho_http_responses_total")}
    listed = routes_in_guide(client.name)
    if not called & set(listed):
        found.append(f"calls {sorted(called)}; docs/agents.md says {listed}")
    if share == 0.0:
        found.append("nothing of the second prompt was found in the cache")
    return found, share, sorted(called - {"/metrics"})


def hashes(home):
    """The files of the user, by what is in them."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in home.rglob("*") if path.is_file()}


def changes(home, before):
    """Files of the user that are not as they were."""
    after = hashes(home)
    return [f"{path.relative_to(home)} was changed:\n{end_of(path)}" for path in before if after.get(path) != before[path]]


def end_of(path):
    return path.read_text(errors="replace")[-3000:] if path.is_file() else "(it is not there)"


def refused(url, overflows=0):
    """Answers of the server that are errors, but for prompts that are expected to be too long."""
    answers = [(labels, count) for labels, count in metrics(url, "poncho_http_responses_total") if int(labels["status"]) >= 400]
    if [(labels["status"], count) for labels, count in answers] == [("400", overflows)]:
        return []
    return [f"{labels['route']} answered {labels['status']} ({count:.0f} times)" for labels, count in answers]


def slow(client, keep_alive):
    """Attempts of an agent at one prompt of a slow model, and whether the reply arrived."""
    with place() as (home, folder), clients.server(
        [*clients.stub(), CONTEXT, str(PREFILL_SECONDS), str(keep_alive)], "the slow stub"
    ) as (url, _):
        text = settings(client, url, home)
        old, new = client.idle.get("settings", ("", ""))
        if old not in text:
            clients.fail(f"the block of {client.name} has no {old!r}")
        (home / client.settings).write_text(text.replace(old, new) if old else text)
        prompt, expected = next(client.prompts())
        environ = environment(home, {**client.variables, **client.idle.get("variables", {})})
        code, out = ask(client.command(prompt, home), environ, folder, prompt if client.stdin else "")
        said = expected in out.replace(prompt, "").replace(f"[say:{expected}:say]", "")
        requests = answer(url, "/api/requests")["requests"]
        # The same prompt again is another attempt; titles and the like are shorter.
        sizes = [request["prompt_tokens"] or 0 for request in requests]
        left = [request for request in requests if request.get("outcome") not in (None, "stop", "length")]
        attempts = max(sum(size > 0.9 * max(sizes) for size in sizes), 1 + len(left)) if sizes else 0
        return attempts, code == 0 and said, out


def patience(client):
    """What is wrong with an agent that waits for a slow model, and a summary."""
    attempts, is_good, out = slow(client, KEEP_ALIVE)
    found = [] if is_good and attempts == 1 else [f"{attempts} attempts, reply {'found' if is_good else 'missing'}:\n{out[-3000:]}"]
    # Without events it must give up, or the limit that it got is none.
    silent, is_good, out = slow(client, SILENT)
    if is_good and silent == 1:
        found.append(f"it waits for a silent stream too, so this shows nothing:\n{out[-3000:]}")
    return found, f"{attempts} attempt; {silent} with a silent stream{'' if is_good else ', and no reply'}"


STEP = f"""count=$(( $(cat count 2>/dev/null || echo 0) + 1 ))
echo $count > count
for line in $(seq {TURN_BYTES // 100}); do printf 'step %04d line %04d %080d\\n' $count $line 0; done
if [ $count -lt {TURNS} ]; then echo {GO_ON}; else echo '[say:{DONE}:say]'; fi
"""


def long_run(client):
    """What is wrong with an agent in a task that exceeds its window, and a summary."""
    with place() as (home, folder):
        (folder / "step.sh").write_text(STEP)
        step = client.shell("sh step.sh")
        # What the agent asks for on its own comes first: its message may have the result of a step in it too.
        summary = f"Summary: a step is done when it has run. {GO_ON}"
        lines = [(heard, summary if said == SUMMARY else step) for heard, said in client.compaction]
        (home / "lines.json").write_text(json.dumps([*lines, (GO_ON, step)]))
        command = [*clients.stub(), str(client.window), "0", str(KEEP_ALIVE), home / "lines.json"]
        with clients.server(command, "the stub with a small window") as (url, _):
            if client.settings:
                text = settings(client, NOWHERE, home)
                (home / client.settings).write_text(text + client.trust.replace("FOLDER", str(folder)))
            before = hashes(home)
            environ = launch_environment(client, home)
            prompt = f"Do all steps. [say:{step}:say]"
            command = launched(client, [*client.command(prompt, home), *client.freely], url, home)
            code, out = ask(command, environ, folder, prompt if client.stdin else "", 3 * PROMPT_SECONDS)
            found = changes(home, before)
            count = (folder / "count").read_text().strip() if (folder / "count").is_file() else "0"
            said = DONE in out.replace(f"[say:{DONE}:say]", "")
            # pi does not print a reply that comes after a refusal.
            if code != 0 or not (said or client.overflows) or int(count) < TURNS:
                found.append(f"exit code {code}, {count} steps, reply {'found' if said else 'missing'}:\n{out[-3000:]}")
            found += refused(url, client.overflows)
            for cause in causes(url, set(), least=client.window // 4)[0]:
                print(f"agents: {client.name}, {TURNS} turns: not found: {cause}", flush=True)
            return judged(found, answer(url, "/api/requests")["requests"], client.window)


def judged(found, requests, window):
    """Whether an agent compacted, and how much of each prompt the next one found again if it did not in between."""
    # A prompt that is too long has no figures.
    requests = [request for request in requests if request["new_tokens"] is not None]
    sizes = [request["prompt_tokens"] for request in requests]
    # Titles and the like are much shorter than a prompt with the tools.
    main = [request for request, size in zip(requests, sizes) if size > 0.5 * max(sizes[:3], default=0)]
    pairs = [(old["prompt_tokens"], new["prompt_tokens"], new["prompt_tokens"] - new["new_tokens"]) for old, new in zip(main, main[1:])]
    shorter = sum(new < 0.9 * old for old, new, _ in pairs)
    if not shorter:
        found.append("it did not compact")
    if sum(new - old for old, new, _ in pairs if new > old) <= window:
        found.append("its turns fit into the window")
    again = [cached / old for old, new, cached in pairs if new > old]
    least = min(again, default=0.0)
    if least < LEAST_FOUND:
        found.append(f"a turn found only {least:.1%} of the prompt before it")
    if found:
        found.append(f"prompts before, after, cached: {pairs}")
    summary = f"{len(main)} prompts, the longest has {max(sizes, default=0)} of {window} tokens; compacted {shorter} times"
    return found, f"{summary}; at least {min(least, 1.0):.1%} of the prompt before found"


@contextlib.contextmanager
def place():
    """An empty home with a project in it."""
    with tempfile.TemporaryDirectory(prefix="poncho-agents-", ignore_cleanup_errors=True) as home:
        home = pathlib.Path(home)
        folder = home / "project"
        folder.mkdir()
        (folder / "note.txt").write_text(f"[say:{NOTE}:say]\n")
        subprocess.run(["git", "init", "--quiet", folder], check=True)
        yield home, folder


def settings(client, url, home):
    """Writes the settings of the guide for a server, and returns them."""
    (home / "address").write_text(url.removeprefix("http://"))
    target = home / client.settings
    target.parent.mkdir(parents=True, exist_ok=True)
    text = guide_block(*client.block, home)
    target.write_text(text)
    return text


def attempt(client, way="guide"):
    with place() as (home, folder), clients.server([*clients.stub(), CONTEXT], "the stub") as (url, _):
        (home / "address").write_text(url.removeprefix("http://"))
        if client.settings:
            # Launched, the settings of the user would lead nowhere.
            settings(client, NOWHERE if way == "launch" else url, home)
        before = hashes(home)
        found, share, called = problems(client, url, home, folder, way)
        return found + (changes(home, before) if way == "launch" else []), share, called


def note(rows, name, found, share, start, about):
    for problem in found:
        print(f"agents: {name}: {problem}", flush=True)
    rows.append((name, "FAILED" if found else "good", share, f"{time.monotonic() - start:.0f} s", about))


def main():
    asked = [name.lower() for name in sys.argv[1:]]
    chosen = [client for client in CLIENTS if not asked or any(client.name.lower().startswith(name) for name in asked)]
    if not chosen:
        clients.fail(f"no client is called so; there are {', '.join(client.name for client in CLIENTS)}")
    rows = []
    for client in chosen:
        print(f"agents: {client.name}", flush=True)
        # Installing is not timed.
        client.command("", pathlib.Path(tempfile.gettempdir())) if client.program or client.settings else python_tools("langchain")
        ways = (["guide"] if client.settings or not client.launch else []) + (["launch"] if client.launch else [])
        for way in ways:
            start = time.monotonic()
            found, share, called = attempt(client, way)
            note(rows, client.name + (", launched" if way == "launch" else ""), found, f"{share:.1%}", start, " ".join(called))
        for name, part in [("slow", patience if client.idle else None), ("12 turns", long_run if client.window else None)]:
            if part:
                start = time.monotonic()
                found, summary = part(client)
                note(rows, f"{client.name}, {name}", found, "-", start, summary)
    head = ("client", "result", "found", "time", "about")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    sys.exit(any(row[1] == "FAILED" for row in rows))


if __name__ == "__main__":
    main()
