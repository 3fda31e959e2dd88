# A Poncho to deploy: the release binary with the default model and a key, and a client that looks closely.
#
# Used by the parts of scripts/try_deployment.py. The client speaks HTTP/1.1 through the standard library and records when
# bytes arrive, because that is what a proxy can spoil. A server's home and cache are inside the folder that it is given.
import contextlib
import http.client
import json
import os
import pathlib
import socket
import ssl
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
BINARY = TARGET / "release" / "poncho"
MODEL = ROOT / ".tools/models/SmolLM2-135M-Instruct.Q4_1.gguf"
KEY = "a-key-for-trying"
# Bounds for things that take seconds; a loaded machine may take many times that.
PATIENCE = 180


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(condition, what):
    """Polls a condition; what it stands for is named if it never comes."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE} s"
        time.sleep(0.05)
    return value


def answers(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


class Client:
    """Calls a server, or a proxy in front of it where a certificate is given."""

    def __init__(self, port, certificate=None, model="poncho"):
        self.port, self.key, self.model = port, KEY, model
        self.tls = ssl.create_default_context(cafile=certificate) if certificate else None

    def open(self, method, path, body=None, headers=None):
        """Sends a request; the answer's head has come when this returns."""
        if self.tls:
            connection = http.client.HTTPSConnection("localhost", self.port, timeout=PATIENCE, context=self.tls)
        else:
            connection = http.client.HTTPConnection("localhost", self.port, timeout=PATIENCE)
        if headers is None:
            headers = {"authorization": f"Bearer {self.key}"}
        if isinstance(body, dict):
            body = json.dumps(body)
        connection.request(method, path, body, {"content-type": "application/json", **headers})
        # Closing the answer closes the connection, so that hanging up is one call.
        return connection.getresponse()

    def call(self, method, path, body=None, headers=None):
        with self.open(method, path, body, headers) as answer:
            return answer.status, answer.read()

    def chat(self, tokens, stream):
        """Asks for a reply of about `tokens` tokens, streamed or whole."""
        # A story ends early if it may; a list of numbers goes on.
        question = "Count from one to ten thousand in words, one number in each line, and leave none out."
        body = {"messages": [{"role": "user", "content": question}], "stream": stream}
        body |= {"model": self.model, "max_tokens": tokens, "temperature": 0, "logit_bias": {"2": -100}}
        return self.open("POST", "/v1/chat/completions", body)

    def in_flight(self):
        """The gauge of requests being answered, without the one that asks."""
        status, page = self.call("GET", "/metrics")
        assert status == 200, f"/metrics answered {status}"
        values = [line.split()[1] for line in page.decode().splitlines() if line.startswith("poncho_http_in_flight ")]
        return int(values[0])


@contextlib.contextmanager
def running(folder):
    """A server that takes requests; it must exit cleanly when it is asked to."""
    port = free_port()
    env = {"HOME": str(folder), "PATH": os.environ["PATH"], "PONCHO_API_KEY": KEY}
    command = [BINARY, "serve", "--model", MODEL, "--name", "poncho", "--port", str(port), "--cache-dir", folder / "kv"]
    # One thread is slower than two, but does not wait for the other one where the machine has more to do.
    command += ["--threads", "1"]
    with (folder / "poncho.log").open("w") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        wait_until(lambda: answers(port) or process.poll() is not None, "the server's start")
        assert process.poll() is None, (folder / "poncho.log").read_text()
        yield process, Client(port)
    finally:
        process.terminate()
        code = process.wait(PATIENCE)
    assert code == 0, f"the server ended with {code}: {(folder / 'poncho.log').read_text()}"
