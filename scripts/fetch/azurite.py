#!/usr/bin/env python3
# Installs Azurite, the emulator of Azure Blob Storage by Microsoft, from npm's registry.
#
# Called by `make test`: the tests of the shared tier (crates/shared/tests) start it with node on loopback. The package is
# installed by name into a folder of its own, started once to see that it runs, and put in place by a rename. It must never
# leave a program that does not run. No install script of a package is run.
import json
import os
import shutil
import subprocess
import sys
import tempfile

# The last version for Node.js 20; later ones need 22.
VERSION = "3.35.0"
INTEGRITY = "sha512-GzKmi+/5U0baNRjEEVtBMLpLuIKEJ0uSh0VWBzOI4qe4f5ziJyoZQmcTO7QhxZTF6+rphj7TZS3PtJY7uiiacA=="
TOOLS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), ".tools")
FOLDER = os.path.join(TOOLS, "azurite")
PROGRAM = os.path.join("node_modules", "azurite", "dist", "src", "blob", "main.js")


def runs(folder):
    program = os.path.join(folder, PROGRAM)
    if not os.path.isfile(program):
        return False
    answer = subprocess.run(["node", program, "--version"], capture_output=True, text=True)
    return answer.returncode == 0 and VERSION in answer.stdout


def install(folder):
    """Installs the package into an empty folder."""
    print(f"installing azurite {VERSION} (190 MB), the second object store of the tests", flush=True)
    with open(os.path.join(folder, "package.json"), "w") as file:
        json.dump({"private": True, "dependencies": {"azurite": VERSION}}, file)
    npm = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    if subprocess.run(npm, cwd=folder).returncode != 0:
        sys.exit("azurite could not be installed: see npm's message above. With a network, run scripts/fetch/azurite.py again")
    with open(os.path.join(folder, "package-lock.json")) as file:
        installed = json.load(file)["packages"]["node_modules/azurite"]
    if installed.get("integrity") != INTEGRITY:
        sys.exit(f"azurite {VERSION} has other contents than before: {installed}; report this")


def main():
    if not (shutil.which("node") and shutil.which("npm")):
        sys.exit("node and npm are missing; the second object store of the tests needs version 20 or later")
    if runs(FOLDER):
        return
    os.makedirs(TOOLS, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as folder:
        install(folder)
        if not runs(folder):
            sys.exit("azurite does not run on this machine: it needs Node.js 20 or later; report this otherwise")
        shutil.rmtree(FOLDER, ignore_errors=True)
        unpacked = os.path.join(folder, "azurite")
        os.mkdir(unpacked)
        os.replace(os.path.join(folder, "node_modules"), os.path.join(unpacked, "node_modules"))
        os.replace(unpacked, FOLDER)
    print(f"the second object store is {os.path.relpath(os.path.join(FOLDER, PROGRAM))}")


if __name__ == "__main__":
    main()
