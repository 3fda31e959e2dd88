//! Where things are in a registry folder, the locks on it, and the folders that new files arrive in.
//!
//! Used by everything below `registry/` and by downloads. It must never move or change a file that has its name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::digest::Sha256;
use crate::error::RegistryError;

use super::lock::{self, HeldLock};

/// Where things are in a registry folder.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
}

impl Layout {
    pub(crate) fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.root.join("manifests")
    }

    pub(crate) fn incoming(&self) -> PathBuf {
        self.root.join("incoming")
    }

    /// The stamp that a file in `blobs/` had when it was hashed.
    pub(crate) fn stamp(&self, digest: &Sha256) -> PathBuf {
        self.hashed().join(blob_name(digest))
    }

    pub(crate) fn hashed(&self) -> PathBuf {
        self.root.join("hashed")
    }

    /// Bytes that may still be written; `None` if the file system does not say.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let facts = rustix::fs::statvfs(&self.root).ok()?;
        Some(facts.f_bavail.saturating_mul(facts.f_frsize))
    }

    /// Checks that `needed` more bytes fit on the file system; passes if its free space is unknown.
    pub(crate) fn check_room(&self, needed: u64) -> Result<(), RegistryError> {
        match self.free_bytes() {
            Some(free) if free < needed => Err(RegistryError::NoRoom { needed, free, folder: self.root.clone() }),
            _ => Ok(()),
        }
    }

    /// Interrupted downloads, kept so that they can be resumed.
    pub(crate) fn partial(&self) -> PathBuf {
        self.root.join("partial")
    }

    /// Files that a client sent before it creates a model from them.
    pub(crate) fn uploads(&self) -> PathBuf {
        self.root.join("uploads")
    }

    fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub(crate) fn blob(&self, digest: &Sha256) -> PathBuf {
        self.blobs().join(blob_name(digest))
    }

    pub(crate) fn upload(&self, digest: &Sha256) -> PathBuf {
        self.uploads().join(blob_name(digest))
    }

    /// Creates the folders that are missing.
    pub(crate) fn prepare(&self) -> Result<(), RegistryError> {
        for folder in [self.blobs(), self.manifests(), self.incoming(), self.partial(), self.uploads()] {
            fs::create_dir_all(&folder).map_err(|source| RegistryError::io("create", &folder, source))?;
        }
        Ok(())
    }

    /// Waits for the lock that all changes to the folder take. The folders must exist.
    pub(crate) fn lock_for_writing(&self) -> Result<HeldLock, RegistryError> {
        lock::wait_for(&self.lock())
    }

    /// The same without waiting.
    pub(crate) fn try_lock_for_writing(&self) -> Result<Option<HeldLock>, RegistryError> {
        lock::try_take(&self.lock())
    }

    /// Creates the folder of an incoming file. This happens under the registry's lock, so that no other process removes
    /// the folder as a leftover before its own lock is held.
    pub(crate) fn receive(&self) -> Result<Incoming, RegistryError> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        self.prepare()?;
        let _writing = self.lock_for_writing()?;
        let unique = format!("{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let folder = self.incoming().join(unique);
        // An earlier process with the same id may have left this folder.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).map_err(|source| RegistryError::io("create", &folder, source))?;
        let lock = lock::try_take(&folder.join(LOCK_NAME))?.ok_or(RegistryError::Stopped)?;
        Ok(Incoming { folder, _lock: lock })
    }
}

/// The lock in a folder of `incoming/` and `partial/`.
pub(crate) const LOCK_NAME: &str = "lock";
/// The bytes in such a folder.
pub(crate) const DATA_NAME: &str = "data";

/// The folder of an incoming file, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Incoming {
    folder: PathBuf,
    _lock: HeldLock,
}

impl Incoming {
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join(DATA_NAME)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // What stays is removed when the registry is opened next.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn blob_name(digest: &Sha256) -> String {
    format!("sha256-{digest}")
}

/// The hash that a file in `blobs/` is named after.
pub(crate) fn digest_of_name(name: &str) -> Option<Sha256> {
    let digest = Sha256::parse(name.strip_prefix("sha256-")?)?;
    (blob_name(&digest) == name).then_some(digest)
}
