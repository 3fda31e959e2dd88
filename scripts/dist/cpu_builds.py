#!/usr/bin/env python3
# Builds poncho again for newer CPUs, into target/release/poncho-cpu, where the program finds the builds and takes the best one
# that works (crates/cli/src/variants.rs, which has the same list).
#
# Called by `make cpu-builds` and `make dist`. Each build has a target folder of its own, because llama.cpp is compiled with other
# flags; the folder of all other builds must never see them. A build is tried as the program tries it, if this CPU has its
# instructions.
import os
import pathlib
import platform
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
FOLDER = TARGET / "release" / "poncho-cpu"
BUILDS = {
    "avx512": ("-march=x86-64-v4 -mavx512vnni -mavx512vbmi -mavx512vbmi2 -mavx512bf16",
               {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni", "avx512vbmi", "avx512_vbmi2",
                "avx512_bf16"}),
    "avxvnni": ("-march=x86-64-v3 -mavxvnni", {"avx2", "fma", "f16c", "avx_vnni"}),
}


def build(name, flags):
    """Compiles for a CPU, and puts the stripped program in place."""
    own = TARGET / "cpu" / name
    variables = {f"{variable}_x86_64_unknown_linux_gnu": flags for variable in ("CFLAGS", "CXXFLAGS")}
    environment = {**os.environ, **variables, "CARGO_TARGET_DIR": str(own), "CARGO_INCREMENTAL": "0"}
    subprocess.run(["cargo", "build", "-p", "poncho", "--release"], cwd=ROOT, env=environment, check=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run(["strip", "-o", str(FOLDER / f"poncho-{name}.part"), str(own / "release" / "poncho")], check=True)
    os.replace(FOLDER / f"poncho-{name}.part", FOLDER / f"poncho-{name}")


def main():
    if platform.machine() != "x86_64":
        return print("cpu builds: only x86-64 has more than one")
    chosen = sys.argv[1:] or list(BUILDS)
    words = pathlib.Path("/proc/cpuinfo").read_text().split()
    for name in chosen:
        flags, needed = BUILDS[name]
        build(name, flags)
        program = FOLDER / f"poncho-{name}"
        if needed - set(words):
            print(f"cpu builds: {name} is built; this CPU cannot run it")
            continue
        if subprocess.run([str(program), "try-cpu"]).returncode != 0:
            sys.exit(f"cpu builds: {name} computes wrongly on a CPU that has its instructions")
        print(f"cpu builds: {program} ({program.stat().st_size / 1e6:.1f} MB) works on this machine")
    # Other builds are left from before, and would be packed.
    for old in FOLDER.iterdir():
        if old.name.removeprefix("poncho-") not in BUILDS:
            shutil.rmtree(old) if old.is_dir() else old.unlink()


main()
