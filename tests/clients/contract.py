#!/usr/bin/env python3
# Holds a running server against its own OpenAPI document with schemathesis: no 5xx, no undocumented status or type, no
# answer that violates its schema, and nothing accepted that the document forbids.
#
# Called by tests/clients/run.py with PONCHO_URL, the address of a stub server. The same requests are made each time;
# PONCHO_CONTRACT_EXAMPLES makes more of them for each operation, PONCHO_CONTRACT_SEED=7 others.
import os
import subprocess
import sys
import tempfile

URL = os.environ["PONCHO_URL"]
EXAMPLES = os.environ.get("PONCHO_CONTRACT_EXAMPLES", "20")
SEED = os.environ.get("PONCHO_CONTRACT_SEED")
# Many times what it takes; ends a run that hangs.
MOST_SECONDS = 900
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "negative_data_rejection",
]
# One answers 501 by design; the other would fetch from the network.
LEFT_OUT = "^/api/(pull|push)$"
# These take the body of another endpoint and look at its prompt alone: what they do not read, they do not refuse.
COUNTING = "/input_tokens$"


def run(checks, *paths):
    """Sends requests that the document allows, and others, and holds the answers against it."""
    with tempfile.TemporaryDirectory(prefix="poncho-contract-") as folder:
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{URL}/openapi.json",
            "--checks", ",".join(checks), "--phases", "examples,coverage,fuzzing", "--max-examples", EXAMPLES,
            *paths, *(["--seed", SEED] if SEED else ["--generation-deterministic"]),
            # One thread: two that parse Python source at once make CPython 3.11 lose count of its own recursion
            # (python/cpython issue 106905), and that ends the run with an error which is not the server's.
            "--workers", "1", "--request-timeout", "60",
            "--continue-on-failure", "--no-color", "--suppress-health-check", "all", "--warnings", "off",
        ]
        # Whatever it writes, it writes away from the sources.
        return subprocess.run(command, cwd=folder, timeout=MOST_SECONDS).returncode


def main():
    counting = [check for check in CHECKS if check != "negative_data_rejection"]
    failed = run(CHECKS, "--exclude-path-regex", f"{LEFT_OUT}|{COUNTING}")
    return run(counting, "--include-path-regex", COUNTING) or failed


if __name__ == "__main__":
    sys.exit(main())
