# Installs what was packed in a root that holds the C library and nothing else, and chats there.
#
# Called by archive.py as root; another user gets a namespace of their own if the system allows it. The root is a temporary folder
# with the files that the loader names, a tiny model and the package. It must never write outside of that folder.
import pathlib
import shutil
import subprocess
import sys
import tempfile


def libraries(binary):
    """The files that the loader takes for a binary."""
    said = subprocess.run([str(binary)], env={"LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True, check=True).stdout
    words = [word for line in said.splitlines() for word in line.split() if word.startswith("/")]
    return [pathlib.Path(word) for word in words]


def chat(unpack, binary, model):
    """Unpacks into a clean root with `unpack` and has the binary there answer a prompt."""
    with tempfile.TemporaryDirectory(prefix="poncho-root-") as folder:
        root = pathlib.Path(folder)
        unpack(root)
        for library in libraries(root / binary):
            target = root / library.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, target)
        for name in ("tmp", "proc", "w"):
            (root / name).mkdir(exist_ok=True)
        shutil.copy2(model, root / "w/model.gguf")
        inside = f"mount -t proc none {root}/proc && exec chroot {root} /{binary} run --threads 1 --ctx-size 512 " \
                 "/w/model.gguf Hello --max-tokens 4"
        command = ["unshare", "--mount", "--pid", "--fork", "--map-root-user", "sh", "-c", inside]
        answer = subprocess.run(command, env={"HOME": "/w", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, capture_output=True,
                                text=True, timeout=120)
        if answer.returncode != 0:
            sys.exit(f"dist: {binary} does not chat in a clean root: {answer.stderr or answer.stdout}")
        return answer.stdout
