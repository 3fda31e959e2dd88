//! Where devices come from besides this build: backend libraries that are loaded at run time, and workers on other
//! machines.
//!
//! The command line names them with [`use_devices`] before llama.cpp starts; everything that calls llama.cpp calls
//! [`start_library`] first. Both may end the process (a driver that crashes, a worker that is gone), so each is tried in a process of its
//! own first. A library that is loaded stays loaded.

use std::ffi::CString;
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use llama_cpp_sys_4 as sys;
use serde::{Deserialize, Serialize};

use super::LLAMA_VERSION;
use crate::backend::llama::log;

/// The start of a library's file name; the name of its backend follows.
const PREFIX: &str = "libggml-";
/// The end of a library's file name.
const SUFFIX: &str = ".so";
/// Libraries with such a name hold no backend.
const NO_BACKENDS: [&str; 1] = ["base"];
/// Beside a library: the version of llama.cpp that it was built from, as [`LLAMA_VERSION`] has it.
const STAMP_SUFFIX: &str = ".version";

/// How long a worker may take to accept a connection.
const REACH_WITHIN: Duration = Duration::from_secs(5);

static CHOSEN: OnceLock<DeviceSources> = OnceLock::new();

/// What llama.cpp gets besides its own backends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSources {
    /// Backend libraries.
    pub libraries: Vec<PathBuf>,
    /// Addresses of RPC workers, such as `127.0.0.1:50052`.
    pub workers: Vec<String>,
}

/// Why devices were not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Nobody knows what the library was built from.
    #[error("there is no {stamp}, so it may be built from another llama.cpp; build it with `make build BACKEND=…`")]
    NoStamp {
        /// The file that should say it.
        stamp: String,
    },
    /// The library was built from other sources.
    #[error(
        "it was built for llama.cpp {built_for}, this is {LLAMA_VERSION}; build it again with `make build BACKEND=…`"
    )]
    OtherVersion {
        /// The version in its stamp.
        built_for: String,
    },
    /// llama.cpp refused it.
    #[error("{reason}")]
    Refused {
        /// In llama.cpp's or the linker's words.
        reason: String,
    },
    /// llama.cpp runs already; devices cannot be added safely beside models.
    #[error("llama.cpp has started already; name its devices first")]
    Started,
}

/// Names what llama.cpp gets when it starts.
///
/// # Errors
/// If it has started, or if this was called before with something else.
pub fn use_devices(sources: DeviceSources) -> Result<(), SourceError> {
    let wanted = sources.clone();
    if CHOSEN.get_or_init(|| sources) == &wanted { Ok(()) } else { Err(SourceError::Started) }
}

/// The backend libraries in a folder, sorted, each with what its stamp says. A folder that does not exist has none.
#[must_use]
pub fn libraries_in(folder: &Path) -> Vec<(PathBuf, Result<(), SourceError>)> {
    let entries = folder.read_dir().into_iter().flatten().filter_map(Result::ok);
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| backend_of(path).is_some()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), check_stamp(&path))).collect()
}

/// The backend that a library's name promises, such as `cuda`.
#[must_use]
pub fn backend_of(library: &Path) -> Option<&str> {
    let name = library.file_name()?.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    (!name.is_empty() && !NO_BACKENDS.contains(&name)).then_some(name)
}

fn check_stamp(library: &Path) -> Result<(), SourceError> {
    let mut stamp = library.as_os_str().to_owned();
    stamp.push(STAMP_SUFFIX);
    let stamp = PathBuf::from(stamp);
    let Ok(text) = std::fs::read_to_string(&stamp) else {
        let name = stamp.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Err(SourceError::NoStamp { stamp: name });
    };
    let built_for: String = text.trim().chars().take(200).collect();
    if built_for == LLAMA_VERSION { Ok(()) } else { Err(SourceError::OtherVersion { built_for }) }
}

/// Starts llama.cpp, once per process, at the first call that needs it.
pub(in crate::backend::llama) fn start_library() {
    static START: Once = Once::new();
    START.call_once(|| {
        log::listen();
        // SAFETY: no argument, and called once.
        unsafe { sys::llama_backend_init() };
        add_chosen();
    });
}

/// Adds what was named. What cannot be added is left out with a warning: the models run on what is there.
fn add_chosen() {
    let chosen = CHOSEN.get_or_init(DeviceSources::default);
    for library in &chosen.libraries {
        if let Err(error) = load_library(library) {
            tracing::warn!(library = %library.display(), "the backend cannot be used: {error}");
        }
    }
    for worker in &chosen.workers {
        if let Err(error) = add_worker(worker) {
            tracing::warn!(worker, "the worker cannot be used: {error}");
        }
    }
}

fn load_library(path: &Path) -> Result<(), SourceError> {
    let refused = |reason: &str| SourceError::Refused { reason: reason.to_owned() };
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| refused("its path has a zero byte"))?;
    // SAFETY: the name outlives the call. The library runs its own code; it is one that was built for this llama.cpp and
    // passed a trial in another process.
    let (backend, reason) = log::collect(|| unsafe { sys::ggml_backend_load(name.as_ptr()) });
    if backend.is_null() { Err(SourceError::Refused { reason }) } else { Ok(()) }
}

fn add_worker(address: &str) -> Result<(), SourceError> {
    let refused = |reason: &str| SourceError::Refused { reason: reason.to_owned() };
    let name = CString::new(address).map_err(|_| refused("its address has a zero byte"))?;
    // llama.cpp ends the process if nobody answers.
    if let Err(error) = reach(address) {
        return Err(refused(&format!("{address} cannot be reached: {error}; start `poncho rpc-worker` there")));
    }
    // SAFETY: the address outlives the call, and a null result is not registered.
    let (backend, reason) = log::collect(|| unsafe { sys::ggml_backend_rpc_add_server(name.as_ptr()) });
    if backend.is_null() {
        return Err(SourceError::Refused { reason });
    }
    // SAFETY: the backend was just made and lives as long as the process.
    unsafe { sys::ggml_backend_register(backend) };
    Ok(())
}

fn reach(address: &str) -> io::Result<()> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, REACH_WITHIN) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_libraries_are_told_from_others() {
        assert_eq!(backend_of(Path::new("/x/libggml-cuda.so")), Some("cuda"));
        for other in ["/x/libggml-base.so", "/x/libggml-.so", "/x/libggml-cuda.so.version", "/x/libggml.so", "/"] {
            assert_eq!(backend_of(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn a_library_of_another_version_is_refused_before_it_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        for (name, stamp) in [("cuda", Some(LLAMA_VERSION)), ("hip", Some("b1 (other 0.1)")), ("vulkan", None)] {
            let library = folder.path().join(format!("libggml-{name}.so"));
            std::fs::write(&library, b"").unwrap();
            if let Some(stamp) = stamp {
                std::fs::write(folder.path().join(format!("libggml-{name}.so.version")), format!("{stamp}\n")).unwrap();
            }
        }
        let found = libraries_in(folder.path());
        let verdicts: Vec<_> =
            found.iter().map(|(path, verdict)| (backend_of(path).unwrap(), verdict.clone())).collect();
        let other = SourceError::OtherVersion { built_for: "b1 (other 0.1)".into() };
        let none = SourceError::NoStamp { stamp: "libggml-vulkan.so.version".into() };
        assert_eq!(verdicts, [("cuda", Ok(())), ("hip", Err(other)), ("vulkan", Err(none))]);
        assert_eq!(libraries_in(&folder.path().join("missing")), []);
    }
}
