#!/usr/bin/env python3
# Measures the builds for newer CPUs beside the one for x86-64-v3: prompts and replies of SmolLM2 with three quantisations.
#
# Called by `make cpu-figures`. The servers of one model run side by side, one for each build, and read the same prompts in
# turn, each time another one first, so that a busy machine is as busy for all. No prompt comes twice. The process fails
# if a server is not of the build that it was asked for; a build that this CPU cannot run is left out and named.
import hashlib
import http.client
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
# Built as it is released, with the others beside it.
BINARY = TARGET / "packed" / "base" / "release" / "poncho"
BUILDS = TARGET / "release" / "poncho-cpu"
MODEL = ROOT / ".tools/models/SmolLM2-135M-Instruct.Q4_1.gguf"
TOOLS = ROOT / ".tools/gguf"
ROUNDS = int(os.environ.get("CPU_ROUNDS", "12"))
PROMPT, REPLY = 512, 64
WORDS = "a prompt that no server has read before has words in an order that never comes again ".split()


def python():
    """The Python that can write GGUF files, installed when it is not there."""
    pins = HERE / "requirements.txt"
    digest, mark = hashlib.sha256(pins.read_bytes()).hexdigest(), TOOLS / "pins"
    if not (mark.is_file() and mark.read_text() == digest):
        shutil.rmtree(TOOLS, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", TOOLS], check=True)
        pip = [TOOLS / "bin/python", "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "-r", pins], check=True)
        mark.write_text(digest)
    return TOOLS / "bin/python"


def models(folder):
    """SmolLM2 as it is fetched, and with other quantisations."""
    found = {"Q4_1": MODEL}
    for kind in ("Q4_0", "Q8_0"):
        found[kind] = folder / f"{kind}.gguf"
        subprocess.run([python(), HERE / "requantise.py", MODEL, found[kind], kind], check=True)
    return found


class Server:
    def __init__(self, build, model, folder):
        self.build = build
        command = [BINARY, "serve", "--port", "0", "--model", model, "--cache-dir", folder / build, "--quiet"]
        command += ["--parallel", "1", "--ctx-size", "2048", "--memory", "none"]
        environment = {**os.environ, "PONCHO_CPU_BUILD": build}
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        )
        for line in self.process.stdout:
            if line.startswith("serving"):
                self.port = int(line.split("http://127.0.0.1:")[1].split("/")[0])
            if "Ctrl-C" in line:
                break
        program = pathlib.Path(os.readlink(f"/proc/{self.process.pid}/exe")).name
        if program != ("poncho" if build == "base" else f"poncho-{build}"):
            sys.exit(f"the server of the build {build} is {program}")

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"{path}: {answer.status} {answer.read().decode()}")
        return answer

    def tokens(self, text):
        return json.loads(self.post("/tokenize", {"content": text}).read())["tokens"]

    def speeds(self, prompt):
        """Tokens per second of the prompt and of the reply."""
        body = {"prompt": prompt, "max_tokens": REPLY, "temperature": 0, "stream": True, "ignore_eos": True}
        started = time.perf_counter()
        answer = self.post("/v1/completions", {"model": "x", **body})
        times = []
        while line := answer.readline():
            # An event without text says only that a long prompt is being read.
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
                times.append(time.perf_counter())
        return len(prompt) / (times[0] - started), (REPLY - 1) / (times[-1] - times[0])

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=120)


def words(seed):
    state, chosen = seed * 7919 + 1, []
    for _ in range(2 * PROMPT):
        state = (state * 1103515245 + 12345) % (1 << 31)
        chosen.append(WORDS[(state >> 8) % len(WORDS)])
    return f"{seed} " + " ".join(chosen)


def measure(kind, model, builds, folder):
    servers = [Server(build, model, folder / kind) for build in builds]
    try:
        taken = {server.build: [] for server in servers}
        for number in range(ROUNDS + 1):
            prompt = servers[0].tokens(words(number))[:PROMPT]
            turn = number % len(servers)
            for server in servers[turn:] + servers[:turn]:
                speeds = server.speeds(prompt)
                # The first round warms up.
                if number > 0:
                    taken[server.build].append(speeds)
    finally:
        for server in servers:
            server.stop()
    for build in builds:
        cells = []
        for part in (0, 1):
            own, base = ([speeds[part] for speeds in taken[name]] for name in (build, "base"))
            low, middle, high = statistics.quantiles([one / two for one, two in zip(own, base)], n=4)
            cells.append(f"{statistics.median(own):.0f} | {middle:.2f} ({low:.2f} to {high:.2f})")
        print(f"| {kind} | {build} | {' | '.join(cells)} |", flush=True)


def main():
    builds = ["base"]
    for build in sorted(BUILDS.glob("poncho-*")) if BUILDS.is_dir() else []:
        name = build.name.removeprefix("poncho-")
        if subprocess.run([build, "try-cpu"], capture_output=True).returncode == 0:
            builds.append(name)
        else:
            print(f"this CPU does not run the build {name}")
    if len(builds) == 1:
        sys.exit("no build for newer CPUs runs here; make cpu-builds")
    print(f"{PROMPT} tokens of prompt and {REPLY} of reply, medians of {ROUNDS}; beside base: median of pairs, quartiles")
    print("| SmolLM2 135M | build | prompt, tokens/s | beside base | reply, tokens/s | beside base |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for kind, model in models(pathlib.Path(folder)).items():
            measure(kind, model, builds, pathlib.Path(folder))


main()
