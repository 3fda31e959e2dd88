//! Embeds the built page, or the page that explains how to build it.
//!
//! `make build` and `make test` build the page with npm into `web/dist` before they call cargo. A machine without node
//! has no such files and builds all the same.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Constant, built file, file that stands for it, content type.
const FILES: [(&str, &str, &str, &str); 4] = [
    ("PAGE", "index.html", "without/index.html", "text/html; charset=utf-8"),
    ("SCRIPT", "app.js", "without/app.js", "text/javascript; charset=utf-8"),
    ("STYLE", "app.css", "without/app.css", "text/css; charset=utf-8"),
    ("ICON", "icon.svg", "without/icon.svg", "image/svg+xml"),
];

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
    let built = root.join("web/dist");
    println!("cargo::rerun-if-changed=web/dist");
    println!("cargo::rerun-if-changed=without");
    let is_built = FILES.iter().all(|(_, name, _, _)| built.join(name).is_file());
    let mut code = format!("/// Whether the page was built with npm.\npub const IS_BUILT: bool = {is_built};\n");
    for (constant, name, without, kind) in FILES {
        let path = if is_built { built.join(name) } else { root.join(without) };
        let packed = built.join(format!("{name}.gz"));
        let gzip =
            if is_built && packed.is_file() { format!("Some(include_bytes!({packed:?}))") } else { "None".into() };
        let tag = tag(&path);
        let _ = writeln!(
            code,
            "/// A file of the console.\npub static {constant}: File = File {{ kind: {kind:?}, tag: {tag:?}, bytes: include_bytes!({path:?}), gzip: {gzip} }};"
        );
    }
    let out = PathBuf::from(env::var("OUT_DIR").unwrap_or_default()).join("files.rs");
    if let Err(error) = fs::write(&out, code) {
        println!("cargo::error=cannot write {}: {error}", out.display());
    }
}

/// An entity tag: FNV-1a of the bytes.
fn tag(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("\"{hash:016x}\"")
}
