#!/usr/bin/env python3
# Starts `poncho serve MODEL` without settings and shows that it uses the GPU and finds its rows after a restart.
#
# Called by run.py beside it. The server listens on loopback and is ended before this returns.
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
PORT = 18080
TEXT = "The quick brown fox jumps over the lazy dog and runs away from the cat. "


def serve(model, cache, lines=None):
    command = [str(HERE / "poncho"), "serve", "--model", str(model), "--port", str(PORT), "--cache-dir", str(cache)]
    started = time.monotonic()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in server.stdout:
        print("  |", line.rstrip(), flush=True)
        if lines is not None:
            lines.append(line)
        if "Ctrl-C" in line:
            print(f"  started in {time.monotonic() - started:.1f} s", flush=True)
            return server
    sys.exit("serve: the server did not start")


def ask(prompt, count):
    body = {"model": "shape", "prompt": prompt, "max_tokens": count, "temperature": 0}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json", "x-poncho": "1"})
    started = time.monotonic()
    with urllib.request.urlopen(request, timeout=300) as answer:
        reply = json.load(answer)
    return reply, (time.monotonic() - started) * 1e3


def stop(server):
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=120)


def main():
    model = pathlib.Path(sys.argv[1])
    print(subprocess.run([str(HERE / "poncho"), "doctor"], capture_output=True, text=True).stdout, flush=True)
    with tempfile.TemporaryDirectory(dir=HERE) as folder:
        cache = pathlib.Path(folder, "kv")
        texts = []
        for start in ("first", "second"):
            server = serve(model, cache)
            try:
                for repeat in (1, 2):
                    reply, time_ms = ask(TEXT * 60, 16)
                    texts.append(reply["choices"][0]["text"])
                    said = json.dumps(reply.get("poncho"))
                    print(f"  {start} start, request {repeat}: {time_ms:.0f} ms, {said}", flush=True)
            finally:
                stop(server)
        print("  the same reply each time:", len(set(texts)) == 1, flush=True)


if __name__ == "__main__":
    main()
