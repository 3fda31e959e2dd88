//! The names of models by their fingerprints: rows of a cache know only the fingerprint.
//!
//! Servers record the models that they load in a small file beside the cache folder, one line each; `poncho cache` reads
//! it, and the registry of installed models. A file that cannot be read or written only means that a listing shows
//! fingerprints; it must never fail a command.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;

use poncho_cache::{Links, open_regular, to_hex};
use poncho_models::Registry;

use crate::serving::shape::beside;

/// Lines that are kept, the newest ones.
const MAX_LINES: usize = 1000;
/// More than the file ever has.
const MAX_BYTES: u64 = 1 << 20;
/// Digits of a fingerprint.
const DIGITS: usize = 64;

/// Records the name of a loaded model.
pub(crate) fn record(cache_folder: &Path, id: &str, fingerprint: &[u8; 32]) {
    if let Err(error) = add(&file_of(cache_folder), &to_hex(fingerprint), id) {
        tracing::debug!(%error, "the name of a model was not recorded");
    }
}

/// Names by fingerprint.
#[derive(Debug, Default)]
pub(crate) struct ModelNames(BTreeMap<String, String>);

impl ModelNames {
    /// The names that are recorded beside these folders, and those of installed models.
    pub(crate) fn read<'a>(cache_folders: impl IntoIterator<Item = &'a Path>, models_folder: Option<&Path>) -> Self {
        let mut names = BTreeMap::new();
        // Opening a registry would create its folder.
        let registry = models_folder.filter(|folder| folder.is_dir()).and_then(|folder| Registry::open(folder).ok());
        for installed in registry.and_then(|registry| registry.list().ok()).unwrap_or_default() {
            // The fingerprint of a model with adapters is another one.
            if installed.adapters.is_empty() {
                names.entry(installed.manifest.model.sha256.to_hex()).or_insert_with(|| installed.name.short());
            }
        }
        for folder in cache_folders {
            let text = read(&file_of(folder));
            names.extend(lines(&text).map(|(fingerprint, name)| (fingerprint.to_owned(), name.to_owned())));
        }
        Self(names)
    }

    /// The name of a model, if it is known.
    pub(crate) fn get(&self, fingerprint: &[u8; 32]) -> Option<&str> {
        self.0.get(&to_hex(fingerprint)).map(String::as_str)
    }
}

/// Beside the cache folder, under its name: every file inside the folder belongs to the cache.
fn file_of(cache_folder: &Path) -> std::path::PathBuf {
    beside(cache_folder, ".names")
}

fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_fingerprint = |text: &str| text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.lines().filter_map(move |line| line.split_once(' ').filter(|(fingerprint, _)| is_fingerprint(fingerprint)))
}

fn read(path: &Path) -> String {
    let mut text = String::new();
    let read = open_regular(path, Links::Refuse).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    if read.is_ok() { text } else { String::new() }
}

/// Replaces the line of the fingerprint.
fn add(path: &Path, fingerprint: &str, name: &str) -> std::io::Result<()> {
    let old = read(path);
    let name = name.replace(['\n', '\r'], " ");
    if lines(&old).any(|line| line == (fingerprint, name.as_str())) {
        return Ok(());
    }
    let mut kept: Vec<String> = lines(&old)
        .filter(|(other, _)| *other != fingerprint)
        .map(|(fingerprint, name)| format!("{fingerprint} {name}\n"))
        .collect();
    kept.push(format!("{fingerprint} {name}\n"));
    let kept = kept.get(kept.len().saturating_sub(MAX_LINES)..).unwrap_or_default().concat();
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    // Readable by the owner only, and complete or not there.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(kept.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_latest_name_of_a_fingerprint_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let kv = folder.path().join("kv");
        let file = file_of(&kv);
        add(&file, &to_hex(&[1; 32]), "old").unwrap();
        add(&file, &to_hex(&[2; 32]), "two\nlines").unwrap();
        add(&file, &to_hex(&[1; 32]), "new name").unwrap();
        let names = ModelNames::read([kv.as_path()], None);
        assert_eq!(names.get(&[1; 32]), Some("new name"));
        assert_eq!(names.get(&[2; 32]), Some("two lines"));
        assert_eq!(names.get(&[3; 32]), None);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_of_others_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let kv = folder.path().join("kv");
        std::fs::write(file_of(&kv), b"\xff\xfe not ours\n").unwrap();
        assert!(ModelNames::read([kv.as_path()], Some(Path::new("/nonexistent"))).0.is_empty());
        std::fs::write(file_of(&kv), "short name\n").unwrap();
        assert!(ModelNames::read([kv.as_path()], None).0.is_empty());
    }
}
