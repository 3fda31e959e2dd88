//! With the feature `llama`, compiles `io.cpp`, which reads and writes llama.cpp's states in pieces, and `measure.cpp`,
//! which reads how much memory a context takes, against the headers of the llama.cpp that is linked.
//!
//! Its other dependencies are not used; Cargo.toml says why they are there.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "llama")]
    llama::compile()?;
    // A benchmark loads backend libraries, which use the ggml of the program. Other systems have other linkers.
    #[cfg(feature = "llama")]
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        for symbols in ["ggml_*", "gguf_*"] {
            println!("cargo:rustc-link-arg-benches=-Wl,--export-dynamic-symbol={symbols}");
        }
    }
    Ok(())
}

#[cfg(feature = "llama")]
mod llama {
    use std::env;
    use std::error::Error;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    const SOURCES: [&str; 2] = ["src/backend/llama/state/io.cpp", "src/backend/llama/model/measure.cpp"];
    /// The package that brings llama.cpp, its sources included.
    const PACKAGE: &str = "llama-cpp-sys-4";
    /// Names the folder of llama.cpp's sources where cargo cannot tell.
    const OVERRIDE: &str = "PONCHO_LLAMA_CPP";
    /// With what the source files have to agree.
    const HEADERS: [&str; 4] = ["src/llama-io.h", "src/llama-memory.h", "src/llama-ext.h", "src/llama-arch.h"];
    /// Says which package is meant; another one may bring other headers.
    const LOCK: &str = "../../Cargo.lock";

    pub(crate) fn compile() -> Result<(), Box<dyn Error>> {
        for source in SOURCES {
            println!("cargo:rerun-if-changed={source}");
        }
        println!("cargo:rerun-if-env-changed={OVERRIDE}");
        if Path::new(LOCK).is_file() {
            println!("cargo:rerun-if-changed={LOCK}");
        }
        warn_of_slow_flags();
        let Sources { folder: llama, version } = llama_cpp()?;
        for header in HEADERS {
            let path = llama.join(header);
            if !path.is_file() {
                return Err(format!("{} is not there; set {OVERRIDE} to llama.cpp's sources", path.display()).into());
            }
            println!("cargo:rerun-if-changed={}", path.display());
        }
        refuse_patches(&llama)?;
        let mut build = cc::Build::new();
        build
            .cpp(true)
            .std("c++17")
            .include(llama.join("src"))
            .include(llama.join("include"))
            .include(llama.join("ggml/include"))
            // The headers are not ours to keep free of warnings.
            .warnings(false)
            .files(SOURCES);
        println!(
            "cargo:rustc-env=PONCHO_LLAMA_BUILD={PACKAGE} {version}, {}, {}",
            env::var("TARGET")?,
            compiler(&build)
        );
        println!("cargo:rustc-env=PONCHO_LLAMA_VERSION={} ({PACKAGE} {version})", llama_version(&llama));
        build.try_compile("poncho_state_io")?;
        Ok(())
    }

    /// `cargo install` from another folder does not read our `.cargo/config.toml`; llama.cpp is then several times slower.
    fn warn_of_slow_flags() {
        const FLAGS: [&str; 2] = ["CXXFLAGS_x86_64_unknown_linux_gnu", "CXXFLAGS"];
        FLAGS.iter().for_each(|name| println!("cargo:rerun-if-env-changed={name}"));
        let is_x86 = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
        let has_target = FLAGS.iter().any(|name| env::var(name).is_ok_and(|flags| flags.contains("-march=")));
        if is_x86 && !has_target {
            println!(
                "cargo:warning=llama.cpp is compiled for SSE4.2, which is several times slower than AVX2: set \
                 CFLAGS_x86_64_unknown_linux_gnu and CXXFLAGS_x86_64_unknown_linux_gnu to -march=x86-64-v3, or build \
                 inside the repository with `make build`"
            );
        }
    }

    /// The commit that the package names in its README, or the version in llama.cpp's build file: the sources come
    /// without their history.
    fn llama_version(llama: &Path) -> String {
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let readme = llama.parent().map(|package| read(package.join("README.md"))).unwrap_or_default();
        let named = readme.lines().find_map(|line| line.split_once("**llama.cpp version:** `"));
        if let Some((commit, _)) = named.and_then(|(_, rest)| rest.split_once('`')) {
            return commit.to_owned();
        }
        let file = read(llama.join("CMakeLists.txt"));
        let number = |part: &str| {
            let line = file.lines().find_map(|line| line.strip_prefix(&format!("set(LLAMA_VERSION_{part} ")))?;
            Some(line.trim_end_matches(')').trim())
        };
        match (number("MAJOR"), number("MINOR"), number("PATCH")) {
            (Some(major), Some(minor), Some(patch)) => format!("{major}.{minor}.{patch}"),
            _ => "of unknown version".to_owned(),
        }
    }

    /// What the compiler says that it is: another one may round otherwise. The package is compiled by the same one.
    fn compiler(build: &cc::Build) -> String {
        let asked = build.try_get_compiler().ok().and_then(|tool| tool.to_command().arg("--version").output().ok());
        let said = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        said.lines().next().unwrap_or("an unknown compiler").trim().to_owned()
    }

    /// llama.cpp as cargo resolved it.
    struct Sources {
        folder: PathBuf,
        version: String,
    }

    /// The folder of the sources that are linked, as cargo resolved them.
    fn llama_cpp() -> Result<Sources, Box<dyn Error>> {
        if let Some(folder) = env::var_os(OVERRIDE) {
            return Ok(Sources { folder: folder.into(), version: "of unknown version".to_owned() });
        }
        let metadata = cargo_metadata(&["--locked", "--offline"]).or_else(|_| cargo_metadata(&["--locked"]))?;
        // As a package is listed, not as a dependency of one.
        let package = format!("{{\"name\":\"{PACKAGE}\",\"version\":");
        let found = metadata.split_once(&package).map(|(_, rest)| rest);
        // The version is the string that follows.
        let version = found.and_then(|rest| rest.split('"').nth(1)).unwrap_or("unknown").to_owned();
        let manifest = found
            .and_then(|rest| rest.split_once("\"manifest_path\":\""))
            .and_then(|(_, rest)| rest.split_once('"'))
            .map(|(path, _)| path.replace("\\\\", "\\"))
            .ok_or_else(|| format!("cargo metadata does not name {PACKAGE}; set {OVERRIDE} to llama.cpp's sources"))?;
        let folder = Path::new(&manifest).parent().ok_or("a manifest lies in a folder")?;
        Ok(Sources { folder: folder.join("llama.cpp"), version })
    }

    /// The package applies patches to a copy of its sources before it compiles them. Those must not be of our headers, because we
    /// read the ones that are not patched.
    fn refuse_patches(llama: &Path) -> Result<(), Box<dyn Error>> {
        let folder = llama.parent().ok_or("the sources lie in a package")?.join("patches");
        for patch in folder.read_dir().into_iter().flatten() {
            let path = patch?.path();
            let text = std::fs::read_to_string(&path)?;
            if let Some(header) = HEADERS.iter().find(|header| text.contains(&format!("+++ b/{header}"))) {
                return Err(format!("{} changes {header}; build against the patched headers", path.display()).into());
            }
        }
        Ok(())
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
}
