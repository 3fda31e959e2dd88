//! Manifests on disk: reading, writing by rename, copying and removing them, and removing files that no manifest needs.
//!
//! Called by the registry. A manifest is complete under its name or does not exist. Files get their name before the
//! manifest that needs them and are removed after it, so that a manifest never refers to a missing file.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use poncho_gguf::file::{self, Links};

use crate::digest::Sha256;
use crate::error::RegistryError;
use crate::name::ModelName;

use super::blobs::{Blob, sync_folder};
use super::layout::Layout;
use super::manifest::{self, Manifest};
use super::{Damaged, Installed, Registry, Removed};

/// All manifests of a folder.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    /// Those that can be used, by name.
    pub(super) good: Vec<Manifest>,
    /// The others.
    pub(super) bad: Vec<Damaged>,
}

impl Manifests {
    /// The hashes that are needed; `None` if an unreadable manifest may need any of them.
    pub(super) fn needed(&self) -> Option<BTreeSet<Sha256>> {
        self.bad.is_empty().then(|| self.good.iter().flat_map(Manifest::blobs).map(|blob| blob.sha256).collect())
    }
}

fn manifest_path(layout: &Layout, name: &ModelName) -> PathBuf {
    layout.manifests().join(name.file_name())
}

/// The names of the files in `manifests/`, sorted; none without the folder.
fn file_names(layout: &Layout) -> Result<Vec<String>, RegistryError> {
    let folder = layout.manifests();
    let wrap = |source| RegistryError::io("read", &folder, source);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(wrap(source)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(wrap)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// The names that have a manifest, usable or not.
pub(super) fn names(layout: &Layout) -> Result<Vec<ModelName>, RegistryError> {
    Ok(file_names(layout)?.iter().filter_map(|file| ModelName::from_file_name(file)).collect())
}

/// Every manifest.
pub(super) fn read_all(layout: &Layout) -> Result<Manifests, RegistryError> {
    let mut all = Manifests::default();
    for file in file_names(layout)? {
        let path = layout.manifests().join(&file);
        let Some(name) = ModelName::from_file_name(&file) else {
            all.bad.push(Damaged { name: None, path, reason: "its file name stands for no model".to_owned() });
            continue;
        };
        match read(layout, &name) {
            Ok(Some(manifest)) => all.good.push(manifest),
            // Removed since the folder was read.
            Ok(None) => {}
            Err(RegistryError::BadManifest { path, reason }) => {
                all.bad.push(Damaged { name: Some(name), path, reason });
            }
            Err(error) => all.bad.push(Damaged { name: Some(name), path, reason: error.to_string() }),
        }
    }
    all.good.sort_by(|one, two| one.name.cmp(&two.name));
    Ok(all)
}

/// The manifest of a name; `None` if there is none.
pub(super) fn read(layout: &Layout, name: &ModelName) -> Result<Option<Manifest>, RegistryError> {
    let path = manifest_path(layout, name);
    let file = match file::open_regular(&path, Links::Refuse) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(RegistryError::io("open", &path, source)),
    };
    let mut bytes = Vec::new();
    let read = file.take(manifest::MOST_BYTES).read_to_end(&mut bytes);
    read.map_err(|source| RegistryError::io("read", &path, source))?;
    let bad = |reason| RegistryError::BadManifest { path: path.clone(), reason };
    Manifest::parse(&bytes, name).map(Some).map_err(bad)
}

/// Writes a manifest beside its place and renames it there. The caller holds the folder's lock.
pub(super) fn write(layout: &Layout, manifest: &Manifest) -> Result<(), RegistryError> {
    let path = manifest_path(layout, &manifest.name);
    // One writer at a time, so one name does.
    let temporary = layout.incoming().join(TEMPORARY_MANIFEST);
    let mut bytes = serde_json::to_vec_pretty(manifest)
        .map_err(|error| RegistryError::BadManifest { path: path.clone(), reason: error.to_string() })?;
    bytes.push(b'\n');
    if bytes.len() as u64 > manifest::MOST_BYTES {
        let reason = format!("it would have {} bytes; shorten its texts", bytes.len());
        return Err(RegistryError::BadManifest { path, reason });
    }
    // Whatever a crash left there is not written into.
    let _ = fs::remove_file(&temporary);
    let written = File::create_new(&temporary).and_then(|mut file| {
        file.write_all(&bytes)?;
        file.sync_all()
    });
    written.map_err(|source| RegistryError::io("write", &temporary, source))?;
    fs::rename(&temporary, &path).map_err(|source| RegistryError::io("rename", &path, source))?;
    sync_folder(&layout.manifests())
}

/// Where a manifest is written before it is renamed.
pub(super) const TEMPORARY_MANIFEST: &str = "manifest.tmp";

/// Removes files that no manifest needs. The caller holds the folder's lock and has removed the manifest.
pub(super) fn collect(layout: &Layout, candidates: &[Blob]) -> Result<Removed, RegistryError> {
    let Some(needed) = read_all(layout)?.needed() else { return Ok(Removed::default()) };
    let mut removed = Removed::default();
    let mut gone = BTreeSet::new();
    for blob in candidates.iter().filter(|blob| !needed.contains(&blob.sha256) && gone.insert(blob.sha256)) {
        if remove_file(&layout.blob(&blob.sha256))? {
            forget(layout, &blob.sha256);
            removed.files += 1;
            removed.bytes = removed.bytes.saturating_add(blob.bytes);
        }
    }
    Ok(removed)
}

/// Removes what was remembered about a file that is gone: its stamp, and the engine's memo of its hash.
pub(super) fn forget(layout: &Layout, digest: &Sha256) {
    let _ = fs::remove_file(layout.stamp(digest));
    let _ = fs::remove_file(layout.blobs().join(format!("sha256-{digest}{MEMO_SUFFIX}")));
}

/// What the engine writes beside a file that it had to hash again.
const MEMO_SUFFIX: &str = ".poncho-fingerprint";

/// Removes a file; `false` if it was not there.
pub(super) fn remove_file(path: &Path) -> Result<bool, RegistryError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(RegistryError::io("remove", path, source)),
    }
}

impl Registry {
    /// Gives a model a second name. A model that had the second name loses it.
    ///
    /// # Errors
    /// When the first name is not here or the folder cannot be written.
    pub fn copy(&self, from: &ModelName, to: &ModelName) -> Result<Installed, RegistryError> {
        let known = self.get(from)?;
        let _writing = self.layout.lock_for_writing()?;
        // Read again: it may have been removed or replaced since.
        let manifest = read(&self.layout, &known.name)?.ok_or_else(|| self.unknown(from))?;
        self.replace(Manifest { name: to.clone(), ..manifest })
    }

    /// Takes a name away, and the files that no other name needs.
    ///
    /// # Errors
    /// When the name is not here or the folder cannot be written.
    pub fn remove(&self, name: &ModelName) -> Result<Removed, RegistryError> {
        if !names(&self.layout)?.contains(name) {
            return Err(self.unknown(name));
        }
        let _writing = self.layout.lock_for_writing()?;
        // One that cannot be read is removed all the same; its files go when the registry is opened next.
        let blobs: Vec<Blob> = match read(&self.layout, name) {
            Ok(Some(manifest)) => manifest.blobs().copied().collect(),
            Ok(None) => return Err(self.unknown(name)),
            Err(_) => Vec::new(),
        };
        remove_file(&manifest_path(&self.layout, name))?;
        sync_folder(&self.layout.manifests())?;
        collect(&self.layout, &blobs)
    }

    /// Writes a manifest in place of one of the same name and removes what only that one needed. The caller holds the
    /// folder's lock and has put the files in place.
    pub(super) fn replace(&self, manifest: Manifest) -> Result<Installed, RegistryError> {
        let before = read(&self.layout, &manifest.name).ok().flatten();
        write(&self.layout, &manifest)?;
        if let Some(before) = before {
            let blobs: Vec<Blob> = before.blobs().copied().collect();
            collect(&self.layout, &blobs)?;
        }
        Ok(self.installed(manifest))
    }
}
