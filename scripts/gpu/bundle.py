#!/usr/bin/env python3
# Packs what a machine with a GPU and without Rust needs to build the backend and to measure: binaries, ggml's sources, scripts.
#
# Called by `make gpu-bundle`. The archive is target/gpu/poncho-gpu.tar.gz; unpacked, `./run.py` does the rest. It must never hold
# more than the build made and the pinned package carries.
import pathlib
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts/gpu"))
from build_backend import sources  # noqa: E402

SCRIPTS = ("build_backend.py", "run.py", "model.py", "serve.py", "fit.py")
BENCHMARKS = ("device", "drafts")
# Backends that are not built there.
LEFT_OUT = ("ggml-sycl", "ggml-opencl", "ggml-vulkan", "ggml-webgpu", "ggml-hexagon", "ggml-cann", "ggml-metal",
            "ggml-openvino", "ggml-virtgpu", "ggml-et", "ggml-zdnn", "ggml-zendnn", "ggml-rpc", "ggml-blas", "ggml-musa")


def benchmark(release, name):
    """The newest build of a benchmark."""
    found = [path for path in (release / "deps").glob(f"{name}-*") if not path.suffix]
    return max(found, key=lambda path: path.stat().st_mtime)


def main():
    release = ROOT / "target/release"
    out = ROOT / "target/gpu"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(out / "poncho-gpu.tar.gz", "w:gz", compresslevel=6) as archive:
        programs = [(benchmark(release, name), f"{name}-bench") for name in BENCHMARKS]
        for path, name in [(release / "poncho", "poncho"), *programs]:
            stripped = pathlib.Path(folder, name)
            subprocess.run(["strip", "-o", str(stripped), str(path)], check=True)
            archive.add(stripped, f"poncho-gpu/{name}")
        for script in SCRIPTS:
            archive.add(ROOT / "scripts/gpu" / script, f"poncho-gpu/{script}")
        keep = lambda entry: None if any(f"/src/{name}/" in f"{entry.name}/" for name in LEFT_OUT) else entry
        archive.add(sources(), "poncho-gpu/ggml", filter=keep)
    print(f"gpu: {out / 'poncho-gpu.tar.gz'} ({(out / 'poncho-gpu.tar.gz').stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
