//! The identity of a model's files: 32 bytes that decide whether a stored state may belong to them.
//!
//! Called by the engine when a model is loaded and when adapters are attached or taken off. `safe` reads every byte
//! once and keeps a memo beside the model, so that the next start does not; `gguf_chunked` reads a little;
//! `fast_unsafe` reads nothing. A memo that does not fit the files exactly must never be used.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use poncho_gguf::file::{Links, open_regular};
use poncho_gguf::{GgufError, GgufIdentity};
use sha2::{Digest, Sha256};

use super::key::to_hex;
use super::memo::{FingerprintMemo, PartIdentity};
use crate::kinds::FingerprintMode;

/// Large enough that a disk streams, small enough to stay in the processor's cache while it is hashed.
const READ_BYTES: usize = 1 << 20;

/// The fingerprint of a model and how it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// The fingerprint itself.
    pub bytes: [u8; 32],
    /// How it was made; stored in every row.
    pub mode: FingerprintMode,
}

/// One attached LoRA adapter, as far as a state depends on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdapterIdentity {
    /// SHA-256 of the adapter's file.
    pub sha256: [u8; 32],
    /// The scale it is attached with.
    pub scale: f32,
}

/// Why a fingerprint cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum FingerprintError {
    /// No file was given.
    #[error("no model file was given; give the path of a .gguf file")]
    NoFiles,
    /// A file cannot be opened or read.
    #[error("cannot read {}; check that it exists and may be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file was written to while it was being read.
    #[error("{} changed while it was being read; wait until it is complete and try again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A file is not a readable GGUF.
    #[error("cannot identify the model {}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: GgufError,
    },
    /// A part of a split model is not there.
    #[error("{} is missing: the model is split into {count} parts; put all of them into one folder", path.display())]
    MissingPart {
        /// The part that is not there.
        path: PathBuf,
        /// How many parts the names announce.
        count: u32,
    },
    /// A scale that is not a number, or not one that the identity can hold.
    #[error("adapter {} has the scale {scale}, which is not usable; give a finite number such as 1.0", to_hex(sha256))]
    AdapterScale {
        /// The adapter's hash.
        sha256: [u8; 32],
        /// Its scale.
        scale: f32,
    },
}

impl Fingerprint {
    /// SHA-256 over every byte of all parts in order (what `cat` of the parts into `sha256sum` prints).
    ///
    /// The hash is remembered beside the first part, or in `memo_folder` where that is not possible. `progress`
    /// gets the bytes done and in all; it is not called when the memo answers.
    ///
    /// # Errors
    /// When a part cannot be read or changes under the reader. A memo that cannot be written is not an error.
    pub fn safe(
        parts: &[PathBuf],
        memo_folder: Option<&Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, FingerprintError> {
        Self::safe_at(parts, memo_folder, progress, SystemTime::now())
    }

    /// The same, begun at `started`.
    pub(super) fn safe_at(
        parts: &[PathBuf],
        memo_folder: Option<&Path>,
        progress: &mut dyn FnMut(u64, u64),
        started: SystemTime,
    ) -> Result<Self, FingerprintError> {
        let first = parts.first().ok_or(FingerprintError::NoFiles)?;
        let identities = parts
            .iter()
            .map(|path| PartIdentity::of(path).map_err(|source| read_error(path, source)))
            .collect::<Result<Vec<_>, _>>()?;
        let memo = FingerprintMemo::new(first, memo_folder, &identities);
        if let Some(bytes) = memo.recall() {
            return Ok(Self { bytes, mode: FingerprintMode::Safe });
        }
        let total = identities.iter().fold(0_u64, |sum, identity| sum.saturating_add(identity.bytes()));
        let mut stream = Stream { hash: Sha256::new(), buffer: vec![0; READ_BYTES], done: 0 };
        for (path, identity) in parts.iter().zip(&identities) {
            let mut file = open(path)?;
            stream.feed(path, &mut file, &mut |done| progress(done, total))?;
            if !identity.still_describes(&file) {
                return Err(FingerprintError::Changed { path: path.to_path_buf() });
            }
        }
        let bytes = stream.hash.finalize().into();
        if identities.iter().all(|identity| identity.is_settled(started)) {
            memo.remember(&bytes);
        }
        Ok(Self { bytes, mode: FingerprintMode::Safe })
    }

    /// SHA-256 over the metadata block and the first weight tensor of each part. Two models that differ only in
    /// later tensors get the same fingerprint; `safe` distinguishes them.
    ///
    /// # Errors
    /// When a part cannot be read or is not a GGUF file.
    pub fn gguf_chunked(parts: &[PathBuf]) -> Result<Self, FingerprintError> {
        if parts.is_empty() {
            return Err(FingerprintError::NoFiles);
        }
        let mut stream = Stream { hash: Sha256::new(), buffer: vec![0; READ_BYTES], done: 0 };
        for path in parts {
            let mut file = open(path)?;
            let identity = read_identity(path, &file)?;
            for range in [Some(0..identity.metadata_bytes), identity.first_tensor].into_iter().flatten() {
                file.seek(SeekFrom::Start(range.start)).map_err(|source| read_error(path, source))?;
                let end = stream.done.saturating_add(range.end - range.start);
                stream.feed(path, &mut file.by_ref().take(range.end - range.start), &mut |_| {})?;
                if stream.done != end {
                    return Err(FingerprintError::Changed { path: path.clone() });
                }
            }
        }
        Ok(Self { bytes: stream.hash.finalize().into(), mode: FingerprintMode::GgufChunked })
    }

    /// The caller's own bytes, trusted.
    #[must_use]
    pub const fn fast_unsafe(bytes: [u8; 32]) -> Self {
        Self { bytes, mode: FingerprintMode::FastUnsafe }
    }
}

/// The metadata of a GGUF file that the cache's identity needs.
///
/// # Errors
/// When the file cannot be read or is not a GGUF file; the error names the path.
pub fn identify(path: &Path) -> Result<GgufIdentity, FingerprintError> {
    read_identity(path, &open(path)?)
}

/// The fingerprint with the attached adapters folded in; without any, the fingerprint itself. The order of
/// attaching does not matter.
///
/// # Errors
/// When a scale is not finite or too large to be distinguished from others.
pub fn effective_fingerprint(
    fingerprint: &[u8; 32],
    adapters: &[AdapterIdentity],
) -> Result<[u8; 32], FingerprintError> {
    if adapters.is_empty() {
        return Ok(*fingerprint);
    }
    let mut folded = adapters
        .iter()
        .map(|adapter| fixed_point(adapter).map(|scale| (adapter.sha256, scale)))
        .collect::<Result<Vec<_>, _>>()?;
    folded.sort_unstable();
    let mut hash = Sha256::new();
    hash.update(fingerprint);
    for (sha256, scale) in folded {
        hash.update(sha256);
        hash.update(scale.to_le_bytes());
    }
    Ok(hash.finalize().into())
}

/// All parts of the model that `path` belongs to, in order: `name-00001-of-00003.gguf` stands for three files, any
/// other name for itself.
///
/// # Errors
/// When a part is not there, by name.
pub fn split_parts(path: &Path) -> Result<Vec<PathBuf>, FingerprintError> {
    let parts = split_part_names(path).unwrap_or_else(|| vec![path.to_path_buf()]);
    match parts.iter().find(|part| !part.is_file()) {
        Some(missing) => Err(FingerprintError::MissingPart {
            path: missing.clone(),
            count: u32::try_from(parts.len()).unwrap_or(u32::MAX),
        }),
        None => Ok(parts),
    }
}

/// The names of all parts of the model that `path` belongs to, in order, whether or not they are there; `None` if it is
/// not named like a part.
#[must_use]
pub fn split_part_names(path: &Path) -> Option<Vec<PathBuf>> {
    let (stem, count) = split_name(path)?;
    let part = |number: u32| {
        let name = [stem, format!("-{number:05}-of-{count:05}.gguf").as_bytes()].concat();
        path.with_file_name(OsStr::from_bytes(&name))
    };
    Some((1..=count).map(part).collect())
}

/// The name before the part number, and how many parts there are. File names are bytes, not text.
fn split_name(path: &Path) -> Option<(&[u8], u32)> {
    let name = path.file_name()?.as_bytes().strip_suffix(b".gguf")?;
    let (name, count) = name.split_at_checked(name.len().checked_sub(5)?)?;
    let name = name.strip_suffix(b"-of-")?;
    let (name, number) = name.split_at_checked(name.len().checked_sub(5)?)?;
    let stem = name.strip_suffix(b"-")?;
    let (number, count) = (five_digits(number)?, five_digits(count)?);
    (1..=count).contains(&number).then_some((stem, count))
}

fn five_digits(digits: &[u8]) -> Option<u32> {
    // `parse` alone would take a sign.
    let text = str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok()
}

fn fixed_point(adapter: &AdapterIdentity) -> Result<i64, FingerprintError> {
    const ONE: f64 = 4_294_967_296.0;
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    let scaled = (f64::from(adapter.scale) * ONE).round();
    if !(scaled.is_finite() && scaled.abs() < LIMIT) {
        return Err(FingerprintError::AdapterScale { sha256: adapter.sha256, scale: adapter.scale });
    }
    #[expect(clippy::cast_possible_truncation, reason = "a whole number below 2^63, checked above")]
    Ok(scaled as i64)
}

fn open(path: &Path) -> Result<File, FingerprintError> {
    open_regular(path, Links::Follow).map_err(|source| read_error(path, source))
}

fn read_error(path: &Path, source: io::Error) -> FingerprintError {
    FingerprintError::Read { path: path.to_path_buf(), source }
}

fn read_identity(path: &Path, file: &File) -> Result<GgufIdentity, FingerprintError> {
    GgufIdentity::read(file).map_err(|source| FingerprintError::Gguf { path: path.to_path_buf(), source })
}

/// A hash that files are streamed into.
struct Stream {
    hash: Sha256,
    buffer: Vec<u8>,
    done: u64,
}

impl Stream {
    fn feed(
        &mut self,
        path: &Path,
        reader: &mut impl Read,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), FingerprintError> {
        loop {
            let count = match reader.read(&mut self.buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(read_error(path, source)),
            };
            self.hash.update(self.buffer.get(..count).unwrap_or_default());
            self.done = self.done.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
            progress(self.done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sha256(bytes: &[u8]) -> [u8; 32] {
        Sha256::digest(bytes).into()
    }

    /// A GGUF without keys and with one tensor that fills the rest of the file.
    fn gguf(data: &[u8]) -> (Vec<u8>, usize) {
        let mut file = b"GGUF".to_vec();
        file.extend(3_u32.to_le_bytes());
        file.extend([1_u64.to_le_bytes(), 0_u64.to_le_bytes(), 1_u64.to_le_bytes()].concat());
        file.push(b't');
        file.extend([0_u32.to_le_bytes(), 0_u32.to_le_bytes()].concat());
        file.extend(0_u64.to_le_bytes());
        let metadata = file.len();
        file.resize(metadata.next_multiple_of(32), 0);
        file.extend(data);
        (file, metadata)
    }

    #[test]
    fn safe_is_the_hash_of_all_parts_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let contents = [vec![1_u8; READ_BYTES + 5], vec![2; 9]];
        let paths = [folder.path().join("a"), folder.path().join("b")];
        for (path, content) in paths.iter().zip(&contents) {
            std::fs::write(path, content).unwrap();
        }
        let mut steps = Vec::new();
        let both = Fingerprint::safe(&paths, None, &mut |done, total| steps.push((done, total))).unwrap();
        assert_eq!(both, Fingerprint { bytes: sha256(&contents.concat()), mode: FingerprintMode::Safe });
        let total = (READ_BYTES + 14) as u64;
        assert!(steps.is_sorted() && steps.last() == Some(&(total, total)));
        let swapped = [paths[1].clone(), paths[0].clone()];
        assert_ne!(Fingerprint::safe(&swapped, None, &mut |_, _| {}).unwrap().bytes, both.bytes);
    }

    #[test]
    fn file_that_changes_under_the_reader_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("growing");
        std::fs::write(&path, b"x").unwrap();
        let parts = std::slice::from_ref(&path);
        let error = Fingerprint::safe(parts, None, &mut |_, _| std::fs::write(&path, b"more").unwrap()).unwrap_err();
        assert!(matches!(&error, FingerprintError::Changed { path: named } if *named == path), "{error}");
    }

    #[test]
    fn chunked_covers_metadata_and_first_tensor_but_not_the_padding() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let (file, metadata) = gguf(b"weights");
        std::fs::write(&path, &file).unwrap();
        let expected = sha256(&[&file[..metadata], b"weights"].concat());
        let fingerprint = Fingerprint::gguf_chunked(std::slice::from_ref(&path)).unwrap();
        assert_eq!(fingerprint, Fingerprint { bytes: expected, mode: FingerprintMode::GgufChunked });
        assert_eq!(identify(&path).unwrap().metadata_bytes, metadata as u64);
        std::fs::write(&path, b"GGUF").unwrap();
        let error = Fingerprint::gguf_chunked(std::slice::from_ref(&path)).unwrap_err();
        assert!(matches!(&error, FingerprintError::Gguf { path: named, .. } if *named == path));
    }

    #[test]
    fn unreadable_files_are_named() {
        let missing = PathBuf::from("/nonexistent/model.gguf");
        let error = Fingerprint::safe(std::slice::from_ref(&missing), None, &mut |_, _| {}).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/model.gguf"));
        assert!(matches!(Fingerprint::safe(&[], None, &mut |_, _| {}), Err(FingerprintError::NoFiles)));
        assert!(matches!(Fingerprint::gguf_chunked(&[]), Err(FingerprintError::NoFiles)));
    }

    #[test]
    fn adapters_fold_in_sorted_order_as_the_design_says() {
        let adapter = |byte: u8, scale: f32| AdapterIdentity { sha256: [byte; 32], scale };
        let base = [9; 32];
        assert_eq!(effective_fingerprint(&base, &[]).unwrap(), base);
        let mut flat = base.to_vec();
        for (byte, fixed) in [(1_u8, -(1_i64 << 31)), (1, 1 << 32), (2, 1 << 33)] {
            flat.extend([byte; 32]);
            flat.extend(fixed.to_le_bytes());
        }
        let attached = [adapter(2, 2.0), adapter(1, 1.0), adapter(1, -0.5)];
        let reversed: Vec<_> = attached.iter().rev().copied().collect();
        assert_eq!(effective_fingerprint(&base, &attached).unwrap(), sha256(&flat));
        assert_eq!(effective_fingerprint(&base, &reversed).unwrap(), sha256(&flat));
        for scale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            assert!(effective_fingerprint(&base, &[adapter(1, scale)]).is_err(), "{scale}");
        }
    }

    #[test]
    fn split_parts_are_listed_in_order_and_missed_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let part = |number: u32| folder.path().join(format!("m-{number:05}-of-00003.gguf"));
        for number in [1, 3] {
            std::fs::write(part(number), b"").unwrap();
        }
        let error = split_parts(&part(1)).unwrap_err();
        assert!(matches!(&error, FingerprintError::MissingPart { path, count: 3 } if *path == part(2)), "{error}");
        std::fs::write(part(2), b"").unwrap();
        assert_eq!(split_parts(&part(2)).unwrap(), [part(1), part(2), part(3)], "whichever part was given");
        for name in ["m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00000.gguf", "m-+0001-of-00003.gguf", "00003.gguf"]
        {
            let path = folder.path().join(name);
            assert!(matches!(split_parts(&path), Err(FingerprintError::MissingPart { count: 1, .. })), "{name}");
            std::fs::write(&path, b"").unwrap();
            assert_eq!(split_parts(&path).unwrap(), [path]);
        }
    }
}
