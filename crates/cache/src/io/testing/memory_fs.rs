//! A file system in memory: fast, without a disk's timing, and under shuttle a yield point at every call.
//!
//! Used by tests that open a cache thousands of times. It must never touch a real file.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::io::fs::{Entry, Fs, NewFile, ReadFile};
use crate::io::sync::Mutex;

#[derive(Debug, Default)]
struct Tree {
    files: BTreeMap<PathBuf, Arc<Mutex<Vec<u8>>>>,
    folders: BTreeSet<PathBuf>,
}

/// See the module. Clones share the files.
#[derive(Debug, Default, Clone)]
pub struct MemoryFs {
    tree: Arc<Mutex<Tree>>,
}

impl MemoryFs {
    /// An empty file system.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Paths of all files.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.tree.lock().files.keys().cloned().collect()
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

struct OpenFile(Arc<Mutex<Vec<u8>>>);

impl ReadFile for OpenFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.0.lock();
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start.saturating_add(buffer.len());
        buffer.copy_from_slice(bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Fs for MemoryFs {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.tree.lock().folders.extend(path.ancestors().map(Path::to_path_buf));
        Ok(())
    }

    fn write_new(&self, path: &Path, file: &NewFile<'_>, _durable: bool) -> io::Result<()> {
        let mut tree = self.tree.lock();
        if !path.parent().is_some_and(|folder| tree.folders.contains(folder)) {
            return Err(missing());
        }
        if tree.files.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        tree.files.insert(path.to_path_buf(), Arc::new(Mutex::new(file.bytes()?)));
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut tree = self.tree.lock();
        let file = Arc::clone(tree.files.get(from).ok_or_else(missing)?);
        if tree.files.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        tree.files.insert(to.to_path_buf(), file);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.tree.lock().files.remove(path).map(drop).ok_or_else(missing)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut tree = self.tree.lock();
        let file = tree.files.remove(from).ok_or_else(missing)?;
        tree.files.insert(to.to_path_buf(), file);
        Ok(())
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        if self.tree.lock().folders.contains(path) { Ok(()) } else { Err(missing()) }
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let file = Arc::clone(self.tree.lock().files.get(path).ok_or_else(missing)?);
        Ok(Box::new(OpenFile(file)))
    }

    fn write_at(&self, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        let file = Arc::clone(self.tree.lock().files.get(path).ok_or_else(missing)?);
        let mut content = file.lock();
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start.saturating_add(bytes.len());
        content.get_mut(start..end).ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(bytes);
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let tree = self.tree.lock();
        if !tree.folders.contains(path) {
            return Err(missing());
        }
        let inside = |candidate: &&PathBuf| candidate.parent() == Some(path);
        let name = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let folders = tree.folders.iter().filter(inside).map(|path| Entry { name: name(path), is_folder: true });
        let files = tree.files.keys().filter(inside).map(|path| Entry { name: name(path), is_folder: false });
        Ok(folders.chain(files).collect())
    }

    fn has_locks(&self) -> bool {
        false
    }
}
