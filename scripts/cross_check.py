#!/usr/bin/env python3
# Checks the code for another kind of machine: `cargo check` with its standard library.
#
# Called by `make test`. Crates with C or C++ in their dependencies need a cross compiler; without one, the others are
# checked. Without the standard library of the target nothing is, and one line says how to add it: that is not a failure,
# because not every machine can fetch it. It must never build for this machine's own target, which `make test` does anyway.
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What a crate with C or C++ has among its build dependencies.
COMPILERS = {"cc", "cmake"}
# This one has a part without llama.cpp, which is checked by itself.
ENGINE = "poncho-engine"


def is_installed(target):
    asked = ["rustc", "--print", "target-libdir", "--target", target]
    found = subprocess.run(asked, capture_output=True, text=True)
    return found.returncode == 0 and pathlib.Path(found.stdout.strip()).is_dir()


def cross_compiler(target):
    """The C compiler for the target: the one that its variable names, or the packaged one."""
    named = os.environ.get("CC_" + target.replace("-", "_"))
    architecture = target.split("-")[0]
    return named or shutil.which(f"{architecture}-linux-gnu-gcc")


def metadata(target, *more):
    asked = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target, *more]
    return json.loads(subprocess.run(asked, check=True, capture_output=True, cwd=ROOT).stdout)


def needed(nodes, package):
    """The packages that a package is built with, itself included; those of its tests are not."""
    found, left = set(), [package]
    while left:
        current = left.pop()
        if current in found:
            continue
        found.add(current)
        for dependency in nodes[current]["deps"]:
            if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"]):
                left.append(dependency["pkg"])
    return found


def compiles_c(package):
    built_with = {dependency["name"] for dependency in package["dependencies"] if dependency["kind"] == "build"}
    return bool(built_with & COMPILERS)


def without_c(target):
    """The crates of the workspace that need no compiler but rustc."""
    described = metadata(target)
    packages = {package["id"]: package for package in described["packages"]}
    nodes = {node["id"]: node for node in described["resolve"]["nodes"]}
    members = [member for member in described["workspace_members"]]
    pure = [member for member in members if not any(compiles_c(packages[each]) for each in needed(nodes, member))]
    return sorted(packages[member]["name"] for member in pure), sorted(packages[member]["name"] for member in members)


def check(target, words):
    command = ["cargo", "check", "--release", "--locked", "--target", target, *words]
    print("    " + " ".join(command), flush=True)
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        sys.exit(f"cross check: the code does not compile for {target}; see above")


def main():
    parser = argparse.ArgumentParser(description="Check the code for another kind of machine")
    parser.add_argument("--target", default="aarch64-unknown-linux-gnu")
    parser.add_argument("--list", action="store_true", help="print the crates that need no C compiler, and end")
    args = parser.parse_args()
    if args.list:
        print("\n".join(without_c(args.target)[0]))
        return
    if not is_installed(args.target):
        print(f"    not run: no standard library for {args.target}; add it with `rustup target add {args.target}`")
        return
    if cross_compiler(args.target):
        check(args.target, ["--workspace"])
        return
    pure, members = without_c(args.target)
    check(args.target, [word for name in pure for word in ("-p", name)])
    check(args.target, ["-p", ENGINE, "--no-default-features", "--features", "testing"])
    left_out = ", ".join(name for name in members if name not in pure)
    print(f"    not checked, because there is no C compiler for {args.target}: {left_out}; on Debian install g++-aarch64-linux-gnu")


if __name__ == "__main__":
    main()
