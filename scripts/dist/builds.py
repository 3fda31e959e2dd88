#!/usr/bin/env python3
# Builds poncho as it is released, with the profile of packed.toml: once for all CPUs, and again for newer ones. The program
# finds the builds for newer CPUs in target/release/poncho-cpu and takes the best one that works (crates/cli/src/variants.rs,
# which has the same list).
#
# Called by `make cpu-builds`, `make cpu-figures` and `make dist`: `base` names the build for all CPUs; without a name, all
# builds for newer ones are made. Each has a target folder of its own, because llama.cpp is compiled with other flags or for
# another profile; the folder of all other builds must never see them. A build for newer CPUs is tried as the program tries
# it, if this CPU has its instructions.
import os
import pathlib
import platform
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
FOLDER = TARGET / "release" / "poncho-cpu"
# The build for all CPUs, with its debug information; the others are found beside it.
BASE = TARGET / "packed" / "base" / "release"
BUILDS = {
    "avx512": ("-march=x86-64-v4 -mavx512vnni -mavx512vbmi -mavx512vbmi2 -mavx512bf16",
               {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni", "avx512vbmi", "avx512_vbmi2",
                "avx512_bf16"}),
    "avxvnni": ("-march=x86-64-v3 -mavxvnni", {"avx2", "fma", "f16c", "avx_vnni"}),
}


def cargo(name, packages, variables):
    """Compiles into the folder of a build, and returns the folder of its programs."""
    own = TARGET / "packed" / name
    # This variable would win over the profile.
    environment = {key: value for key, value in os.environ.items() if key != "CARGO_INCREMENTAL"}
    environment |= {**variables, "CARGO_TARGET_DIR": str(own)}
    chosen = [word for package in packages for word in ("-p", package)]
    command = ["cargo", "build", "--config", str(HERE / "packed.toml"), "--release", *chosen]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return own / "release"


def build_base():
    """The build for all CPUs, with the others beside it."""
    cargo("base", ["poncho", "poncho-bench"], {})
    beside = BASE / FOLDER.name
    if not beside.is_symlink():
        beside.symlink_to(FOLDER)


def build_newer(name, flags):
    """Compiles for a newer CPU, and puts the stripped program in place."""
    variables = {f"{variable}_x86_64_unknown_linux_gnu": flags for variable in ("CFLAGS", "CXXFLAGS")}
    program = cargo(name, ["poncho"], variables) / "poncho"
    FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run(["strip", "-o", str(FOLDER / f"poncho-{name}.part"), str(program)], check=True)
    os.replace(FOLDER / f"poncho-{name}.part", FOLDER / f"poncho-{name}")


def try_newer(name, needed):
    """Runs a build, where this CPU has what it needs."""
    program = FOLDER / f"poncho-{name}"
    if needed - set(pathlib.Path("/proc/cpuinfo").read_text().split()):
        return print(f"builds: {name} is built; this CPU cannot run it")
    if subprocess.run([str(program), "try-cpu"]).returncode != 0:
        sys.exit(f"builds: {name} computes wrongly on a CPU that has its instructions")
    print(f"builds: {program} ({program.stat().st_size / 1e6:.1f} MB) works on this machine")


def main():
    chosen = sys.argv[1:] or list(BUILDS)
    if unknown := set(chosen) - {"base", *BUILDS}:
        sys.exit(f"builds: {', '.join(sorted(unknown))} is unknown; there are base, {', '.join(BUILDS)}")
    if "base" in chosen:
        build_base()
    newer = [name for name in BUILDS if name in chosen]
    if newer and platform.machine() != "x86_64":
        return print("builds: only x86-64 has more than one")
    for name in newer:
        flags, needed = BUILDS[name]
        build_newer(name, flags)
        try_newer(name, needed)
    # Other builds are left from before, and would be packed.
    for old in FOLDER.iterdir() if FOLDER.is_dir() else ():
        if old.name.removeprefix("poncho-") not in BUILDS:
            shutil.rmtree(old) if old.is_dir() else old.unlink()


if __name__ == "__main__":
    main()
