#!/usr/bin/env python3
# Measures what the boundary between server and engine costs: in-process and child, in turn, in one run.
#
# Called by `make boundary`. Two servers of the same binary and model run side by side, and each figure is taken from one
# and then from the other, so that a busy machine is as busy for both. Printed: first token of a short prompt, an exact hit
# of 2,000 tokens, tokens per second of 16 streams and the processor time that they take (which other programs hardly
# change), each with quartiles of the pairs, and the memory of the server's own process. The short prompt repeats, so that one token is computed and the boundary is not lost in the noise of prefill.
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
REPLY = 48
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
            # An event without text says only that a long prompt is being read.
            if first is None and line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
                first = time.perf_counter() - started
        return first, time.perf_counter() - started - first

    def resident(self):
        """Megabytes of the server's process: those that no file backs, its share (pages of the program count in part for
        each process that uses them, such as the engine's), and all of them."""
        lines = pathlib.Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
        return [kilobytes[name] * 1.024 / 1000 for name in ("Pss_Anon", "Pss", "Rss")]

    def processor_seconds(self):
        """Of the server and its engine."""
        processes = [self.process.pid]
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            processes += [int(child) for child in (task / "children").read_text().split()]
        fields = [pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in processes]
        return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=120)


def text(words, start):
    return " ".join(WORDS[(start + number) % len(WORDS)] for number in range(words)) + f" {start}"


def together(server):
    """Tokens per second of all streams, and milliseconds of processor time for each token."""
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        started, used = time.perf_counter(), server.processor_seconds()
        list(pool.map(lambda number: server.stream(f"Stream {number} begins", REPLY), range(STREAMS)))
        seconds, used = time.perf_counter() - started, server.processor_seconds() - used
        return STREAMS * REPLY / seconds, 1000 * used / (STREAMS * REPLY)


def show(what, pairs, unit, change, bound):
    """Prints both medians, and the quartiles of what `change` makes of each pair."""
    own, child = (statistics.median(values) for values in zip(*pairs))
    low, middle, high = statistics.quantiles([change(*pair) for pair in pairs], n=4)
    print(f"{what}: in-process {own:.2f} {unit}, child {child:.2f} {unit}")
    print(f"  child against in-process: {middle:.3f} ({low:.3f} to {high:.3f}; {bound})", flush=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        servers = [Server("in-process", ["--in-process"], folder), Server("child", [], folder)]
        try:
            for server in servers:
                server.stream("Once", 4)
                server.stream(text(1700, 0), 2)

            def pairs(rounds, measure):
                """Both servers in turn, each time another one first."""
                taken = []
                for number in range(rounds):
                    pair = {server: measure(server) for server in (servers if number % 2 == 0 else servers[::-1])}
                    taken.append(tuple(pair[server] for server in servers))
                return taken

            def first(prompt):
                return lambda server: 1000 * server.stream(prompt, 1)[0]

            difference = lambda own, child: child - own
            short = pairs(5 * ROUNDS, first("Once upon a time"))
            show("first token, short prompt", short, "ms", difference, "at most 0.3 ms more")
            long = pairs(ROUNDS, first(text(1700, 0)))
            show("first token, exact hit of a long prompt", long, "ms", difference, "at most 1 ms more")
            decode = pairs(max(4, ROUNDS // 4), together)
            ratio = lambda own, child: child / own
            speed = [tuple(one[0] for one in pair) for pair in decode]
            show(f"{STREAMS} streams", speed, "tokens/s", ratio, "at least 0.98")
            work = [tuple(one[1] for one in pair) for pair in decode]
            show(f"{STREAMS} streams, processor time", work, "ms a token", ratio, "at most 1.02")
            own, share, whole = servers[1].resident()
            print(f"memory of the server beside a child: {share:.1f} MB (at most 40): {own:.1f} MB of its own and its share", end=" ")
            print(f"of the program; with all of the program {whole:.1f} MB")
        finally:
            for server in servers:
                server.stop()


main()
