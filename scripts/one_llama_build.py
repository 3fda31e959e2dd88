#!/usr/bin/env python3
# Proves that every cargo call of the Makefile shares one build of llama.cpp.
#
# Asks `make -n` for the commands, asks cargo for the unit graph of each (nothing is compiled),
# and compares what the build script of llama-cpp-sys-4 hangs on: features, profile, and the same
# for everything it is built with. Two different answers mean that llama.cpp is compiled twice,
# ten minutes each. Called by `make check` and `make test`; it must never compile or write.
import hashlib
import json
import os
import shlex
import subprocess
import sys

TARGETS = ["build", "test", "bench", "doc"]
BINDING = "llama-cpp-sys-4"
# What cargo does for each call of the Makefile; calls not listed here compile none of our crates.
GRAPH_COMMANDS = {"build": "build", "clippy": "clippy", "doc": "doc", "test": "test", "bench": "bench", "nextest": "test"}


def cargo_calls():
    """The distinct cargo calls of the Makefile, as argument lists."""
    printed = subprocess.run(["make", "-n", *TARGETS], check=True, capture_output=True, text=True).stdout
    calls = []
    for line in printed.splitlines():
        words = shlex.split(line)
        if "cargo" in words:
            call = words[words.index("cargo") + 1 :]
            if call[0] in GRAPH_COMMANDS and call not in calls:
                calls.append(call)
    return calls


def graph_arguments(call):
    """The cargo arguments that print the unit graph of this call."""
    words = call[: call.index("--")] if "--" in call else list(call)
    if words[0] == "nextest":
        words = words[1:]  # then `run` stands first, as the command does in the other calls
        if "-E" in words:
            at = words.index("-E")
            words = words[:at] + words[at + 2 :]
    return [GRAPH_COMMANDS[call[0]], *words[1:], "--unit-graph", "-Z", "unstable-options"]


def llama_builds(graph):
    """The identities of the runs of the binding's build script in this graph."""
    units = graph["units"]
    known = {}

    def identity(index):
        if index not in known:
            unit = units[index]
            facts = [unit["pkg_id"], unit["target"]["name"], unit["target"]["kind"], unit["profile"]]
            facts += [unit["platform"], unit["mode"], unit["features"]]
            facts.append(sorted(identity(needed["index"]) for needed in unit["dependencies"]))
            known[index] = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return known[index]

    return {
        identity(index)
        for index, unit in enumerate(units)
        if BINDING in unit["pkg_id"] and unit["mode"] == "run-custom-build"
    }


def main():
    # The unit graph is an unstable output; the variable unlocks it and changes no build.
    environment = {**os.environ, "RUSTC_BOOTSTRAP": "1"}
    seen = {}
    calls = cargo_calls()
    for call in calls:
        asked = ["cargo", *graph_arguments(call)]
        answer = subprocess.run(asked, capture_output=True, text=True, env=environment)
        if answer.returncode != 0:
            print(answer.stderr, file=sys.stderr)
            sys.exit(f"cannot ask cargo about: cargo {shlex.join(call)}")
        for build in llama_builds(json.loads(answer.stdout)):
            seen.setdefault(build, []).append(shlex.join(call))
    if len(seen) > 1:
        print(f"llama.cpp would be compiled {len(seen)} times; these groups of calls differ:")
        for number, group in enumerate(seen.values(), start=1):
            for call in group:
                print(f"  {number}: cargo {call}")
        sys.exit("give all of them the same profile, features and packages (CONTRIBUTING.md)")
    if not seen:
        sys.exit(f"no call of the Makefile builds {BINDING}: this check looks in the wrong place")
    print(f"{len(calls)} cargo calls, one build of llama.cpp")


if __name__ == "__main__":
    main()
