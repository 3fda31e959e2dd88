#!/usr/bin/env python3
# Fetches what the Vulkan backend is built with and tested on, into .tools/vulkan: headers, a shader compiler, a loader and
# Mesa's lavapipe, a Vulkan device in software.
#
# Called by `make test-vulkan`; nothing is installed and no root is needed. The headers are those of Debian 13, because older
# ones lack what llama.cpp uses; they are checked by their SHA-256. Programs and libraries come from the release that runs
# here, with what they depend on, and apt checks them. All packages are unpacked, and the folder is put in place by a rename
# after the compiler has run and the device has answered. It must never leave a folder that does not work, nor change
# anything outside .tools/ except apt's package lists.
#
# In .tools/vulkan: `build.cmake` for `cmake -C`, which scripts/gpu/build_backend.py uses, and `run`, which runs a command
# with lavapipe as the only Vulkan device. `scripts/fetch/vulkan.py devices` lists the devices that the loader finds.
import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

import digest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / ".tools" / "vulkan"
ADVICE = (
    "With a network on Debian 12 or later, run scripts/fetch/vulkan.py again; elsewhere, set VULKAN_SDK to an SDK 1.3.283 or "
    "later and build with `make build BACKEND=vulkan`"
)

# Only headers and files for cmake, so that they fit every release and every processor.
HEADERS = {
    "pool/main/v/vulkan-loader/libvulkan-dev_1.4.309.0-1_amd64.deb":
        "8d329d465e16168afff58b1bd0dd6db46aac2cc3f56054a481b25a04e90b345a",
    "pool/main/s/spirv-headers/spirv-headers_1.6.1+1.4.309.0-1_all.deb":
        "dc18db866d63680351c40ac6b6bece34cb52da64a7799ce1cc4f16f6bff4d064",
}
# In the file `headers` of the folder: says which ones are there.
NAMES = "".join(f"{path}\n" for path in HEADERS)
PROGRAMS = ["glslc", "libvulkan1", "mesa-vulkan-drivers"]
# What lavapipe calls its device.
DEVICE = "llvmpipe"

# Files of .tools/vulkan; each finds the others by its own place, so that the folder may be moved.
LIBRARIES = 'here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)\nlibraries=$here/usr/lib/{triplet}\n'
GLSLC = """#!/bin/sh
# glslc with its libraries. Written by scripts/fetch/vulkan.py.
""" + LIBRARIES + """LD_LIBRARY_PATH=$libraries exec "$here/usr/bin/glslc" "$@"
"""
RUN = """#!/bin/sh
# Runs a command with lavapipe as the only Vulkan device. Written by scripts/fetch/vulkan.py.
""" + LIBRARIES + """export LD_LIBRARY_PATH="$libraries${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export VK_DRIVER_FILES="$here/lavapipe.json" VK_ICD_FILENAMES="$here/lavapipe.json"
# llama.cpp leaves out devices that are processors, unless they are named.
export GGML_VK_VISIBLE_DEVICES=0
# As llama.cpp's own tests on lavapipe: half precision is emulated there.
export GGML_VK_DISABLE_F16=1 GGML_VK_DISABLE_COOPMAT=1
# Mesa 22 crashes when it compiles shaders of fused operations.
export GGML_VK_DISABLE_FUSION=1
# Every process compiles the same shaders.
export MESA_SHADER_CACHE_DIR="$here/cache"
exec "$@"
"""
DRIVER = """{{
  "file_format_version": "1.0.0",
  "ICD": {{ "library_path": "./usr/lib/{triplet}/libvulkan_lvp.so", "api_version": "1.2.0" }}
}}
"""
BUILD = """# Where cmake finds Vulkan, for `cmake -C`. Written by scripts/fetch/vulkan.py.
set(Vulkan_INCLUDE_DIR "${{CMAKE_CURRENT_LIST_DIR}}/usr/include" CACHE PATH "" FORCE)
set(Vulkan_LIBRARY "${{CMAKE_CURRENT_LIST_DIR}}/usr/lib/{triplet}/libvulkan.so.1" CACHE FILEPATH "" FORCE)
set(Vulkan_GLSLC_EXECUTABLE "${{CMAKE_CURRENT_LIST_DIR}}/glslc" CACHE FILEPATH "" FORCE)
set(SPIRV-Headers_DIR "${{CMAKE_CURRENT_LIST_DIR}}/usr/share/cmake/SPIRV-Headers" CACHE PATH "" FORCE)
"""
WRITTEN = {
    "glslc": (GLSLC, 0o755), "run": (RUN, 0o755), "lavapipe.json": (DRIVER, 0o644), "build.cmake": (BUILD, 0o644),
}


def stop(what):
    sys.exit(f"vulkan: {what}. {ADVICE}")


def asked(*command, **more):
    """What a command prints, in English; `None` and its message on stderr if it fails."""
    said = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, **more)
    if said.returncode == 0:
        return said.stdout
    print(said.stderr.strip() or said.stdout.strip(), file=sys.stderr)
    return None


def download_programs(folder):
    """Downloads the programs, and what they depend on and this machine lacks. Says whether that worked."""
    plan = asked("apt-get", "-s", "--no-install-recommends", "install", *PROGRAMS)
    if plan is None:
        return False
    # "Inst NAME [installed version] (VERSION ..."; what is installed already is not listed.
    wanted = dict(re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", plan, re.MULTILINE))
    named = [f"{name}={version}" for name, version in wanted.items()] + [name for name in PROGRAMS if name not in wanted]
    return asked("apt-get", "download", *named, cwd=folder) is not None


def download_headers(folder):
    """Downloads the headers from the mirror that apt uses."""
    form = ["apt-get", "indextargets", "--format", "$(SITE)", "Identifier: Packages", "Component: main", "Origin: Debian"]
    sites = list(dict.fromkeys((asked(*form) or "").split()))
    if not sites:
        stop("apt has no package lists of Debian on this machine")
    for path, expected in HEADERS.items():
        target = folder / pathlib.PurePosixPath(path).name
        # apt-helper knows apt's proxies and mirrors.
        fetched = any(
            asked("/usr/lib/apt/apt-helper", "download-file", f"{site}/{urllib.parse.quote(path)}", str(target)) is not None
            for site in sites
        )
        if not fetched:
            stop(f"{path} could not be fetched: see apt's message above")
        if digest.sha256(target) != expected:
            stop(f"{path} is not the file that was expected: its SHA-256 differs")


def fetch(folder):
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        stop("this machine has no apt")
    print("fetching Vulkan's headers, glslc, the loader and lavapipe (20 MB or more)", flush=True)
    if not download_programs(folder):
        # The lists are missing or out of date.
        if os.geteuid() == 0:
            print("fetching the apt package lists", flush=True)
            asked("apt-get", "-o", "DPkg::Lock::Timeout=120", "update")
            if not download_programs(folder):
                stop(f"apt cannot fetch {', '.join(PROGRAMS)}: see its message above")
        else:
            stop(f"apt cannot fetch {', '.join(PROGRAMS)}: see its message above, and run `apt-get update` as root")
    download_headers(folder)


def unpack(packages, target):
    for package in sorted(packages.glob("*.deb")):
        if asked("dpkg-deb", "-x", str(package), str(target)) is None:
            stop(f"{package.name} cannot be unpacked")
    if driver(target) is None:
        stop("mesa-vulkan-drivers has no lavapipe for this machine")
    (target / "headers").write_text(NAMES)


def driver(folder):
    return next(folder.glob("usr/lib/*/libvulkan_lvp.so"), None)


def works(folder):
    """Whether the headers are the wanted ones, the compiler runs and the device answers. Writes the files that use them."""
    names = folder / "headers"
    if not names.is_file() or names.read_text() != NAMES or driver(folder) is None:
        return False
    for name, (text, mode) in WRITTEN.items():
        # Written by every call: this script may be newer than the folder.
        (folder / name).write_text(text.format(triplet=driver(folder).parent.name))
        (folder / name).chmod(mode)
    if asked(str(folder / "glslc"), "--version") is None:
        return False
    found = asked(str(folder / "run"), sys.executable, os.path.abspath(__file__), "devices")
    return found is not None and DEVICE in found


def devices():
    """The names of the devices that the loader finds."""
    # VkInstanceCreateInfo, all zero but for its type; the same layout as in C, with padding.
    class Create(ctypes.Structure):
        _fields_ = [("type", ctypes.c_uint32), ("next", ctypes.c_void_p), ("flags", ctypes.c_uint32),
                    ("application", ctypes.c_void_p), ("layers", ctypes.c_uint32), ("layer_names", ctypes.c_void_p),
                    ("extensions", ctypes.c_uint32), ("extension_names", ctypes.c_void_p)]

    vulkan = ctypes.CDLL("libvulkan.so.1")
    instance, count = ctypes.c_void_p(), ctypes.c_uint32()
    status = vulkan.vkCreateInstance(ctypes.byref(Create(type=1)), None, ctypes.byref(instance))
    if status == 0:
        status = vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    handles = (ctypes.c_void_p * count.value)()
    if status == 0:
        status = vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles)
    if status != 0:
        sys.exit(f"vulkan: the loader finds no driver (VkResult {status})")
    for handle in handles:
        # VkPhysicalDeviceProperties has 824 bytes; its name follows five numbers.
        properties = ctypes.create_string_buffer(4096)
        vulkan.vkGetPhysicalDeviceProperties(ctypes.c_void_p(handle), properties)
        print(properties.raw[20:276].split(b"\0")[0].decode(errors="replace"))


def main():
    if sys.argv[1:] == ["devices"]:
        return devices()
    if sys.argv[1:]:
        sys.exit("usage: scripts/fetch/vulkan.py [devices]")
    if FOLDER.is_dir() and works(FOLDER):
        return None
    FOLDER.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as folder:
        packages, target = pathlib.Path(folder, "packages"), pathlib.Path(folder, "vulkan")
        packages.mkdir()
        fetch(packages)
        unpack(packages, target)
        if not works(target):
            stop("glslc or lavapipe does not run on this machine: see the message above")
        shutil.rmtree(FOLDER, ignore_errors=True)
        target.rename(FOLDER)
    print(f"Vulkan is in {os.path.relpath(FOLDER)}; `{os.path.relpath(FOLDER / 'run')} COMMAND` runs a command with lavapipe")
    return None


if __name__ == "__main__":
    main()
