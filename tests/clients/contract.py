#!/usr/bin/env python3
# Holds a running server against its own OpenAPI document with schemathesis: no 5xx, no undocumented status or type, no
# answer that violates its schema, and nothing accepted that the document forbids.
#
# Called by tests/clients/run.py with PONCHO_URL, the address of a stub server. Bounded by PONCHO_CONTRACT_SECONDS.
import os
import subprocess
import sys
import tempfile

URL = os.environ["PONCHO_URL"]
SECONDS = os.environ.get("PONCHO_CONTRACT_SECONDS", "60")
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "negative_data_rejection",
]
# They answer 501 by design until they are built.
NOT_BUILT = "^/api/(pull|push|copy|create|delete)$"


def main():
    with tempfile.TemporaryDirectory(prefix="poncho-contract-") as folder:
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{URL}/openapi.json",
            "--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--max-time", SECONDS,
            "--exclude-path-regex", NOT_BUILT, "--seed", "1", "--workers", "2", "--request-timeout", "60",
            "--continue-on-failure", "--no-color", "--suppress-health-check", "all", "--warnings", "off",
        ]
        # The folder keeps its database of examples away from the sources.
        return subprocess.run(command, cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
