# Starts LiteLLM's proxy with a settings file, asks it one thing as a client of its own, prints the reply and ends it.
#
# Run by tests/clients/agents.py with the Python that has LiteLLM: ask_litellm.py CONFIG PROMPT.
# It must never leave the proxy running.
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

START_SECONDS = 90


def ready(url):
    try:
        with urllib.request.urlopen(f"{url}/health/liveliness", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def main():
    config, prompt = sys.argv[1:]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [pathlib.Path(sys.executable).parent / "litellm", "--config", config, "--host", "127.0.0.1", "--port", str(port)]
    proxy = subprocess.Popen(command, stdout=sys.stderr)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready(url):
            if proxy.poll() is not None or time.monotonic() > deadline:
                sys.exit("the proxy did not start")
            time.sleep(0.2)
        body = {"model": "local", "messages": [{"role": "user", "content": prompt}]}
        headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['LITELLM_MASTER_KEY']}"}
        request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            print(json.load(answer)["choices"][0]["message"]["content"])
    finally:
        proxy.terminate()
        try:
            proxy.wait(10)
        except subprocess.TimeoutExpired:
            proxy.kill()


if __name__ == "__main__":
    main()
