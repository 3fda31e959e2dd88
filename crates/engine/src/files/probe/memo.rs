//! Which files passed a trial before: one line of hexadecimal digits for each in a small file.
//!
//! Read and written by the prober. A line stands for the program that tried, its settings, and the files by path, size,
//! times and inode: every change of a file changes its ctime. Reading and writing never fail a load; a file
//! that cannot be read or written only means that models are tried again.

use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use poncho_cache::to_hex;
use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};

use super::trial::Trial;

/// Lines that are kept, the newest ones.
const MAX_LINES: usize = 1000;
/// Bytes of a line: the digits and its end.
const LINE: usize = 65;

/// The line of a trial; `None` if a file cannot be looked at.
pub(super) fn identity(program: &Path, trial: &Trial) -> Option<String> {
    let mut hash = Sha256::new();
    let mut put = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    put(b"poncho probe 1");
    // A program that was replaced is another build.
    let program = std::fs::metadata(program).ok()?;
    put(&program.len().to_le_bytes());
    put(&program.mtime().to_le_bytes());
    put(&program.mtime_nsec().to_le_bytes());
    put(trial.settings_text().as_bytes());
    for path in &trial.files {
        let path = path.canonicalize().ok()?;
        let file = std::fs::metadata(&path).ok()?;
        put(path.as_os_str().as_bytes());
        for number in [file.dev(), file.ino(), file.len()] {
            put(&number.to_le_bytes());
        }
        for number in [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()] {
            put(&number.to_le_bytes());
        }
    }
    Some(to_hex(&hash.finalize()))
}

/// Whether the trial passed before.
pub(super) fn contains(memo: Option<&Path>, identity: Option<&str>) -> bool {
    let (Some(memo), Some(identity)) = (memo, identity) else { return false };
    read(memo).lines().any(|line| line == identity)
}

/// Remembers that the trial passed.
pub(super) fn add(memo: Option<&Path>, identity: Option<&str>) {
    let (Some(memo), Some(identity)) = (memo, identity) else { return };
    let old = read(memo);
    let mut lines: Vec<&str> = old.lines().filter(|line| line.len() == identity.len() && *line != identity).collect();
    lines.push(identity);
    let kept = lines.get(lines.len().saturating_sub(MAX_LINES)..).unwrap_or_default();
    if let Err(error) = write(memo, &format!("{}\n", kept.join("\n"))) {
        tracing::debug!(memo = %memo.display(), %error, "it was not remembered that a model passed its trial");
    }
}

/// What a regular file holds; nothing if it is something else or too long.
fn read(memo: &Path) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(memo, flags, Mode::empty()) else { return String::new() };
    let file = File::from(file);
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return String::new();
    }
    let mut text = String::new();
    let limit = (2 * MAX_LINES * LINE) as u64;
    match file.take(limit).read_to_string(&mut text) {
        Ok(_) => text,
        Err(_) => String::new(),
    }
}

fn write(memo: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = memo.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut name = memo.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = Path::new(&name);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(temporary, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(temporary, memo));
    if written.is_err() {
        let _ = std::fs::remove_file(temporary);
    }
    written
}
