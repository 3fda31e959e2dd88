//! Compiles `state_io.cpp`, which reads and writes llama.cpp's states in pieces, against the headers of the llama.cpp that is linked.
//!
//! Its other dependencies are not used; Cargo.toml says why they are there.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "src/backend/llama/state_io.cpp";
/// The package that brings llama.cpp, its sources included.
const PACKAGE: &str = "llama-cpp-sys-4";
/// Names the folder of llama.cpp's sources where cargo cannot tell.
const OVERRIDE: &str = "PONCHO_LLAMA_CPP";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-changed=../../Cargo.lock");
    println!("cargo:rerun-if-env-changed={OVERRIDE}");
    let llama = llama_cpp()?;
    if !llama.join("src/llama-io.h").is_file() {
        let message = format!("{} has no src/llama-io.h; set {OVERRIDE} to llama.cpp's sources", llama.display());
        return Err(message.into());
    }
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include(llama.join("src"))
        .include(llama.join("include"))
        .include(llama.join("ggml/include"))
        // The headers are not ours to keep free of warnings.
        .warnings(false)
        .file(SOURCE)
        .try_compile("poncho_state_io")?;
    Ok(())
}

/// The folder of the sources that are linked, as cargo resolved them.
fn llama_cpp() -> Result<PathBuf, Box<dyn Error>> {
    if let Some(folder) = env::var_os(OVERRIDE) {
        return Ok(folder.into());
    }
    let metadata = cargo_metadata(&["--offline"]).or_else(|_| cargo_metadata(&[]))?;
    let package = format!("{{\"name\":\"{PACKAGE}\",");
    let manifest = metadata
        .split_once(&package)
        .and_then(|(_, rest)| rest.split_once("\"manifest_path\":\""))
        .and_then(|(_, rest)| rest.split_once('"'))
        .map(|(path, _)| path.replace("\\\\", "\\"))
        .ok_or_else(|| format!("cargo metadata does not name {PACKAGE}; set {OVERRIDE} to llama.cpp's sources"))?;
    let folder = Path::new(&manifest).parent().ok_or("a manifest lies in a folder")?;
    Ok(folder.join("llama.cpp"))
}

fn cargo_metadata(more: &[&str]) -> Result<String, Box<dyn Error>> {
    let target = env::var("TARGET")?;
    let asked = ["metadata", "--format-version", "1", "--filter-platform", &target];
    let output = Command::new(env::var("CARGO")?).args(asked).args(more).output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
