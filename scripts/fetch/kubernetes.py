#!/usr/bin/env python3
# Fetches the schema of Kubernetes' objects, for the test of packaging/kubernetes, from a Python package that carries it,
# into .tools/kubernetes.
#
# Called by `make test` and by the test itself. The package is fetched by name with pip and the file is put in place by a
# rename, so that a file under the final name is always whole. Two calls at once do no harm.
import os
import tempfile

import wheel

PACKAGE = "kubernetes-validate==1.37.0"
SHA256 = ["85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"]
MEMBER = "/v1.34.0-local-strict/_definitions.json"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, ".tools", "kubernetes")


def main():
    target = os.path.join(FOLDER, "definitions.json")
    if os.path.isfile(target):
        return
    os.makedirs(FOLDER, exist_ok=True)
    print(f"fetching {PACKAGE} (23 MB), which carries the schema of Kubernetes 1.34", flush=True)
    advice = "With a network, run scripts/fetch/kubernetes.py again"
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        os.replace(wheel.fetch(folder, PACKAGE, SHA256, MEMBER, advice), target)
    print(f"the schema is {os.path.relpath(target)}")


if __name__ == "__main__":
    main()
