# A Python wheel with the binaries inside, so that `pip install` puts them on the path; there is no Python code in it.
#
# Called by archive.py. A wheel is a zip archive with a list of hashes; it is written here, because the tools that build wheels
# expect a Python project. The same pieces give the same bytes.
import base64
import hashlib
import io
import platform
import time
import zipfile

BINARIES = ("poncho", "poncho-bench")


def record(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def build(pieces, version, when, glibc):
    """The bytes of the wheel, and its file name. `glibc` is the version of the C library that the binaries need."""
    tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{platform.machine()}"
    info = f"poncho-{version}.dist-info"
    metadata = (f"Metadata-Version: 2.1\nName: poncho\nVersion: {version}\nLicense: MIT\n"
                "Summary: Local LLM server that never reads a prompt twice\n")
    wheel = f"Wheel-Version: 1.0\nGenerator: poncho\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files = {f"poncho-{version}.data/scripts/{name}": (pieces[name].read_bytes(), 0o755) for name in BINARIES}
    for name, path in pieces.items():
        if name.startswith("poncho-cpu/"):
            files[f"poncho-{version}.data/data/lib/poncho/cpu/{path.name}"] = (path.read_bytes(), 0o755)
    files[f"{info}/METADATA"] = (metadata.encode(), 0o644)
    files[f"{info}/WHEEL"] = (wheel.encode(), 0o644)
    files[f"{info}/licenses/LICENSE"] = (pieces["LICENSE"].read_bytes(), 0o644)
    listed = "".join(record(name, data) for name, (data, _) in files.items()) + f"{info}/RECORD,,\n"
    files[f"{info}/RECORD"] = (listed.encode(), 0o644)
    raw = io.BytesIO()
    # A zip archive knows no time before 1980.
    stamp = time.gmtime(max(when, 315532800))[:6]
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (data, mode) in files.items():
            entry = zipfile.ZipInfo(name, stamp)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (0o100000 | mode) << 16
            archive.writestr(entry, data)
    return raw.getvalue(), f"poncho-{version}-{tag}.whl"
