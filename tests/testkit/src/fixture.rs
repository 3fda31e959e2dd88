//! Generated files that many tests share: written once under the temporary folder, then reused.
//!
//! The folder's name holds a hash of the file's bytes, so a change of the generator never meets an old file. A file
//! appears under its name by a rename only: a test that runs at the same time sees all of it or nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::random::fingerprint;
use crate::spec::{AdapterSpec, ModelKind, ModelSpec};
use crate::{adapter, models};

/// Path of the tiny model of a kind. Other tests read the same file: copy it before changing it.
///
/// # Panics
///
/// If the temporary folder cannot be written; a test has nothing to go on with then.
pub fn model_path(kind: ModelKind) -> PathBuf {
    or_stop(path_of(&ModelSpec::tiny(kind)))
}

/// Path of the tiny adapter for the tiny attention model.
///
/// # Panics
///
/// As [`model_path`].
pub fn adapter_path() -> PathBuf {
    let model = ModelSpec::tiny(ModelKind::Attention);
    or_stop(adapter::build(&model, &AdapterSpec::tiny()).and_then(|file| share("adapter", &file.to_bytes())))
}

/// Path of a shared file that holds the model of `spec`.
pub fn path_of(spec: &ModelSpec) -> io::Result<PathBuf> {
    share(spec.kind.name(), &models::build(spec)?.to_bytes())
}

/// Path of the default model, which `make model` fetches: the one real model that tests run.
///
/// A test that needs it fails without it; it must not pass because it did nothing.
pub fn default_model_path() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/models");
    let path = folder.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.is_file(), "{} is not there; `make model` fetches it", path.display());
    path
}

#[expect(clippy::panic, reason = "called by tests only, and a test without its model has to fail")]
fn or_stop(path: io::Result<PathBuf>) -> PathBuf {
    match path {
        Ok(path) => path,
        Err(error) => {
            panic!(
                "cannot write a test model under {}: {error}; free space or set TMPDIR",
                std::env::temp_dir().display()
            )
        }
    }
}

/// Puts `bytes` into a file named by their hash, unless it is there already.
fn share(name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let folder = format!("poncho-testkit-{}-{:016x}", env!("CARGO_PKG_VERSION"), fingerprint(bytes));
    let folder = std::env::temp_dir().join(folder);
    let path = folder.join(format!("{name}.gguf"));
    // Comparing costs less than generating, and repairs a file that something damaged.
    if fs::read(&path).is_ok_and(|found| found == bytes) {
        return Ok(path);
    }
    fs::create_dir_all(&folder)?;
    let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!("{name}.{}.{unique}.tmp", process::id()));
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, &path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_shared_file_is_written_once() {
        let path = model_path(ModelKind::Window);
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(model_path(ModelKind::Window), path);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
        let expected = models::build(&ModelSpec::tiny(ModelKind::Window)).unwrap().to_bytes();
        assert_eq!(fs::read(&path).unwrap(), expected);
    }

    #[test]
    fn threads_that_start_together_get_the_same_whole_file_and_leave_nothing_behind() {
        let spec = ModelSpec { seed: 4711, ..ModelSpec::tiny(ModelKind::Recurrent) };
        let expected = models::build(&spec).unwrap().to_bytes();
        let paths: HashSet<PathBuf> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..8).map(|_| scope.spawn(|| path_of(&spec).unwrap())).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(paths.len(), 1);
        let path = paths.into_iter().next().unwrap();
        assert_eq!(fs::read(&path).unwrap(), expected);
        let folder = path.parent().unwrap();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_damaged_file_is_replaced() {
        let spec = ModelSpec { seed: 4712, ..ModelSpec::tiny(ModelKind::Hybrid) };
        let path = path_of(&spec).unwrap();
        fs::write(&path, b"GGUF").unwrap();
        assert_eq!(path_of(&spec).unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), models::build(&spec).unwrap().to_bytes());
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn different_files_live_in_different_folders() {
        let mut paths: Vec<_> = ModelKind::ALL.into_iter().map(model_path).collect();
        paths.push(adapter_path());
        let folders: HashSet<_> = paths.iter().map(|path| path.parent().unwrap()).collect();
        assert_eq!(folders.len(), 5);
    }
}
