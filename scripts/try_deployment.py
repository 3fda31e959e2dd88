#!/usr/bin/env python3
# Tries packaging/ and docs/deploying.md for real: both proxies in front of a server, the unit, the container file.
#
# Called by `make deployment` (nightly, as root on Debian), which has built the binary and fetched the default model;
# `make deployment ARGS='nginx caddy'` tries a part. The files are used as they are but for what a user replaces: names,
# addresses, paths. What is not installed is an error that says what to install; nothing is left out in silence. All of it
# happens in one folder that is removed again and on ports of the loopback; it must never touch the machine's own services.
import os
import pathlib
import shutil
import sys
import tempfile
import traceback

# A checkout stays as it was.
sys.dont_write_bytecode = True
from deployment import container, proxies, service

# Each part: what it runs, and the programs that it needs with the Debian packages that have them.
PARTS = {
    "nginx": (proxies.try_nginx, {"nginx": "nginx", "openssl": "openssl"}),
    "caddy": (proxies.try_caddy, {"caddy": "caddy", "openssl": "openssl"}),
    "unit": (service.try_unit, {"systemd-analyze": "systemd"}),
    "service": (service.try_service, {"systemd-nspawn": "systemd-container", "debootstrap": "debootstrap"}),
    "container": (container.try_container, {"buildah": "buildah", "debootstrap": "debootstrap"}),
}
NEEDS_ROOT = {"service", "container"}


def missing(names):
    """What has to be installed before the parts can be tried."""
    # Services live where the search path of a plain user does not look.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    wanted = {program: package for name in names for program, package in PARTS[name][1].items()}
    return sorted({package for program, package in wanted.items() if not shutil.which(program)})


def main():
    names = sys.argv[1:] or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"deployment: there is no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    if packages := missing(names):
        sys.exit(f"deployment: nothing was tried. Install first: apt-get install {' '.join(packages)}")
    if os.geteuid() != 0 and (privileged := sorted(NEEDS_ROOT.intersection(names))):
        sys.exit(f"deployment: nothing was tried. {' and '.join(privileged)} need root; name the other parts in ARGS")
    failed = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix=f"poncho-{name}-") as folder:
            print(f"deployment: {name}", flush=True)
            try:
                PARTS[name][0](pathlib.Path(folder))
            except Exception:
                # The other parts say something too.
                traceback.print_exc()
                failed.append(name)
    if failed:
        sys.exit(f"deployment: {', '.join(failed)} failed")
    print(f"deployment: {', '.join(names)} did what docs/deploying.md says")


if __name__ == "__main__":
    main()
