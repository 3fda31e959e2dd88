# The unit: judged by systemd's own tools, and run by a systemd of its own in a small Debian.
#
# Called by scripts/try_deployment.py. The service is installed with the very lines of docs/deploying.md, run inside a
# container that systemd-nspawn boots; it shares the network of this machine, so the port is replaced by a free one. It must
# never reach the systemd of this machine: every command goes into the container's namespaces.
import contextlib
import pathlib
import re
import subprocess
import time

from deployment import debian
from deployment.poncho import BINARY, KEY, ROOT, TARGET, Client, free_port, wait_until

# systemd-analyze gives 0 to 10, and 9.6 to a service without any protection. What is left is the network.
MOST_EXPOSURE = 1.5
# What the unit allows for stopping; systemd kills the service after it, and that would show as a result.
MOST_SECONDS_TO_STOP = 120


def try_unit(folder):
    unit = (ROOT / "packaging/poncho.service").read_text()
    copy = folder / "poncho.service"
    # It asks for the program to be there; the one of this build is.
    copy.write_text(unit.replace("/usr/local/bin/poncho", str(BINARY)))
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
    complaints = [line for line in checked.stderr.splitlines() if "poncho.service" in line]
    assert not complaints, f"systemd-analyze verify says: {complaints}"
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSURE * 10:.0f}", str(copy)]
    judged = subprocess.run(command, capture_output=True, text=True)
    verdict = re.search(r"exposure level for \S+: ([0-9.]+)", judged.stdout)
    assert verdict, f"systemd-analyze security says: {judged.stdout}{judged.stderr}"
    assert judged.returncode == 0 and float(verdict.group(1)) <= MOST_EXPOSURE, f"exposure: {verdict.group(1)}"
    print(f"  exposure {verdict.group(1)}", flush=True)


def lines_of_the_guide():
    """The lines with which the guide installs the service."""
    section = (ROOT / "docs/deploying.md").read_text().split("\n## systemd\n")[1]
    block = re.search(r"```sh\n(.*?)```", section, re.S)
    # In the container everybody is root, and following the log would never end.
    return [line.removeprefix("sudo ").removesuffix(" -f") for line in block.group(1).splitlines()]


class Machine:
    """A Debian that was booted, with this checkout at /src."""

    def __init__(self, init):
        self.init = init

    def run(self, command):
        into = ["nsenter", "-t", str(self.init), "-a", "sh", "-c", f"cd /src && {command}"]
        done = subprocess.run(into, capture_output=True, text=True, timeout=300)
        return done.returncode, done.stdout + done.stderr

    def good(self, command):
        code, said = self.run(command)
        assert code == 0, f"`{command}` ended with {code}: {said}"
        return said

    def property(self, name):
        return self.good(f"systemctl show poncho -p {name} --value").strip()


def child(pid):
    with contextlib.suppress(OSError):
        return next(iter(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()), None)
    return None


@contextlib.contextmanager
def booted(rootfs, folder):
    command = ["systemd-nspawn", "-D", str(rootfs), "-b", "--register=no", "--keep-unit", "--console=pipe"]
    command += [f"--bind-ro={ROOT}:/src", f"--bind-ro={TARGET}:/src/target"]
    with (folder / "nspawn.log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        machine = Machine(wait_until(lambda: child(process.pid), "the start of a Debian"))
        wait_until(lambda: machine.run("systemctl is-system-running")[1].strip() in ("running", "degraded"), "its boot")
        yield machine
    finally:
        # It powers the container off.
        process.terminate()
        process.wait(180)


def ready(client):
    with contextlib.suppress(OSError):
        return client.call("GET", "/health/ready", headers={})[0] == 200
    return False


def ask(client):
    """A prompt that is long enough to be kept; says how much of it was not read again."""
    text = "A poncho is a simple garment that keeps its wearer warm and dry, whatever the weather. " * 40
    body = {"model": client.model, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    status, answer = client.call("POST", "/v1/chat/completions", body)
    assert status == 200, f"a chat was answered {status}: {answer}"
    return int(re.search(rb'"cached_tokens": ?(\d+)', answer).group(1))


def try_service(folder):
    rootfs, port = debian.copied(folder / "debian"), free_port()
    client = Client(port, model="model")
    with booted(rootfs, folder) as machine:
        for line in lines_of_the_guide():
            if "daemon-reload" in line:
                # What a user changes before the first start.
                machine.good(f"sed -i 's/^port = 8080$/port = {port}/' /etc/poncho/poncho.toml")
                machine.good(f"echo PONCHO_API_KEY={KEY} >> /etc/poncho/keys.env")
            machine.good(line)
        log = lambda: machine.run("journalctl -u poncho --no-pager")[1]
        wait_until(lambda: ready(client) or machine.property("ActiveState") != "active", "a service that is ready")
        assert ready(client), f"the service did not start: {log()}"
        status, _ = client.call("GET", "/v1/models", headers={})
        assert status == 401, f"without a key /v1/models answered {status}"
        assert ask(client) == 0, "nothing is known to a new service"
        cache = (rootfs / "var/cache/private/poncho").stat()
        assert cache.st_uid != 0 and cache.st_mode & 0o777 == 0o700, f"the cache folder: {cache}"
        print("  installed as the guide says, serves", flush=True)
        # Stopped in the middle of a long reply.
        answer = client.chat(6000, stream=True)
        started = time.monotonic()
        machine.good("systemctl stop poncho")
        took = time.monotonic() - started
        answer.close()
        result = machine.property("Result"), machine.property("ExecMainStatus")
        assert result == ("success", "0") and took < MOST_SECONDS_TO_STOP, f"stopping: {result}, {took:.0f} s: {log()}"
        print(f"  stopped in {took:.0f} s in the middle of a reply", flush=True)
        machine.good("systemctl start poncho")
        wait_until(lambda: ready(client), "the second start")
        assert (known := ask(client)) > 512, f"a restarted service knew {known} tokens"
        # A crash.
        machine.good("systemctl kill -s KILL poncho")
        wait_until(lambda: machine.property("NRestarts") == "1" and ready(client), "the restart after a crash")
        assert ask(client) > 512, "a service that crashed knows what it knew"
        print("  warm after a restart and after kill -9", flush=True)
