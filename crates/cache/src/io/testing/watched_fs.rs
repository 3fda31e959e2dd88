//! A file system with watched calls: counted, remembered or held up.
//!
//! Used by tests and benchmarks of this crate and of its users, which say what the watcher does.

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::io::fs::{Entry, Fs, NewFile, ReadFile};

/// What sees the calls. By default it does nothing.
pub trait Watcher: Debug + Send + Sync + 'static {
    /// A file was written.
    fn wrote(&self, _file: &NewFile<'_>) {}

    /// A file is about to be removed.
    fn before_remove(&self, _path: &Path) {}

    /// A file is about to be opened.
    fn before_open(&self) {}

    /// That many bytes are about to be read.
    fn before_read(&self, _bytes: usize) {}
}

/// See the module.
#[derive(Debug, Default)]
pub struct WatchedFs<F, W> {
    inner: F,
    watcher: Arc<W>,
}

impl<F: Fs, W: Watcher> WatchedFs<F, W> {
    /// A file system, and what watches it.
    #[must_use]
    pub const fn new(inner: F, watcher: Arc<W>) -> Self {
        Self { inner, watcher }
    }
}

struct WatchedFile<W> {
    inner: Box<dyn ReadFile>,
    watcher: Arc<W>,
}

impl<W: Watcher> ReadFile for WatchedFile<W> {
    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.watcher.before_read(buffer.len());
        self.inner.read_exact_at(buffer, offset)
    }
}

impl<F: Fs, W: Watcher> Fs for WatchedFs<F, W> {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.inner.create_folder(path)
    }

    fn write_new(&self, path: &Path, file: &NewFile<'_>, durable: bool) -> io::Result<()> {
        self.inner.write_new(path, file, durable)?;
        self.watcher.wrote(file);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.watcher.before_remove(path);
        self.inner.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_folder(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        self.watcher.before_open();
        Ok(Box::new(WatchedFile { inner: self.inner.open(path)?, watcher: Arc::clone(&self.watcher) }))
    }

    fn write_at(&self, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_at(path, bytes, offset)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.inner.list(path)
    }

    fn has_locks(&self) -> bool {
        self.inner.has_locks()
    }
}
