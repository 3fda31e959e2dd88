//! Build script of the binary: makes it carry the C++ runtime that llama.cpp needs, so that it runs where none is installed,
//! and show its ggml to backend libraries.
//!
//! llama.cpp's binding asks for `stdc++` and the standard library for `gcc_s`, both as shared libraries. A linker takes the
//! archive where a folder holds no shared one, so a folder with archives alone, searched first, is all that it takes. Flags
//! would do it too, but those reach every crate and compile llama.cpp again. It must never fail a build for want of an
//! archive: the binary is then linked as usual, and a warning says so.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the linker is asked for, and the archive of the compiler that answers. The unwinder inside `gcc_s` has another name
/// as an archive.
const ARCHIVES: [(&str, &str); 2] = [("libstdc++.a", "libstdc++.a"), ("libgcc_s.a", "libgcc_eh.a")];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if (target("OS").as_str(), target("ENV").as_str()) != ("linux", "gnu") {
        return;
    }
    // A backend library that is loaded at run time uses the ggml of this program: there must be one registry of devices.
    for symbols in ["ggml_*", "gguf_*"] {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={symbols}");
    }
    let Some(out) = std::env::var_os("OUT_DIR") else { return };
    match folder_of_archives(Path::new(&out)) {
        Ok(folder) => println!("cargo:rustc-link-search=native={}", folder.display()),
        Err(why) => println!(
            "cargo:warning=poncho will need libstdc++.so.6 and libgcc_s.so.1 at run time: {why}. To link them in, install \
             the archive (libstdc++-static on Fedora; part of g++ on Debian) and build again after `cargo clean -p poncho`"
        ),
    }
}

/// Makes the folder with the archives under the names that the linker looks for.
fn folder_of_archives(out: &Path) -> io::Result<PathBuf> {
    let folder = out.join("runtime");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir(&folder)?;
    for (asked, archive) in ARCHIVES {
        std::os::unix::fs::symlink(find(archive)?, folder.join(asked))?;
    }
    Ok(folder)
}

/// Where the compiler that links keeps an archive.
fn find(archive: &str) -> io::Result<PathBuf> {
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let output = Command::new(linker).arg(format!("-print-file-name={archive}")).output()?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    // A compiler that does not find the file repeats its bare name.
    if path.is_absolute() && path.is_file() {
        Ok(path)
    } else {
        Err(io::Error::new(io::ErrorKind::NotFound, format!("the compiler has no {archive}")))
    }
}
