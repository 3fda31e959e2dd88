//! Small texts that a cache keeps beside its rows: what people pinned, and what was evicted when.
//!
//! Kept in the most durable folder of a cache, with the file system of the machine; a cache in memory only keeps none. A note is replaced as a whole, so it is the
//! old one or the new one after a crash. One that cannot be read counts as empty: it must never keep a cache from opening.

use std::io;
use std::path::Path;

use crate::io::fs::{Fs as _, NewFile, StdFs};

/// The name of the file with the pins.
pub(crate) const PINS: &str = "pins";
/// The name of the file with the evictions.
pub(crate) const EVICTIONS: &str = "evictions";
/// More than a note ever has.
const MOST_BYTES: u64 = 4 << 20;

/// The text of a note; empty if there is none.
pub(crate) fn read(folder: &Path, name: &str) -> String {
    let text = || -> io::Result<String> {
        let file = StdFs.open(&folder.join(name))?;
        let length = file.length()?;
        if length > MOST_BYTES {
            return Err(io::Error::other(format!("it has {length} bytes, and {MOST_BYTES} are the most")));
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    text().unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(folder = %folder.display(), name, %error, "a note of the cache cannot be read; it is left out");
        }
        String::new()
    })
}

/// Replaces a note. With `durable`, it is on the device when this returns.
pub(crate) fn write(folder: &Path, name: &str, text: &str, durable: bool) -> io::Result<()> {
    let (path, part) = (folder.join(name), folder.join(format!("{name}.part")));
    match StdFs.remove(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        // Left by a process that ended.
        _ => {}
    }
    StdFs.write_new(&part, &NewFile::of(&[text.as_bytes()]), durable)?;
    StdFs.rename(&part, &path)?;
    if durable { StdFs.sync_folder(folder) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_replaced_as_a_whole_and_a_part_of_an_earlier_process_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path(), PINS), "");
        write(folder.path(), PINS, "one\n", true).unwrap();
        std::fs::write(folder.path().join("pins.part"), "half").unwrap();
        write(folder.path(), PINS, "two\n", false).unwrap();
        assert_eq!(read(folder.path(), PINS), "two\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        std::fs::write(folder.path().join(EVICTIONS), b"\xff\n").unwrap();
        assert_eq!(read(folder.path(), EVICTIONS), "\u{fffd}\n");
    }
}
