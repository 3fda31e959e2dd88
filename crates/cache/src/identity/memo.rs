//! A remembered fingerprint: a small text file beside the model that spares reading gigabytes at every start.
//!
//! Used by `Fingerprint::safe` alone. It holds the path and the stamp (size, both times, inode) of every part, the hash,
//! and a checksum over itself. A memo that is damaged or does not describe the files exactly is ignored and written
//! again; failing to read or write one must never fail or change a fingerprint.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use poncho_gguf::file::{FileStamp, Links, open_regular};
use sha2::{Digest, Sha256};

use super::key::{Key, to_hex};
use crate::io::files;

/// Version 1 had no change time, so its memos are not trusted.
const VERSION_LINE: &str = "poncho-fingerprint 2";
/// How the name of a memo ends.
pub(crate) const SUFFIX: &str = ".poncho-fingerprint";
/// Far more than the memo of a model with hundreds of parts; a larger file is not ours.
const MAX_MEMO_BYTES: u64 = 1 << 20;

/// One part of a model and its stamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartIdentity {
    canonical: PathBuf,
    stamp: FileStamp,
}

impl PartIdentity {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let canonical = fs::canonicalize(path)?;
        let stamp = FileStamp::of(&canonical)?;
        Ok(Self { canonical, stamp })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// Whether the opened file is the one that was looked at, unchanged until now.
    pub(super) fn still_describes(&self, file: &File) -> bool {
        FileStamp::of_file(file).is_ok_and(|stamp| stamp == self.stamp)
    }

    /// Whether any later change would show in the stamp.
    pub(super) fn is_settled(&self, at: SystemTime) -> bool {
        self.stamp.is_settled(at)
    }
}

/// The memo of one model: its possible places, and the description of the files that it must contain to be trusted.
#[derive(Debug, Clone)]
pub(super) struct FingerprintMemo {
    /// Places to look and to write, best first.
    places: Vec<PathBuf>,
    /// The memo's text up to the hash, for the files as they are now.
    description: String,
}

impl FingerprintMemo {
    pub(super) fn new(first_part: &Path, folder: Option<&Path>, parts: &[PartIdentity]) -> Self {
        let name = first_part.file_name().unwrap_or_default();
        let with_suffix = |mut name: OsString| {
            name.push(SUFFIX);
            name
        };
        let mut places = vec![first_part.with_file_name(with_suffix(name.to_owned()))];
        if let Some((folder, first)) = folder.zip(parts.first()) {
            // In a shared folder two models may have the same name; the path's hash distinguishes them.
            let mut name = name.to_owned();
            let path_hash = to_hex(&Sha256::digest(first.canonical.as_os_str().as_bytes()));
            name.push(format!(".{}", path_hash.get(..16).unwrap_or_default()));
            places.push(folder.join(with_suffix(name)));
        }
        let mut description = format!("{VERSION_LINE}\n");
        for PartIdentity { canonical, stamp } in parts {
            let FileStamp { bytes, modified_seconds, modified_nanos, changed_seconds, changed_nanos, inode } = stamp;
            // Escaped, because a path may hold a line break or bytes that are not text.
            let path = canonical.as_os_str().as_bytes().escape_ascii();
            // Writing to a string cannot fail.
            let _ = writeln!(
                description,
                "part {bytes} {modified_seconds}.{modified_nanos:09} {changed_seconds}.{changed_nanos:09} {inode} {path}"
            );
        }
        Self { places, description }
    }

    /// The remembered hash, if a memo describes exactly these files.
    pub(super) fn recall(&self) -> Option<[u8; 32]> {
        self.places.iter().find_map(|place| self.parse(&read_bounded(place)?))
    }

    /// Writes the memo to the first place that takes it.
    pub(super) fn remember(&self, hash: &[u8; 32]) {
        let text = self.text(hash);
        for place in &self.places {
            match write_whole(place, text.as_bytes()) {
                Ok(()) => return,
                Err(error) => tracing::debug!(path = %place.display(), %error, "fingerprint memo not written"),
            }
        }
        tracing::info!(
            path = ?self.places.first(),
            "the fingerprint cannot be remembered: the model is read again at the next start"
        );
    }

    fn text(&self, hash: &[u8; 32]) -> String {
        let body = format!("{}sha256 {}\n", self.description, to_hex(hash));
        let checksum = to_hex(&Sha256::digest(body.as_bytes()));
        format!("{body}check {checksum}\n")
    }

    /// The description is known, so nothing in the file needs to be understood: it is this text or another one.
    fn parse(&self, text: &str) -> Option<[u8; 32]> {
        let line = text.strip_prefix(self.description.as_str())?.lines().next()?;
        let hash = *Key::from_hex(line.strip_prefix("sha256 ")?)?.as_bytes();
        (self.text(&hash) == text).then_some(hash)
    }
}

fn read_bounded(path: &Path) -> Option<String> {
    let mut text = String::new();
    open_regular(path, Links::Refuse).ok()?.take(MAX_MEMO_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Writes beside and renames, so that nobody reads half a memo. Not synced: after a crash the checksum finds a torn
/// one, and the price is one more reading of the model.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static WRITERS: AtomicU64 = AtomicU64::new(0);
    let writer = WRITERS.fetch_add(1, Ordering::Relaxed);
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}-{writer}.tmp", std::process::id()));
    // A leftover of a crashed process that had the same number, as the first process in a container always has.
    let _ = fs::remove_file(&temporary);
    let written = files::create_private(Path::new(&temporary))
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::time::Duration;

    use super::*;
    use crate::identity::fingerprint::Fingerprint;

    /// Long enough after every write of these tests that a file counts as settled.
    fn later() -> SystemTime {
        SystemTime::now() + Duration::from_secs(10)
    }

    struct Model {
        folder: tempfile::TempDir,
        path: PathBuf,
    }

    impl Model {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("model.gguf");
            let model = Self { folder, path };
            model.write(b"weights", 100);
            model
        }

        /// Writes in place and sets a modification time long ago, this number of nanoseconds after a fixed one.
        fn write(&self, content: &[u8], nanos: u64) {
            fs::write(&self.path, content).unwrap();
            let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000) + Duration::from_nanos(nanos);
            OpenOptions::new().write(true).open(&self.path).unwrap().set_modified(modified).unwrap();
        }

        /// The fingerprint, and whether the file was read for it.
        fn fingerprint(&self, memo_folder: Option<&Path>) -> ([u8; 32], bool) {
            let mut read = false;
            let paths = std::slice::from_ref(&self.path);
            let fingerprint = Fingerprint::safe_at(paths, memo_folder, &mut |_, _| read = true, later()).unwrap();
            (fingerprint.bytes, read)
        }

        fn memo(&self) -> PathBuf {
            self.folder.path().join("model.gguf.poncho-fingerprint")
        }
    }

    fn sha256(bytes: &[u8]) -> [u8; 32] {
        Sha256::digest(bytes).into()
    }

    /// Hardening 5: a memo names the path of a model.
    #[test]
    fn a_memo_is_readable_by_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let model = Model::new();
        model.fingerprint(None);
        assert_eq!(fs::metadata(model.memo()).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn second_start_does_not_read_the_file() {
        let model = Model::new();
        assert_eq!(model.fingerprint(None), (sha256(b"weights"), true));
        assert_eq!(model.fingerprint(None), (sha256(b"weights"), false));
        let names = fs::read_dir(model.folder.path()).unwrap().count();
        assert_eq!(names, 2, "the model, its memo, and no leftover");
    }

    #[test]
    fn changed_file_is_read_again_and_remembered_anew() {
        let model = Model::new();
        model.fingerprint(None);
        model.write(b"WEIGHTS", 101);
        assert_eq!(model.fingerprint(None), (sha256(b"WEIGHTS"), true), "same size, a nanosecond later");
        assert_eq!(model.fingerprint(None), (sha256(b"WEIGHTS"), false));
        let other = model.folder.path().join("other");
        fs::write(&other, b"replace").unwrap();
        let modified = fs::metadata(&model.path).unwrap().modified().unwrap();
        OpenOptions::new().write(true).open(&other).unwrap().set_modified(modified).unwrap();
        fs::rename(&other, &model.path).unwrap();
        assert_eq!(model.fingerprint(None), (sha256(b"replace"), true), "same size and time, other inode");
    }

    #[test]
    fn memo_of_another_file_is_not_believed() {
        let model = Model::new();
        model.fingerprint(None);
        let moved = model.folder.path().join("moved.gguf");
        fs::rename(&model.path, &moved).unwrap();
        fs::rename(model.memo(), model.folder.path().join("moved.gguf.poncho-fingerprint")).unwrap();
        let moved = Model { path: moved, ..model };
        assert_eq!(moved.fingerprint(None), (sha256(b"weights"), true));
    }

    #[test]
    fn every_damage_to_the_memo_is_noticed_and_repaired() {
        let model = Model::new();
        model.fingerprint(None);
        let good = fs::read(model.memo()).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(model.memo(), &bad).unwrap();
            assert_eq!(model.fingerprint(None), (sha256(b"weights"), true), "byte {at} flipped");
            assert_eq!(fs::read(model.memo()).unwrap(), good);
            fs::write(model.memo(), &good[..at]).unwrap();
            assert_eq!(model.fingerprint(None), (sha256(b"weights"), true), "cut at {at}");
        }
        fs::write(model.memo(), [good.as_slice(), b"x"].concat()).unwrap();
        assert!(model.fingerprint(None).1, "something appended");
    }

    #[test]
    fn another_folder_serves_where_the_models_own_cannot_be_written() {
        let model = Model::new();
        let elsewhere = tempfile::tempdir().unwrap();
        // A folder in the memo's place refuses the rename for every user, also for root.
        fs::create_dir(model.memo()).unwrap();
        assert!(model.fingerprint(None).1 && model.fingerprint(None).1, "without a second folder: read every time");
        assert!(model.fingerprint(Some(elsewhere.path())).1);
        assert_eq!(model.fingerprint(Some(elsewhere.path())), (sha256(b"weights"), false));
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(model.folder.path()).unwrap().count(), 2, "no leftover beside the model");
    }

    #[test]
    fn file_that_may_still_be_changing_is_not_remembered() {
        let model = Model::new();
        // An old modification time alone does not help: the change time is fresh.
        model.write(b"fresh", 0);
        let paths = std::slice::from_ref(&model.path);
        Fingerprint::safe(paths, None, &mut |_, _| {}).unwrap();
        assert!(!model.memo().exists());
        let identity = PartIdentity::of(&model.path).unwrap();
        assert!(!identity.is_settled(SystemTime::now()) && identity.is_settled(later()));
    }

    /// Hardening 4: a file that was overwritten in place and got its old modification time back was taken for the one
    /// that had been hashed.
    #[test]
    fn a_backdated_file_is_read_again() {
        let model = Model::new();
        assert_eq!(model.fingerprint(None), (sha256(b"weights"), true));
        let hashed = FileStamp::of(&model.path).unwrap();
        // The change time has ticks of some milliseconds; the write that counts is in a later one.
        while FileStamp::of(&model.path).unwrap().changed_nanos == hashed.changed_nanos {
            model.write(b"WEIGHTS", 100);
        }
        let now = FileStamp::of(&model.path).unwrap();
        assert_eq!((now.modified_nanos, now.bytes, now.inode), (hashed.modified_nanos, hashed.bytes, hashed.inode));
        assert_eq!(model.fingerprint(None), (sha256(b"WEIGHTS"), true));
    }

    #[test]
    fn a_memo_without_change_times_is_not_believed() {
        let model = Model::new();
        model.fingerprint(None);
        let old = fs::read_to_string(model.memo()).unwrap().replace("fingerprint 2", "fingerprint 1");
        let (body, _) = old.split_once("check ").unwrap();
        fs::write(model.memo(), format!("{body}check {}\n", to_hex(&Sha256::digest(body.as_bytes())))).unwrap();
        assert!(model.fingerprint(None).1);
    }

    #[test]
    fn all_parts_are_described() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().join("line\nbreak"), folder.path().join("b")];
        for path in &paths {
            fs::write(path, b"x").unwrap();
        }
        let identities = paths.each_ref().map(|path| PartIdentity::of(path).unwrap());
        let memo = FingerprintMemo::new(&paths[0], None, &identities);
        assert_eq!(memo.parse(&memo.text(&[5; 32])), Some([5; 32]));
        let shorter = FingerprintMemo::new(&paths[0], None, &identities[..1]);
        assert_eq!(shorter.parse(&memo.text(&[5; 32])), None);
        assert_eq!(memo.parse(&shorter.text(&[5; 32])), None);
        assert_eq!(memo.description.lines().count(), 3);
    }
}
