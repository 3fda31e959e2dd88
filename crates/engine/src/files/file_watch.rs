//! Whether the files of a loaded model are still the ones that were hashed.
//!
//! Weights are mapped from the file, so a file that is overwritten in place changes the model that runs. The stamps are
//! taken before the backend opens the files and compared after the hash is known, before every save, and at most once a
//! second for new requests. A model with a changed file takes no requests and saves nothing: its namespace would be that
//! of other weights. A file that is gone counts as unchanged, because the mapping keeps its bytes.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use poncho_cache::{FileStamp, split_parts};

use crate::backend::ModelOptions;

/// Between two looks for new requests.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct FileWatch {
    files: Vec<(PathBuf, FileStamp)>,
    /// Set once and for all: a model does not get its old weights back.
    is_changed: AtomicBool,
    looked: Mutex<Option<Instant>>,
}

impl FileWatch {
    /// The files as they are now. A model without files (a stub) has nothing to watch.
    pub(crate) fn new(options: &ModelOptions) -> Self {
        let parts = match options.split_paths.as_slice() {
            [] => split_parts(&options.path).unwrap_or_default(),
            parts => parts.to_vec(),
        };
        let stamped = |path: PathBuf| FileStamp::of(&path).ok().map(|stamp| (path, stamp));
        Self {
            files: parts.into_iter().filter_map(stamped).collect(),
            is_changed: AtomicBool::new(false),
            looked: Mutex::default(),
        }
    }

    /// Looks at the files; may block as long as the disk does. Names the first that is another one now.
    pub(crate) fn look(&self) -> Option<PathBuf> {
        let is_other = |(path, stamp): &&(PathBuf, FileStamp)| match FileStamp::of(path) {
            Ok(now) => now != *stamp,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        let changed = self.files.iter().find(is_other).map(|(path, _)| path.clone());
        if let Some(path) = &changed
            && !self.is_changed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                path = %path.display(),
                "the file of a loaded model was changed; nothing of it is saved or served until it is loaded again"
            );
        }
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        changed
    }

    /// Whether the last look is so long ago that a new request should look again.
    pub(crate) fn is_due(&self) -> bool {
        let looked = *self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        !self.files.is_empty() && !self.is_changed() && looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY)
    }

    /// What the looks so far found.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_was_written_or_replaced_is_noticed_and_one_that_is_gone_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        fs::write(&path, "weights").unwrap();
        let watch = || FileWatch::new(&ModelOptions::new(&path));
        let written = watch();
        assert!(written.is_due() && written.look().is_none() && !written.is_changed());
        fs::write(&path, "longer weights").unwrap();
        assert_eq!(written.look(), Some(path.clone()));
        assert!(written.is_changed() && !written.is_due());
        let replaced = watch();
        fs::write(folder.path().join("new"), "longer weights").unwrap();
        fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!(replaced.look(), Some(path.clone()));
        let gone = watch();
        fs::remove_file(&path).unwrap();
        assert_eq!(gone.look(), None);
        let none = watch();
        assert!(!none.is_due() && none.look().is_none());
    }
}
