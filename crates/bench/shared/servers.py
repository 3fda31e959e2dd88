# The processes that figures.py measures: SeaweedFS, servers of the real binary, and the plain client of the store.
#
# Every process ends with this one. Figures are times seen by an HTTP client on loopback.
import atexit
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
BINARY = TARGET / "release" / "poncho"
RAW_GET = TARGET / "release" / "examples" / "raw_get"
WEED = ROOT / ".tools/seaweedfs/weed"
MODEL = ROOT / ".tools/models/SmolLM2-135M-Instruct.Q4_1.gguf"
STORE = "s3://poncho-kv/figures"
KEYS = {"AWS_ACCESS_KEY_ID": "poncho", "AWS_SECRET_ACCESS_KEY": "poncho-secret", "AWS_REGION": "us-east-1"}


STARTED = []


def start(command, **options):
    process = subprocess.Popen(command, **options)
    STARTED.append(process)
    return process


@atexit.register
def end_all():
    for process in STARTED:
        if process.poll() is None:
            process.kill()


def until(what, condition, seconds=120):
    """Waits for a condition and returns how long that took."""
    begin = time.perf_counter()
    while not condition():
        if time.perf_counter() - begin > seconds:
            sys.exit(f"not within {seconds} s: {what}")
        time.sleep(0.05)
    return time.perf_counter() - begin


class Weed:
    """SeaweedFS on free ports."""

    NAMES = ["s3", "master", "volume", "filer"]

    def __init__(self, folder):
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        held = [socket.create_server(("127.0.0.1", 0)) for _ in range(8)]
        self.ports = [one.getsockname()[1] for one in held]
        for one in held:
            one.close()
        self.run()

    def run(self):
        names = [f"{name}.port" for name in self.NAMES] + [f"{name}.port.grpc" for name in self.NAMES]
        command = [WEED, "server", f"-dir={self.folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false", "-volume.max=256"]
        # By default it takes no writes once the disk is 99 % full, however many bytes that leaves.
        command += ["-master.volumeSizeLimitMB=64", "-volume.minFreeSpace=256MiB"]
        command += [f"-{name}={port}" for name, port in zip(names, self.ports)]
        log = open(self.folder / "log", "a")
        self.process = start(
            command, cwd=self.folder, env={**os.environ, **KEYS}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        until("SeaweedFS answers", self.answers)

    def address(self):
        return ("127.0.0.1", self.ports[0])

    def answers(self):
        try:
            socket.create_connection(self.address(), timeout=1).close()
            return True
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()


class Store:
    """The plain client: lists the rows of the store, and reads bytes as fast as the store sends them."""

    def __init__(self, endpoint):
        environment = {**os.environ, **KEYS, "AWS_ENDPOINT": endpoint}
        self.process = start(
            [RAW_GET, STORE], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def rows(self):
        """Rows with `tokens`, `rows` of the chain, and `segments` as pairs of path and length."""
        return self.ask("rows")

    def seconds(self, row):
        """A parallel GET of all segments of a row."""
        return self.ask(row["segments"])

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Server:
    """A server of the binary with a cache folder of its own. `endpoint` is that of the S3 store."""

    def __init__(self, name, folder, endpoint=None, store=STORE, more=None, threads=os.cpu_count()):
        self.name = name
        command = [BINARY, "serve", "--port", "0", "--model", MODEL, "--cache-dir", folder / name, "--quiet"]
        # The number of threads changes bits, and it follows the neighbours if it is not given.
        command += ["--parallel", "1", "--ctx-size", "4096", "--memory", "none", "--threads", str(threads)]
        environment = {**os.environ, **(more or {})}
        if endpoint:
            environment |= {**KEYS, "AWS_ENDPOINT": endpoint}
        if endpoint or more:
            command += ["--shared", store]
        log = open(folder / f"{name}.log", "w")
        self.process = start(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True
        )
        for line in self.process.stdout:
            if line.startswith("serving"):
                self.port = int(line.split("http://127.0.0.1:")[1].split("/")[0])
            if "Ctrl-C" in line:
                break
        else:
            sys.exit(f"the server {name} did not start; see {folder / name}.log")
        if endpoint or more:
            self.until_shared()

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        return connection.getresponse()

    def tokens(self, text):
        return json.load(self.post("/tokenize", {"content": text}))["tokens"]

    def ask(self, prompt, tokens=8):
        """Seconds to the first token, the whole text, and what the server reports of the cache."""
        body = {"model": "x", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "poncho": True}
        started = time.perf_counter()
        answer = self.post("/v1/completions", {**body, "ignore_eos": True})
        first, text, facts = None, "", {}
        while line := answer.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                sys.exit(f"{self.name}: {event}")
            facts = event.get("poncho") or facts
            new = "".join(choice["text"] for choice in event["choices"])
            # A heartbeat has no text.
            if first is None and new:
                first = time.perf_counter() - started
            text += new
        if answer.status != 200 or first is None:
            sys.exit(f"{self.name} answered {answer.status}")
        return first, text, facts

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else None

    def until_shared(self, seconds=120):
        return until(f"{self.name} uses the store", lambda: self.metric("poncho_shared_on") == 1, seconds)

    def until_uploaded(self, rows):
        """Rows are offered when their conversation was quiet for half a minute."""
        wait = lambda: self.metric("poncho_shared_uploaded_rows_total") >= rows and self.metric("poncho_shared_queue") == 0
        return until(f"{rows} rows are uploaded", wait, 300)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=120)
