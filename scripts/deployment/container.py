# The container file: its image is built and run by buildah, which needs neither a daemon nor control groups.
#
# Called by scripts/try_deployment.py. No registry is asked: the base image is made from Debian's packages and stored under the
# name that the file gives. The first stage, which compiles as `make build` does, is tried up to the compiler: what it copies
# must be a whole workspace. Images live in a storage of their own, which goes away with the folder.
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

from deployment import debian
from deployment.poncho import BINARY, KEY, MODEL, ROOT, Client, free_port, wait_until
from deployment.service import ask, ready

STAGE = "FROM docker.io/library/debian:bookworm-slim"
# The user that the file makes.
UID = 10001
FROM_BUILD = "COPY --from=build /src/target/release/poncho"


def done(*command, **options):
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert ended.returncode == 0, f"`{' '.join(map(str, command))}` ended with {ended.returncode}: {ended.stdout}{ended.stderr}"
    return ended.stdout.strip()


def copies_a_whole_workspace(stage, folder):
    """cargo reads every manifest of what the first stage copies, with the lock file as it is."""
    source = folder / "src"
    source.mkdir()
    for line in stage.splitlines():
        if line.startswith("COPY "):
            *names, to = line.split()[1:]
            for name in names:
                path = ROOT / name
                target = source / to / (path.name if to == "./" else "")
                shutil.copytree(path, target) if path.is_dir() else shutil.copy(path, target)
    # What only other systems need was never fetched.
    platform = "--filter-platform=x86_64-unknown-linux-gnu"
    done("cargo", "metadata", "--locked", "--offline", "--format-version=1", platform, cwd=source)


class Store:
    """A place for images and containers that nothing else uses."""

    def __init__(self, folder):
        self.flags = ["--root", folder / "images", "--runroot", folder / "state", "--storage-driver", "vfs"]

    def buildah(self, *words):
        return done("buildah", *self.flags, *words)


def build(store, stage, folder):
    base = store.buildah("from", "scratch")
    store.buildah("copy", base, debian.made(), "/")
    store.buildah("commit", "--rm", base, STAGE.split()[1])
    context = folder / "context"
    context.mkdir()
    done("strip", "-o", context / "poncho", BINARY)
    assert FROM_BUILD in stage, f"the file has no {FROM_BUILD!r}"
    (context / "Containerfile").write_text(stage.replace(FROM_BUILD, "COPY poncho"))
    store.buildah("build", "--isolation", "chroot", "--pull-never", "-f", context / "Containerfile", "-t", "poncho", context)


def poncho_below(pid):
    """The server among the processes that buildah starts for it."""
    for below in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for found in below.read_text().split():
                if pathlib.Path(f"/proc/{found}/comm").read_text() == "poncho\n":
                    return int(found)
                if server := poncho_below(found):
                    return server
    return None


@contextlib.contextmanager
def started(store, folder, port):
    """What the image says, run as its user with its variables: the guide's line, but for the network of this machine."""
    config = json.loads(store.buildah("inspect", "--type", "image", "poncho"))["OCIv1"]["config"]
    models, cache = folder / "models", folder / "cache"
    if not cache.exists():
        models.mkdir()
        shutil.copy(MODEL, models / "model.gguf")
        # A new volume belongs to whom the image gave the folder.
        cache.mkdir(0o700)
        shutil.chown(cache, UID, UID)
        folder.chmod(0o755)
    container = store.buildah("from", "--pull-never", "poncho")
    line = ["run", "--isolation", "chroot", "-e", f"PONCHO_API_KEY={KEY}", "-e", f"PONCHO_PORT={port}", "-e", "PONCHO_THREADS=1"]
    line += ["-v", f"{cache}:/cache", "-v", f"{models}:/models:ro", container, "--", *config["Entrypoint"], *config["Cmd"]]
    command = [str(word) for word in ("buildah", *store.flags, *line)]
    with (folder / "container.log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if server := poncho_below(process.pid):
            os.kill(server, signal.SIGTERM)
        code = process.wait(120)
        store.buildah("rm", container)
    assert code == 0, f"the container ended with {code}: {(folder / 'container.log').read_text()}"


def try_container(folder):
    first, second = (ROOT / "packaging/Containerfile").read_text().split(STAGE)
    copies_a_whole_workspace(first, folder)
    print("  the first stage copies a whole workspace (it is not compiled here)", flush=True)
    store = Store(folder)
    build(store, STAGE + second, folder)
    print("  the image is built", flush=True)
    for known in (False, True):
        client = Client(free_port(), model="model")
        with started(store, folder, client.port) as process:
            wait_until(lambda: ready(client) or process.poll() is not None, "a container that is ready")
            assert ready(client), f"the container ended: {(folder / 'container.log').read_text()}"
            uid = pathlib.Path(f"/proc/{poncho_below(process.pid)}").stat().st_uid
            assert uid == UID, f"the server runs as user {uid}"
            assert client.call("GET", "/v1/models", headers={})[0] == 401, "a key is needed"
            read = ask(client)
            assert (read > 512) == known, f"{read} tokens were known to a container on a {'used' if known else 'new'} volume"
    print("  serves, ends well, and the next one on the same volume is warm", flush=True)
