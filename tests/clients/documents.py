# Runs the programs that the documents show, against a running server: every block marked python or js.
#
# Called by run.py, which starts the server and names it in PONCHO_URL, and the folder of the JavaScript SDKs in
# PONCHO_NODE. A program must end well and print something. Blocks that crates/cli/tests/documents/snippets/not_run.toml names are
# left out; that this table is true is checked there. It must never reach another server than the one it was given.
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NOT_RUN = ROOT / "crates" / "cli" / "tests" / "documents" / "snippets" / "not_run.toml"
# As in block.rs beside that table.
FOLDERS = ["docs", "tests", "packaging", "fuzz", "crates"]
URL_IN_DOCUMENTS = "http://127.0.0.1:8080"
# As for any request of the tests on a busy machine.
MOST_SECONDS = 300


def programs():
    """Each program with its place and its kind."""
    left_out = {(entry["document"], entry["opens"]) for entry in tomllib.loads(NOT_RUN.read_text())["block"]}
    below = [path for folder in FOLDERS for path in (ROOT / folder).glob("**/*.md") if "node_modules" not in path.parts]
    for path in sorted([*ROOT.glob("*.md"), *below]):
        text = path.read_text()
        name = str(path.relative_to(ROOT))
        for block in re.finditer(r"^( *)```(python|js)\n(.*?)^\1```$", text, re.S | re.M):
            body = textwrap.dedent(block.group(3))
            if (name, body.strip().splitlines()[0]) not in left_out:
                yield f"{name}:{text.count(chr(10), 0, block.start()) + 1}", block.group(2), body


def run_programs(url, modules, node):
    count = 0
    for place, kind, body in programs():
        if URL_IN_DOCUMENTS not in body:
            sys.exit(f"documents: {place} does not name {URL_IN_DOCUMENTS}")
        with tempfile.TemporaryDirectory(prefix="poncho-documents-") as folder:
            folder = pathlib.Path(folder)
            (folder / "node_modules").symlink_to(modules / "node_modules")
            program = folder / {"python": "program.py", "js": "program.mjs"}[kind]
            program.write_text(body.replace(URL_IN_DOCUMENTS, url))
            interpreter = {"python": [sys.executable], "js": node}[kind]
            keep = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
            env = {**keep, "HOME": str(folder), "NO_PROXY": "*", "PYTHONDONTWRITEBYTECODE": "1"}
            command = [*interpreter, program]
            ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=MOST_SECONDS)
        if ran.returncode != 0 or not ran.stdout.strip():
            sys.exit(f"documents: {place} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        count += 1
    if count < 4:
        sys.exit(f"documents: only {count} programs were found")
    print(f"documents: {count} programs ran as they are printed", flush=True)


if __name__ == "__main__":
    run_programs(os.environ["PONCHO_URL"], pathlib.Path(os.environ["PONCHO_NODE"]), sys.argv[1:])
