# The container file: its image is built by buildah and run by podman as docs/deploying.md says.
#
# Called by scripts/try_deployment.py. No registry is asked: the base image is made from Debian's packages and stored under the
# name that the file gives. The first stage, which compiles as `make build` does, is tried up to the compiler: what it copies
# must be a whole workspace. Images live in a storage of their own, which goes away with the folder.
import contextlib
import resource
import shutil
import subprocess

from deployment import debian
from deployment.poncho import BINARY, KEY, MODEL, ROOT, Client, free_port, wait_until
from deployment.service import ask, ready

STAGE = "FROM docker.io/library/debian:bookworm-slim"
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

    def podman(self, *words):
        # Without systemd as the first process of a machine nobody manages groups.
        return done("podman", *self.flags, "--cgroup-manager", "cgroupfs", *words)


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


@contextlib.contextmanager
def started(store, folder, port):
    """The guide's line, but for the network, which is this machine's, and a port in it."""
    models = folder / "models"
    models.mkdir(exist_ok=True)
    if not (models / "model.gguf").exists():
        shutil.copy(MODEL, models / "model.gguf")
    line = ["run", "--detach", "--init", "--network", "host", "--cgroups", "disabled", "--stop-timeout", "120"]
    # podman's own limits may be higher than this machine lets anybody set.
    for limit in ("nofile", "nproc"):
        soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{limit.upper()}"))
        line += ["--ulimit", f"{limit}={soft}:{hard}"]
    line += ["-e", f"PONCHO_API_KEY={KEY}", "-e", f"PONCHO_PORT={port}", "-e", "PONCHO_HOST=127.0.0.1"]
    line += ["-v", "poncho-cache:/cache", "-v", f"{models}:/models:ro", "poncho"]
    name = store.podman(*line)
    try:
        yield name
    finally:
        store.podman("stop", name)
        code = store.podman("inspect", "--format", "{{.State.ExitCode}}", name)
        log = store.podman("logs", name)
        store.podman("rm", name)
    assert code == "0", f"the container ended with {code}: {log}"


def try_container(folder):
    first, second = (ROOT / "packaging/Containerfile").read_text().split(STAGE)
    copies_a_whole_workspace(first, folder)
    print("  the first stage copies a whole workspace (it is not compiled here)", flush=True)
    store = Store(folder)
    build(store, STAGE + second, folder)
    print("  the image is built", flush=True)
    for known in (False, True):
        client = Client(free_port(), model="model")
        with started(store, folder, client.port) as name:
            running = lambda: store.podman("inspect", "--format", "{{.State.Running}}", name) == "true"
            wait_until(lambda: ready(client) or not running(), "a container that is ready")
            assert ready(client), "the container ended before it was ready"
            assert client.call("GET", "/v1/models", headers={})[0] == 401, "a key is needed"
            read = ask(client)
            assert (read > 512) == known, f"{read} tokens were known to a container on a {'used' if known else 'new'} volume"
    print("  serves, ends well, and the next one on the same volume is warm", flush=True)
