#!/usr/bin/env python3
# Measures decoding with drafts beside decoding without, and beside llama-server with its own n-gram drafts, in one run.
#
# Called by `make drafts-peer`. Four servers take turns with the same prompts at temperature 0: Poncho without drafts, Poncho
# with drafts from stored conversations, llama-server without drafts, and llama-server with the n-gram setting that is fastest
# here. Printed: tokens per second after the first token, as medians with quartiles, for a file that is edited, a tool call
# that comes again, and plain prose. Each round has prompts of its own, so that no reply is simply the stored one. The last
# columns count the rounds in which Poncho, and llama-server, gave the same text with and without drafts.
import http.client
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
PONCHO = TARGET / "release" / "poncho"
PEER = ROOT / ".tools/peer/bin/llama-server"
MODEL = ROOT / ".tools/models/SmolLM2-135M-Instruct.Q4_1.gguf"
ROUNDS = int(os.environ.get("DRAFTS_ROUNDS", "7"))
THREADS = os.environ.get("DRAFTS_THREADS", str(os.cpu_count()))
REPLY = 160
# The settings of the peer that are tried; the fastest one on all prompts is measured.
NGRAMS = ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"]

TOPICS = ["a lighthouse keeper who finds a letter", "a baker who moves to an island", "two sisters and an old map",
          "a train that stops in the snow", "a gardener and a stray dog", "the last day of a small cinema",
          "a clockmaker with a secret", "a teacher who learns to sail", "a market in the rain", "an orchard at night"]


def edited_file(number):
    names = [f"{word}_{number}" for word in ("load", "save", "values", "lines", "entry")]
    load, save, values, lines, entry = names
    file = f"""def {load}(path):
    with open(path) as file:
        {lines} = file.read().splitlines()
    {values} = []
    for {entry} in {lines}:
        name, value = {entry}.split("=")
        {values}.append((name.strip(), value.strip()))
    return dict({values})


def {save}(path, {values}):
    with open(path, "w") as file:
        for name, value in {values}.items():
            file.write(name + " = " + value + "\\n")
"""
    return f"Copy this file and change nothing but the name of the first function:\n\n{file}\nThe copy:\n\n"


def tool_call(number):
    arguments = f'{{"path": "src/part_{number}/index.rs", "start_line": {120 + 7 * number}, "end_line": {180 + 7 * number}}}'
    return f'call: {{"tool": "read_file", "arguments": {arguments}}}\nresult: ok\n' * 3 + "call:"


def prose(number):
    return f"Write a long story about {TOPICS[number % len(TOPICS)]}.\n\nOne evening"


PROMPTS = {"editing a file": edited_file, "a tool call again": tool_call, "plain prose": prose}


class Server:
    def __init__(self, name, command):
        self.name = name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([*command, "--port", str(self.port)], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        for _ in range(600):
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.stop()
        sys.exit(f"the server {name} did not start")

    def rate(self, prompt):
        """Tokens per second after the first one, and the text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {"model": "x", "prompt": prompt, "max_tokens": REPLY, "temperature": 0, "stream": True,
                "ignore_eos": True, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer, first, last, text, tokens = connection.getresponse(), None, None, "", 0
        while line := answer.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            for choice in event.get("choices", []):
                if choice.get("text"):
                    last = time.perf_counter()
                    first = first or last
                    text += choice["text"]
        return (tokens - 1) / (last - first), text

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=60)


def poncho(folder, drafts):
    return [PONCHO, "serve", "--model", MODEL, "--cache-dir", folder / f"poncho-{drafts}", "--quiet", "--memory", "none",
            "--parallel", "1", "--ctx-size", "4096", "--threads", THREADS, "--drafts", drafts]


def peer(*more):
    return [PEER, "--model", MODEL, "-np", "1", "-c", "4096", "--threads", THREADS, "--no-webui", *more]


def fastest_ngrams():
    """The peer's best setting: that with the highest product of speeds."""
    speeds = {}
    for kind in NGRAMS:
        server = Server(kind, peer("--spec-type", kind))
        try:
            rates = [server.rate(prompt(number)) for prompt in PROMPTS.values() for number in (20, 21)]
        finally:
            server.stop()
        speeds[kind] = statistics.geometric_mean(rate for rate, _ in rates)
        print(f"llama-server --spec-type {kind}: {speeds[kind]:.1f} tokens/s", flush=True)
    return max(speeds, key=speeds.get)


def main():
    best = fastest_ngrams()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        commands = {"Poncho, off": poncho(folder, "off"), "Poncho, stored": poncho(folder, "stored"),
                    "llama-server": peer(), f"llama-server, {best}": peer("--spec-type", best)}
        servers = []
        try:
            for name, command in commands.items():
                servers.append(Server(name, command))
            print("| Prompt | " + " | ".join(f"{server.name}, tokens/s" for server in servers) + " | stored : off | same text | llama-server: same text |")
            print("| --- " * (len(servers) + 4) + "|")
            for name, prompt in PROMPTS.items():
                rates, texts = {server: [] for server in servers}, {server: [] for server in servers}
                for number in range(ROUNDS + 1):
                    for server in servers if number % 2 else servers[::-1]:
                        rate, text = server.rate(prompt(number))
                        texts[server].append(text)
                        if number:
                            rates[server].append(rate)
                cells = []
                for server in servers:
                    low, middle, high = statistics.quantiles(rates[server], n=4)
                    cells.append(f"{middle:.1f} ({low:.1f} to {high:.1f})")
                ratios = [stored / off for off, stored in zip(rates[servers[0]], rates[servers[1]])]
                low, middle, high = statistics.quantiles(ratios, n=4)
                cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
                for off, drafted in (servers[:2], servers[2:]):
                    same = sum(one == other for one, other in zip(texts[off], texts[drafted]))
                    cells.append(f"{same} of {ROUNDS + 1}")
                print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        finally:
            for server in servers:
                server.stop()


main()
