#!/usr/bin/env python3
# A newcomer: clones the project into an empty folder, with an empty home, and does what the README's quick start says.
#
# Called by `make newcomer`, which takes as long as a first build; `make newcomer ARGS=--no-tests` leaves out the README's
# `make test`. Every command runs as printed there; the server that it starts is tried with the curl line that it prints and
# ended with Ctrl-C. CARGO_TARGET_DIR may name a folder with a compiled llama.cpp, to save that time: take one that no other
# checkout builds in, because cargo would take the clone's programs, which know the clone's path, for that checkout's.
# It must never touch the checkout that it was started from, nor the home of the user who runs it.
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Many times what a first build takes on two cores.
MOST_SECONDS = 2 * 3600
KEPT = {"PATH", "LANG", "TERM", "CARGO_HOME", "RUSTUP_HOME", "CARGO_TARGET_DIR", "PIP_CONFIG_FILE", "PIP_INDEX_URL"}


def commands(readme):
    """The lines of the first shell block, without what is said about them."""
    block = re.search(r"```sh\n(.*?)```", readme, re.S)
    if not block:
        sys.exit("newcomer: the README has no shell block")
    return [line.split("#")[0].strip() for line in block.group(1).splitlines() if line.split("#")[0].strip()]


def environment(home):
    """What a new user has: the tools that the README asks for, and nothing else."""
    kept = {name: value for name, value in os.environ.items() if name in KEPT or name.lower().endswith("_proxy")}
    for name, folder in (("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")):
        kept.setdefault(name, str(pathlib.Path.home() / folder))
    return {**kept, "HOME": str(home)}


def children(pid):
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def youngest(pid):
    """The process that make runs in the end."""
    while below := children(pid):
        pid = below[-1]
    return pid


def serve(command, folder, env):
    """Starts the server, tries its own curl line, and ends it as Ctrl-C does."""
    log = folder / "newcomer.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, shell=True, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + MOST_SECONDS
    while "Ctrl-C" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"newcomer: `{command}` did not serve:\n{log.read_text()[-4000:]}")
        time.sleep(0.2)
    said = log.read_text()
    line = re.search(r"^ +curl .*?(?:\\\n.*?)*$", said, re.M).group(0)
    answer = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, timeout=600)
    server = youngest(process.pid)
    os.kill(server, signal.SIGINT)
    code = process.wait(120)
    if '"chat.completion"' not in answer.stdout:
        sys.exit(f"newcomer: the curl line that was printed did not work:\n{line}\n{answer.stdout}{answer.stderr}")
    if code != 0:
        sys.exit(f"newcomer: `{command}` ended with {code}:\n{log.read_text()[-4000:]}")


def main():
    with tempfile.TemporaryDirectory(prefix="poncho-newcomer-") as place:
        place = pathlib.Path(place)
        clone, home = place / "poncho", place / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(clone)], check=True)
        env = environment(home)
        for command in commands((clone / "README.md").read_text()):
            if command == "make test" and "--no-tests" in sys.argv:
                continue
            start = time.monotonic()
            print(f"newcomer: {command}", flush=True)
            if command.startswith("make run"):
                serve(command, clone, env)
            elif subprocess.run(command, shell=True, cwd=clone, env=env, timeout=MOST_SECONDS).returncode != 0:
                sys.exit(f"newcomer: `{command}` failed")
            print(f"newcomer: {command} took {time.monotonic() - start:.0f} s", flush=True)
    print("newcomer: every line of the quick start works as printed", flush=True)


if __name__ == "__main__":
    main()
