# A small Debian in a folder, made by debootstrap: the machine that the service and the container are tried on.
#
# Used by the parts of scripts/try_deployment.py that need one. It is made once and kept under target/deployment, where
# `cargo clean` removes it; trials work on copies.
import subprocess

from deployment.poncho import TARGET

RELEASE = "bookworm"
# systemd for the service; certificates as in the images that the container file names.
PACKAGES = "systemd,systemd-sysv,dbus,ca-certificates"


def made():
    """The folder, whole: an interrupted run leaves only a part, which the next one replaces."""
    whole, part = TARGET / "deployment" / RELEASE, TARGET / "deployment" / f"{RELEASE}.part"
    if not whole.exists():
        subprocess.run(["rm", "-rf", str(part)], check=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(part)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"debootstrap failed; is Debian's mirror within reach? {done.stdout[-1000:]}"
        part.rename(whole)
    return whole


def copied(to):
    subprocess.run(["cp", "-a", str(made()), str(to)], check=True)
    return to
