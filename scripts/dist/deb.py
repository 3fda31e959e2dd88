# A Debian package of the release: the binaries, their pages and the unit, in the places where Debian looks for them.
#
# Called by archive.py. The file is an `ar` archive of three members, written here, so that no tool of Debian is needed; the same
# pieces give the same bytes. It must never run anything when it is installed.
import gzip
import io
import platform
import tarfile

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
DESCRIPTION = """Local LLM server that never reads a prompt twice
 Serves GGUF models with the APIs of OpenAI, Anthropic and Ollama, and keeps the
 state of every prompt prefix across turns, restarts and crashes."""


def place(name):
    """Where a piece of the archive goes on a Debian system; nothing for what a package does not bring."""
    folder, _, file = name.rpartition("/")
    if name in ("poncho", "poncho-bench"):
        return f"usr/bin/{name}", 0o755
    if folder == "poncho-cpu":
        return f"usr/lib/poncho/cpu/{file}", 0o755
    if folder == "man":
        return f"usr/share/man/man1/{file}", 0o644
    if name == "LICENSE":
        return "usr/share/doc/poncho/copyright", 0o644
    if name == "packaging/poncho.service":
        return "usr/lib/systemd/system/poncho.service", 0o644
    if name == "packaging/poncho.toml":
        return "usr/share/doc/poncho/examples/poncho.toml", 0o644
    shells = {"completions/poncho.bash": "usr/share/bash-completion/completions/poncho",
              "completions/_poncho": "usr/share/zsh/vendor-completions/_poncho",
              "completions/poncho.fish": "usr/share/fish/vendor_completions.d/poncho.fish"}
    return (shells[name], 0o644) if name in shells else None


def content(name, data):
    """The unit of the archive names another folder."""
    return data.replace(b"/usr/local/bin/poncho", b"/usr/bin/poncho") if name.endswith(".service") else data


def tarball(files, when):
    """A compressed tar archive of names with their bytes and modes, with all folders."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        folders = sorted({"/".join(name.split("/")[:depth]) for name in files for depth in range(1, name.count("/") + 1)})
        for folder in folders:
            entry = tarfile.TarInfo(f"./{folder}")
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, when
            archive.addfile(entry)
        for name, (data, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(f"./{name}")
            entry.size, entry.mode, entry.mtime = len(data), mode, when
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=when)


def member(name, data, when):
    head = f"{name:<16}{when:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode()
    return head + data + b"\n" * (len(data) % 2)


def build(pieces, version, when, glibc):
    """The bytes of the package, and its file name. `glibc` is the version of the C library that the binaries need."""
    files = {}
    for name, path in pieces.items():
        if found := place(name):
            files[found[0]] = (content(name, path.read_bytes()), found[1])
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    size = sum(len(data) for data, _ in files.values()) // 1024
    control = (f"Package: poncho\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: Poncho\n"
               f"Installed-Size: {size}\nDepends: libc6 (>= {glibc[0]}.{glibc[1]})\nSection: net\nPriority: optional\n"
               f"Description: {DESCRIPTION}\n")
    members = (("debian-binary", b"2.0\n"), ("control.tar.gz", tarball({"control": (control.encode(), 0o644)}, when)),
               ("data.tar.gz", tarball(files, when)))
    return b"!<arch>\n" + b"".join(member(name, data, when) for name, data in members), f"poncho_{version}_{architecture}.deb"
