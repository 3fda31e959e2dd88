#!/usr/bin/env python3
# Measures what the boundary between server and engine costs: in-process and child, in turn, in one run.
#
# Called by `make boundary`. Two servers of the same binary and model run side by side, and each figure is taken from one
# and then from the other, so that a busy machine is as busy for both. Printed: first token of a short prompt, tokens per
# second of 16 streams, an exact hit of 2,000 tokens, and the memory of the server's own process. It asks nobody else.
import concurrent.futures
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
BINARY = TARGET / "release" / "poncho"
MODEL = ROOT / ".tools/models/SmolLM2-135M-Instruct.Q4_1.gguf"
ROUNDS = int(os.environ.get("BOUNDARY_ROUNDS", "40"))
STREAMS = 16
WORDS = "poncho keeps every state warm and finds it again by its tokens ".split()


class Server:
    def __init__(self, name, flags, folder):
        self.name = name
        command = [BINARY, "serve", "--port", "0", "--model", MODEL, "--cache-dir", folder / name, "--quiet"]
        command += ["--parallel", str(STREAMS), "--ctx-size", "4096", "--memory", "none", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        for line in self.process.stdout:
            if line.startswith("serving"):
                self.port = int(line.split("http://127.0.0.1:")[1].split("/")[0])
            if "Ctrl-C" in line:
                return
        sys.exit(f"the server {name} did not start")

    def stream(self, prompt, tokens):
        """Seconds to the first token, seconds after it, and tokens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        body = json.dumps({"model": "x", **body})
        started = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        first = None
        while line := answer.readline():
            if line.startswith(b"data: {") and first is None:
                first = time.perf_counter() - started
        return first, time.perf_counter() - started - first

    def resident(self):
        """Megabytes of the server's process that no file backs, and all of them."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in status.splitlines() if line.endswith(" kB")}
        return kilobytes["RssAnon"] / 1000, kilobytes["VmRSS"] / 1000

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=120)


def text(words, start):
    return " ".join(WORDS[(start + number) % len(WORDS)] for number in range(words)) + f" {start}"


def together(server):
    """Tokens per second of all streams, after their first tokens."""
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        started = time.perf_counter()
        done = list(pool.map(lambda number: server.stream(f"Stream {number} begins", 64), range(STREAMS)))
        return STREAMS * 64 / (time.perf_counter() - started), done


def show(what, values, unit, digits):
    own, child = (statistics.median(values[name]) for name in ("in-process", "child"))
    print(f"{what}: in-process {own:.{digits}f} {unit}, child {child:.{digits}f} {unit}", flush=True)
    return own, child


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        servers = [Server("in-process", ["--in-process"], folder), Server("child", [], folder)]
        try:
            measured = {what: {server.name: [] for server in servers} for what in ("first", "hit", "decode")}
            for server in servers:
                server.stream("Once", 4)
                server.stream(text(1700, 0), 2)
            for number in range(ROUNDS):
                # In turn, and each time another one first.
                for server in servers if number % 2 == 0 else reversed(servers):
                    measured["first"][server.name].append(1000 * server.stream(f"Round {number} of", 1)[0])
                    measured["hit"][server.name].append(1000 * server.stream(text(1700, 0), 1)[0])
            for number in range(max(2, ROUNDS // 10)):
                for server in servers if number % 2 == 0 else reversed(servers):
                    measured["decode"][server.name].append(together(server)[0])
            own, child = show("first token, short prompt", measured["first"], "ms", 2)
            print(f"  difference {child - own:+.2f} ms (at most 0.3)")
            own, child = show("first token, exact hit of a long prompt", measured["hit"], "ms", 2)
            print(f"  difference {child - own:+.2f} ms (at most 1)")
            own, child = show(f"{STREAMS} streams", measured["decode"], "tokens/s", 1)
            print(f"  ratio {child / own:.3f} (at least 0.98)")
            anonymous, all_of_it = servers[1].resident()
            print(f"memory of the server beside a child: {anonymous:.1f} MB, {all_of_it:.1f} MB with its program (at most 40)")
        finally:
            for server in servers:
                server.stop()


main()
