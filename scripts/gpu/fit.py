#!/usr/bin/env python3
# Fills a GPU so that little is free, and starts servers without settings: the part of the fit matrix that needs a GPU.
#
# Called by run.py beside it. Each server starts twice; the second time a little more is taken, and every row must be found.
# Memory is taken by plain allocations of CUDA's driver and returned when this ends. Exits with 1 if anything fails.
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from serve import ask, serve, stop  # noqa: E402

GIB = 1 << 30
FREE = (4, 12, 24)
# What the second start finds less.
LESS = 96 << 20
PROMPT = "The quick brown fox jumps over the lazy dog and runs away from the cat. " * 12


class Gpu:
    """Memory of the first GPU, taken in pieces."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        self.taken = []

    def call(self, name, *arguments):
        status = getattr(self.cuda, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} returned {status}")

    def free(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def take(self, count):
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(count))
        self.taken.append(pointer)

    def leave(self, count):
        """Takes memory until this much is free."""
        while self.taken:
            self.call("cuMemFree_v2", self.taken.pop())
        while (more := self.free() - count) > 2 << 20:
            self.take(min(more, 8 * GIB))


def start(gpu, free, model, cache):
    """Serves once: the lines of the start, and tokens from the cache of all."""
    gpu.leave(free)
    lines = []
    server = serve(model, cache, lines)
    try:
        reply, _ = ask(PROMPT, 4)
    finally:
        stop(server)
    report = reply["poncho"]
    return lines, report["cached_tokens"], report["cached_tokens"] + report["new_tokens"]


def chosen(lines):
    text = "\n".join(lines)
    patterns = {"context": r"^\s*context:\s*(.*)$", "device": r"^\s*device:\s*(.*)$", "KV": r"KV cache in (\S+)"}
    found = {name: re.search(pattern, text, re.M) for name, pattern in patterns.items()}
    return {name: match.group(1).strip() if match else "?" for name, match in found.items()}


def main():
    gpu = Gpu()
    failures = 0
    small = HERE / "shape-1b.gguf"
    if not small.exists():
        subprocess.run([sys.executable, str(HERE / "model.py"), str(small), "--shape", "1b"], check=True)
    print(f"{gpu.free() / GIB:.1f} GiB free before", flush=True)
    for free in FREE:
        for model in (small, pathlib.Path(sys.argv[1])):
            with tempfile.TemporaryDirectory(dir=HERE) as folder:
                found = []
                for less in (0, LESS):
                    started = time.monotonic()
                    try:
                        lines, cached, total = start(gpu, free * GIB - less, model, pathlib.Path(folder, "kv"))
                    except (Exception, SystemExit) as error:
                        print(f"FAILED {free} GiB, {model.stem}: {error}", flush=True)
                        failures += 1
                        break
                    found.append((cached, total))
                    print(f"{free} GiB free, less {less >> 20} MiB, {model.stem}: {chosen(lines)}, {cached} of {total} tokens "
                          f"from the cache, {time.monotonic() - started:.1f} s", flush=True)
                # The last token of a prompt may be computed again.
                if len(found) == 2 and found[1][0] + 1 < found[1][1]:
                    print(f"FAILED {free} GiB, {model.stem}: the second start found {found[1][0]} of {found[1][1]}", flush=True)
                    failures += 1
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
