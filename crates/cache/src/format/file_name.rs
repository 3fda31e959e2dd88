//! The names of the files in a cache folder: rows, temporaries, damaged files, the lock.
//!
//! Called by publishing, recovery and eviction. This file alone spells suffixes. A name finds a file; what a
//! file holds is decided by its bytes. `classify` must claim only names that this file builds, because recovery
//! removes what is called temporary.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::identity::key::{Key, to_hex};

/// The advisory lock at the root of a cache folder.
pub const LOCK_FILE_NAME: &str = "poncho.lock";

const ROW_SUFFIX: &str = ".kvc";
const TEMPORARY_SUFFIX: &str = ".tmp";
const BAD_SUFFIX: &str = ".bad";

/// What a file in a cache folder is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileNameKind {
    /// A published row.
    Row(Key),
    /// A row that was being written.
    Temporary,
    /// A file that was moved aside because it is damaged.
    Bad,
    /// The lock of the folder.
    Lock,
    /// Not ours: to be left alone.
    Other,
}

/// `<hex key>.kvc`
#[must_use]
pub fn row_file_name(key: &Key) -> String {
    key.to_hex() + ROW_SUFFIX
}

/// The sub-folder of a row: two hexadecimal digits, the first byte of the key.
#[must_use]
pub fn row_folder(root: &Path, key: &Key) -> PathBuf {
    let [first, ..] = *key.as_bytes();
    root.join(to_hex(&[first]))
}

/// Whether a folder of that name may hold rows: exactly two lower-case hexadecimal digits.
#[must_use]
pub fn is_row_folder_name(name: &OsStr) -> bool {
    matches!(name.as_encoded_bytes(), [b'0'..=b'9' | b'a'..=b'f', b'0'..=b'9' | b'a'..=b'f'])
}

/// Where a published row is.
#[must_use]
pub fn row_path(root: &Path, key: &Key) -> PathBuf {
    row_folder(root, key).join(row_file_name(key))
}

/// Where a writer puts a row before it is published: `<hex key>.kvc.<writer>.tmp`, beside the final name. Letters,
/// digits, `-` and `_` of the writer's name are kept, anything else becomes `_`.
#[must_use]
pub fn tmp_path(root: &Path, key: &Key, writer: &str) -> PathBuf {
    let mut name = row_file_name(key);
    name.push('.');
    if writer.is_empty() {
        name.push('_');
    }
    name.extend(writer.chars().map(|letter| if is_writer_letter(letter) { letter } else { '_' }));
    name.push_str(TEMPORARY_SUFFIX);
    row_folder(root, key).join(name)
}

/// Where a damaged file is moved to: the same name with `.bad` behind it.
#[must_use]
pub fn bad_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(BAD_SUFFIX);
    PathBuf::from(name)
}

/// What a file is, by its name without folders.
#[must_use]
pub fn classify(file_name: &OsStr) -> FileNameKind {
    let Some(name) = file_name.to_str() else { return FileNameKind::Other };
    if name == LOCK_FILE_NAME {
        return FileNameKind::Lock;
    }
    if let Some(kind) = classify_row_or_temporary(name) {
        return kind;
    }
    match name.strip_suffix(BAD_SUFFIX).and_then(classify_row_or_temporary) {
        Some(_) => FileNameKind::Bad,
        None => FileNameKind::Other,
    }
}

fn classify_row_or_temporary(name: &str) -> Option<FileNameKind> {
    if let Some(key) = name.strip_suffix(ROW_SUFFIX).and_then(Key::from_hex) {
        return Some(FileNameKind::Row(key));
    }
    let (row, writer) = name.strip_suffix(TEMPORARY_SUFFIX)?.rsplit_once('.')?;
    let is_ours = !writer.is_empty() && writer.chars().all(is_writer_letter);
    row.strip_suffix(ROW_SUFFIX).and_then(Key::from_hex).filter(|_| is_ours).map(|_| FileNameKind::Temporary)
}

const fn is_writer_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::from_hex(&"a0b1c2d3".repeat(8)).unwrap()
    }

    fn kind_of(path: &Path) -> FileNameKind {
        classify(path.file_name().unwrap())
    }

    #[test]
    fn paths_fan_out_by_the_first_byte() {
        let root = Path::new("/cache");
        let hex = key().to_hex();
        assert_eq!(row_path(root, &key()), Path::new(&format!("/cache/a0/{hex}.kvc")));
        assert_eq!(tmp_path(root, &key(), "w-7"), Path::new(&format!("/cache/a0/{hex}.kvc.w-7.tmp")));
        assert_eq!(bad_path(&row_path(root, &key())), Path::new(&format!("/cache/a0/{hex}.kvc.bad")));
        assert_eq!(row_folder(root, &Key::from_bytes([5; 32])), Path::new("/cache/05"));
    }

    #[test]
    fn every_name_that_is_built_is_recognised() {
        let root = Path::new("/cache");
        assert_eq!(kind_of(&row_path(root, &key())), FileNameKind::Row(key()));
        for writer in ["1", "pid-12_3", "", "../../etc", "a.b", "\u{e9}"] {
            let path = tmp_path(root, &key(), writer);
            assert_eq!(path.parent(), Some(row_folder(root, &key()).as_path()), "{writer} left the folder");
            assert_eq!(kind_of(&path), FileNameKind::Temporary, "{writer}");
            assert_eq!(kind_of(&bad_path(&path)), FileNameKind::Bad, "{writer}");
        }
        assert_eq!(kind_of(&bad_path(&row_path(root, &key()))), FileNameKind::Bad);
        assert_eq!(classify(OsStr::new(LOCK_FILE_NAME)), FileNameKind::Lock);
        assert!(is_row_folder_name(row_folder(root, &key()).file_name().unwrap()));
    }

    #[test]
    fn names_of_others_are_left_alone() {
        let hex = key().to_hex();
        let others = [
            String::new(),
            "notes.tmp".to_owned(),
            "old.bad".to_owned(),
            hex.clone(),
            format!("{}.kvc", hex.to_uppercase()),
            format!("{}.kvc", &hex[1..]),
            format!("{hex}.kvc.tmp"),
            format!("{hex}.kvc..tmp"),
            format!("{hex}.kvc.a b.tmp"),
            format!("{hex}.kvc.w.bad"),
            format!("{hex}.kvc.bad.bad"),
            format!("{hex}.kvc2"),
            format!("x{hex}.kvc"),
            "poncho.lock.bad".to_owned(),
        ];
        for name in others {
            assert_eq!(classify(OsStr::new(&name)), FileNameKind::Other, "{name}");
        }
        for name in ["a", "abc", "AB", "g0", "..", ""] {
            assert!(!is_row_folder_name(OsStr::new(name)), "{name}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn names_that_are_not_unicode_are_left_alone() {
        use std::os::unix::ffi::OsStrExt;
        assert_eq!(classify(OsStr::from_bytes(b"\xff.kvc")), FileNameKind::Other);
    }
}
