#!/usr/bin/env python3
# Builds the CUDA backend, makes a model with the shape of an 8B one, and measures Poncho on the GPU.
#
# Runs in the folder that `make gpu-bundle` packs, on a machine with CUDA, cmake, ninja, a C compiler and python3; it fetches
# nothing. Steps that are done are not done again, so it may be stopped and called again. docs/benchmarks-gpu.md has figures.
import argparse
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent


def step(name, *command, **more):
    print(f"== {name}", flush=True)
    started = time.monotonic()
    status = subprocess.run([str(word) for word in command], cwd=HERE, **more).returncode
    print(f"== {name}: {time.monotonic() - started:.0f} s, exit {status}", flush=True)
    return status


def main():
    parser = argparse.ArgumentParser(description="Measure Poncho on a GPU")
    parser.add_argument("steps", nargs="*", default=["build", "model", "serve", "bench", "fit"])
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--arch", default="native", help="CMAKE_CUDA_ARCHITECTURES")
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--parts", default="", help="parts of the benchmark (exactness, loop, rows, turns, pauses)")
    parser.add_argument("--drafts", help="recorded conversations, or their tokens: measures drafts on them")
    parser.add_argument("--streams", default="1,4,16")
    parser.add_argument("--every", default="8", help="plays one exchange of this many")
    args = parser.parse_args()
    backends, model = HERE / "backends", HERE / f"shape-{args.shape}.gguf"
    variables = {**os.environ, "PONCHO_BENCH_MODEL": str(model), "PONCHO_BACKENDS": str(backends),
                 "PONCHO_BENCH_FOLDER": str(HERE)}
    failed = 0
    if "build" in args.steps and not list(backends.glob(f"libggml-{args.backend}.so")):
        more = [f"--cmake=-DCMAKE_CUDA_ARCHITECTURES={args.arch}"] if args.backend == "cuda" else []
        failed |= step("backend", sys.executable, "build_backend.py", args.backend, "--poncho", HERE / "poncho",
                       "--sources", HERE / "ggml", "--build-dir", HERE / "build", "--out", backends, "--jobs",
                       os.cpu_count(), *more)
    if "model" in args.steps and not model.exists():
        failed |= step("model", sys.executable, "model.py", model, "--shape", args.shape)
    if "serve" in args.steps:
        failed |= step("serve", sys.executable, "serve.py", model, env=variables)
    if "bench" in args.steps:
        failed |= step("bench", HERE / "device-bench", *args.parts.split(), env=variables)
    if "fit" in args.steps:
        failed |= step("fit", sys.executable, "fit.py", model, env=variables)
    if args.drafts:
        failed |= step("drafts", HERE / "drafts-bench", model, pathlib.Path(args.drafts).resolve(), "speed", args.streams,
                       args.every, env=variables)
    sys.exit(failed)


if __name__ == "__main__":
    main()
