#!/usr/bin/env python3
# Builds one of ggml's backends (cuda, hip, vulkan) as a library that the released binary loads at run time.
#
# Called by `make build BACKEND=cuda`, and by scripts/gpu/run.py on a machine that has no Rust. The sources are those that the
# binary was built from; the library has no ggml of its own: every function of it comes from the program that loads it, so there
# is one registry of devices and one version. It must never touch the build of llama.cpp in the target folder.
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGE = "llama-cpp-sys-4"
BACKENDS = {"cuda": "GGML_CUDA", "hip": "GGML_HIP", "vulkan": "GGML_VULKAN"}
NEEDS = {
    "cuda": "the CUDA toolkit (nvcc)",
    "hip": "ROCm with hipcc",
    "vulkan": "the Vulkan headers (1.3.283 or newer), SPIRV-Headers, a loader and glslc; on Debian, scripts/fetch/vulkan.py "
              "fetches them into .tools/vulkan",
}
# Where scripts/fetch/vulkan.py says what it fetched.
FETCHED = ROOT / ".tools" / "vulkan" / "build.cmake"
OPTIONS = ["-DGGML_BACKEND_DL=ON", "-DBUILD_SHARED_LIBS=ON", "-DGGML_CPU=OFF", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=OFF",
           "-DGGML_BUILD_TESTS=OFF", "-DGGML_BUILD_EXAMPLES=OFF", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_CCACHE=OFF",
           "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN"]

AROUND = """cmake_minimum_required(VERSION 3.18)
project(backend C CXX)
add_subdirectory({ggml} ggml)
"""


def sources():
    """The ggml that the binary was built from, as cargo resolved it."""
    asked = ["cargo", "metadata", "--format-version", "1", "--locked"]
    packages = json.loads(subprocess.run(asked, check=True, capture_output=True, cwd=ROOT).stdout)["packages"]
    manifest = next(package["manifest_path"] for package in packages if package["name"] == PACKAGE)
    return pathlib.Path(manifest).parent / "llama.cpp" / "ggml"


def version(poncho):
    """What the binary compares the library's stamp with."""
    said = subprocess.run([str(poncho), "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"^llama\.cpp (.+)$", said, re.MULTILINE)
    return found.group(1) if found else sys.exit(f"backend: {poncho} --version does not name its llama.cpp")


def fetched(backend):
    """What was fetched for this backend, as options of cmake. An SDK that the user named wins."""
    return ["-C", str(FETCHED)] if backend == "vulkan" and FETCHED.is_file() and "VULKAN_SDK" not in os.environ else []


def build(backend, ggml, folder, more, jobs):
    """Compiles the library, and says how the file is called that it wants beside it."""
    # Not as a project of its own: then it wants files that the package does not carry.
    around = folder.resolve() / "around"
    around.mkdir(parents=True, exist_ok=True)
    (around / "CMakeLists.txt").write_text(AROUND.format(ggml=ggml.resolve()))
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = ["cmake", *fetched(backend), "-S", str(around), "-B", str(folder), *generator, *OPTIONS,
                 f"-D{BACKENDS[backend]}=ON", *more]
    if subprocess.run(configure).returncode != 0:
        sys.exit(f"backend: cmake cannot configure {backend}; it needs {NEEDS[backend]}")
    command = ["cmake", "--build", str(folder), "--target", f"ggml-{backend}", "-j", str(jobs)]
    if subprocess.run(command).returncode != 0:
        sys.exit(f"backend: {backend} does not compile; see above")
    library = next(folder.rglob(f"libggml-{backend}.so"))
    base = next(path for path in folder.rglob("libggml-base.so.*") if re.search(r"\.so\.\d+$", path.name))
    return library, base.name


def put(library, base, out, stamp):
    """The library, an empty stand-in for the ggml that it names, and the version that both were built from."""
    out.mkdir(parents=True, exist_ok=True)
    compiler = shutil.which("cc") or shutil.which("gcc")
    stand_in = [compiler, "-shared", "-nostdlib", "-x", "c", "/dev/null", f"-Wl,-soname,{base}", "-o", str(out / base)]
    subprocess.run(stand_in, check=True)
    target = out / library.name
    shutil.copy2(library, target.with_suffix(".part"))
    target.with_suffix(".part").rename(target)
    (out / (library.name + ".version")).write_text(stamp + "\n")
    return target


def main():
    parser = argparse.ArgumentParser(description="Build a backend of ggml as a library")
    parser.add_argument("backend", choices=sorted(BACKENDS))
    parser.add_argument("--poncho", type=pathlib.Path, default=ROOT / "target/release/poncho", help="the binary that loads it")
    parser.add_argument("--sources", type=pathlib.Path, help="ggml's sources [default: those of the pinned package]")
    parser.add_argument("--build-dir", type=pathlib.Path, help="[default: target/backend-NAME]")
    parser.add_argument("--out", type=pathlib.Path, help="[default: the folder backends beside the binary]")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cmake", action="append", default=[], metavar="OPTION", help="one more option of cmake, as --cmake=-DNAME=VALUE")
    args = parser.parse_args()
    stamp = version(args.poncho.resolve())
    folder = args.build_dir or ROOT / "target" / f"backend-{args.backend}"
    library, base = build(args.backend, args.sources or sources(), folder, args.cmake, args.jobs)
    target = put(library, base, args.out or args.poncho.resolve().parent / "backends", stamp)
    print(f"backend: {target} ({target.stat().st_size / 1e6:.1f} MB) for llama.cpp {stamp}")


if __name__ == "__main__":
    main()
