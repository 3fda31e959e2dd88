#!/usr/bin/env python3
# Packs the release binaries with manual pages, completions, unit and licence into target/dist: an archive, a Debian package and a
# Python wheel, each beside a sha256 file, and the debug information apart.
#
# Called by `make dist` after the builds. A package depends only on what is in it: names in order, no owners, the time of the
# last commit. The packed binaries are then unpacked and run with an empty environment; one that needs more than the C
# library of the system is refused. It must never change the binaries of the build.
import gzip
import hashlib
import io
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import builds
import clean_root
import deb
import wheel

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = builds.TARGET
# What every Linux with glibc has; anything else would have to be installed first.
SYSTEM_LIBRARIES = re.compile(r"(linux-vdso|ld-linux.*|libc|libm|libdl|libpthread|librt|libutil)\.so")
BINARIES = ("poncho", "poncho-bench")
# A download that people wait for.
MOST_BYTES = 40_000_000
# Builds for newer CPUs, beside the program (builds.py).
CPU_BUILDS = builds.FOLDER.name
COMPLETIONS = {"bash": "poncho.bash", "zsh": "_poncho", "fish": "poncho.fish"}


def said(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def pieces(release, folder):
    """The files of the archive: where they are, by the names that they get."""
    files = {"LICENSE": ROOT / "LICENSE"}
    for name in BINARIES:
        files[name] = folder / name
        said("strip", "-o", str(files[name]), str(release / name))
    # Stripped already, and tried where this CPU allows it.
    for build in sorted((release / CPU_BUILDS).glob("poncho-*")):
        files[f"{CPU_BUILDS}/{build.name}"] = build
    binary = release / "poncho"
    said(str(binary), "man", "--out", str(folder / "man"))
    for page in (folder / "man").iterdir():
        files[f"man/{page.name}"] = page
    for shell, name in COMPLETIONS.items():
        (folder / name).write_text(said(str(binary), "completions", shell))
        files[f"completions/{name}"] = folder / name
    for name in ("poncho.service", "poncho.toml", "nginx.conf", "Caddyfile"):
        files[f"packaging/{name}"] = ROOT / "packaging" / name
    return files


def pack(files, top, when):
    """The bytes of the archive; the same pieces give the same bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, path in sorted(files.items()):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size = path.stat().st_size
            entry.mtime = when
            entry.mode = 0o755 if name in BINARIES or name.startswith(f"{CPU_BUILDS}/") else 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)
    return gzip.compress(raw.getvalue(), mtime=when)


def foreign_libraries(binary):
    """What the loader would take from the system beside the C library; it lists instead of running."""
    listed = said(str(binary), env={"LD_TRACE_LOADED_OBJECTS": "1"})
    names = [pathlib.PurePath(line.split()[0]).name for line in listed.splitlines() if line.strip()]
    if "libc.so.6" not in names:
        sys.exit(f"dist: the loader did not list what the binary needs:\n{listed}")
    return [name for name in names if not SYSTEM_LIBRARIES.match(name)]


def try_out(archive, top, version):
    """Unpacks the archive as a user would and runs what came out of it with nothing around it."""
    with tempfile.TemporaryDirectory(prefix="poncho-dist-") as folder:
        said("tar", "-xzf", str(archive), "-C", folder)
        for name in BINARIES:
            binary = pathlib.Path(folder, top, name)
            if foreign := foreign_libraries(binary):
                sys.exit(f"dist: {name} is not self-contained, it needs {', '.join(foreign)}; see the warnings of the build")
            answer = said(str(binary), "-V", env={}, cwd=folder)
            if answer.split() != [name, version]:
                sys.exit(f"dist: the packed binary prints {answer!r} instead of {name} {version}")
        # The first finds the second beside it.
        said(str(pathlib.Path(folder, top, "poncho")), "bench", "--help", env={}, cwd=folder)


def check_size(files):
    """A binary that grew beyond its limit is an accident."""
    for name in [name for name in files if name == "poncho" or name.startswith(f"{CPU_BUILDS}/")]:
        size = files[name].stat().st_size
        if size > MOST_BYTES:
            sys.exit(f"dist: {name}, stripped, has {size / 1e6:.1f} MB, {MOST_BYTES / 1e6:.1f} MB is the limit")


def needed_glibc(files):
    """The oldest C library that all programs run with: the wheel's name and the package's dependency say it."""
    programs = [path for name, path in files.items() if name in BINARIES or name.startswith(f"{CPU_BUILDS}/")]
    found = [found for path in programs for found in re.findall(rb"GLIBC_(\d+\.\d+)", path.read_bytes())]
    return max(tuple(map(int, version.split(b"."))) for version in found)


def last_change():
    """The time of the last commit; outside a checkout, that of the lock file, which an archive of the sources keeps."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    asked = ["git", "log", "-1", "--format=%ct"]
    answer = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True) if shutil.which("git") else None
    return int(answer.stdout) if answer and answer.returncode == 0 else int((ROOT / "Cargo.lock").stat().st_mtime)


def keep_debug(release, dist, version):
    """The debug information of the binaries, for those who read a crash report."""
    for name in BINARIES:
        target = dist / f"{name}-{version}-{platform.machine()}.debug"
        said("objcopy", "--only-keep-debug", "--compress-debug-sections", str(release / name), str(target))


def publish(dist, name, content):
    """Puts a package in place with its hash, in the form that `sha256sum -c` reads."""
    path = dist / name
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    path.with_name(name + ".sha256").write_text(f"{digest}  {name}\n")
    print(f"dist: {path} ({len(content) / 1e6:.1f} MB), sha256 {digest}")
    return path


def try_in_clean_roots(package, wheel_file):
    """Each package in a root of its own, where a tiny model answers."""
    if subprocess.run(["unshare", "--mount", "--map-root-user", "true"], capture_output=True).returncode != 0:
        print("dist: not tried in a clean root: this user may not make one (run it as root)")
        return
    with tempfile.TemporaryDirectory(prefix="poncho-dist-") as folder:
        model = pathlib.Path(folder, "model.gguf")
        said(sys.executable, str(ROOT / "scripts/gpu/model.py"), str(model), "--shape", "tiny")
        members = pathlib.Path(folder, "deb")
        members.mkdir()
        said("ar", "x", str(package), cwd=members)
        clean_root.chat(lambda root: said("tar", "-xzf", str(members / "data.tar.gz"), "-C", str(root)), "usr/bin/poncho", model)
        venv = pathlib.Path(folder, "venv")
        said(sys.executable, "-m", "venv", str(venv))
        said(str(venv / "bin/pip"), "install", "--no-index", "--quiet", str(wheel_file))
        binary = venv / "bin/poncho"
        clean_root.chat(lambda root: shutil.copy2(binary, root / "poncho"), "poncho", model)
    print("dist: the Debian package and the wheel chat in a clean root")


def main():
    release = builds.BASE
    version = said(str(release / "poncho"), "-V").split()[1]
    when = last_change()
    top = f"poncho-{version}-{platform.machine()}-linux"
    dist = TARGET / "dist"
    dist.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="poncho-dist-") as folder:
        files = pieces(release, pathlib.Path(folder))
        check_size(files)
        glibc = needed_glibc(files)
        print(f"dist: the programs need glibc {glibc[0]}.{glibc[1]}, and the packages say so")
        content = pack(files, top, when)
        untried = dist / f"{top}.tar.gz.part"
        untried.write_bytes(content)
        try_out(untried, top, version)
        untried.unlink()
        publish(dist, f"{top}.tar.gz", content)
        built = [build(files, version, when, glibc) for build in (deb.build, wheel.build)]
        packages = [publish(dist, name, data) for data, name in built]
        keep_debug(release, dist, version)
    try_in_clean_roots(*packages)


if __name__ == "__main__":
    main()
