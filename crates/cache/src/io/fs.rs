//! The few file operations that the cache needs, behind a trait, and their real implementation.
//!
//! `StdFs` is what production uses; tests put a faulty or an in-memory file system in its place
//! (`testing`). Called by publishing, recovery, loading and eviction. Nothing here knows the file format,
//! and nothing here maps a file into memory: a truncation from outside would be a SIGBUS.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::io::files::{self, Links};

/// One name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name alone. Names that are not UTF-8 are not ours and are left out of listings.
    pub name: String,
    /// Whether it is a folder.
    pub is_folder: bool,
}

/// An open file for reading.
pub trait ReadFile: Send {
    /// Its length in bytes.
    ///
    /// # Errors
    /// Any error of the file system.
    fn length(&self) -> io::Result<u64>;

    /// Whether most of it was never written: far fewer bytes are stored than it is long, and there is a hole in it.
    fn is_hollow(&self) -> bool {
        false
    }

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before; else any error of the file system.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

/// The content of a new file: a head, and pieces that follow it.
pub struct NewFile<'a> {
    body: &'a [&'a [u8]],
    head_length: usize,
    head: &'a dyn Fn() -> io::Result<&'a [u8]>,
}

impl<'a> NewFile<'a> {
    /// A file without a head.
    #[must_use]
    pub const fn of(body: &'a [&'a [u8]]) -> Self {
        Self { body, head_length: 0, head: &|| Ok(&[]) }
    }

    /// A file with a head of `length` bytes. The head is made while the body is on its way to the device, so that it can
    /// contain a checksum of the body without delaying the write.
    #[must_use]
    pub const fn with_head(body: &'a [&'a [u8]], length: usize, head: &'a dyn Fn() -> io::Result<&'a [u8]>) -> Self {
        Self { body, head_length: length, head }
    }

    /// How many bytes the head has.
    #[must_use]
    pub const fn head_length(&self) -> usize {
        self.head_length
    }

    /// The pieces that follow the head.
    #[must_use]
    pub const fn body(&self) -> &'a [&'a [u8]] {
        self.body
    }

    /// The head.
    ///
    /// # Errors
    /// The error of its maker, or a head of another length than was promised.
    pub fn head(&self) -> io::Result<&'a [u8]> {
        let head = (self.head)()?;
        if head.len() != self.head_length {
            let message = format!("a head of {} bytes was promised, and has {}", self.head_length, head.len());
            return Err(io::Error::other(message));
        }
        Ok(head)
    }

    /// All bytes of the file.
    ///
    /// # Errors
    /// As [`NewFile::head`].
    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        Ok([self.head()?, &self.body.concat()].concat())
    }
}

/// The file operations of the cache. Every method names its path, so that tests can aim a fault.
pub trait Fs: Send + Sync + Debug {
    /// Creates a folder and its parents, for their owner alone; an existing one is fine.
    ///
    /// # Errors
    /// Any error of the file system.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Creates `path` exclusively and for its owner alone, writes everything without joining it, and with `durable` waits until the data is
    /// on the device.
    ///
    /// # Errors
    /// `AlreadyExists` if the file is there; else any error of the file system or of the head. A part of the file may
    /// then be on the disk: the caller removes it.
    fn write_new(&self, path: &Path, file: &NewFile<'_>, durable: bool) -> io::Result<()>;

    /// Gives the file `from` the second name `to`, atomically, only if `to` is absent.
    ///
    /// # Errors
    /// `AlreadyExists` if `to` is there; else any error of the file system.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Any error of the file system.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Renames a file.
    ///
    /// # Errors
    /// Any error of the file system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// Any error of the file system.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;

    /// Opens a file for reading, and only a regular file. Never waits for the other end of a FIFO.
    ///
    /// # Errors
    /// Any error of the file system, [`NotRegular`](files::NotRegular) included.
    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>>;

    /// Overwrites bytes in place.
    ///
    /// # Errors
    /// Any error of the file system.
    fn write_at(&self, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// The names in a folder.
    ///
    /// # Errors
    /// Any error of the file system.
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>>;

    /// Whether folders here can be locked against other processes. A file system in memory has none.
    fn has_locks(&self) -> bool {
        true
    }
}

/// Bytes of a block, as the kernel counts what a file takes.
const BLOCK: u64 = 512;
/// A hollow file below this length costs nobody anything.
const WORTH_A_LOOK: u64 = 64 << 20;
/// A file that stores less than this part of its length was not written by us: states are not that full of zeros.
const HOLLOW: u64 = 8;

/// The file system of the operating system.
#[derive(Debug, Default, Clone, Copy)]
pub struct StdFs;

impl ReadFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn is_hollow(&self) -> bool {
        let Ok(metadata) = self.metadata() else { return false };
        let stored = metadata.blocks().saturating_mul(BLOCK);
        // A file system that compresses stores little too, and one that writes late does at first; both know of no hole.
        metadata.len() >= WORTH_A_LOOK
            && stored < metadata.len() / HOLLOW
            && rustix::fs::seek(self, rustix::fs::SeekFrom::Hole(0)).is_ok_and(|hole| hole < metadata.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }
}

impl Fs for StdFs {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        files::create_private_folder(path)
    }

    fn write_new(&self, path: &Path, new: &NewFile<'_>, durable: bool) -> io::Result<()> {
        let mut file = files::create_private(path)?;
        let length: usize = new.body.iter().map(|piece| piece.len()).sum();
        if durable && length >= WRITE_BEHIND / 2 {
            return write_behind(&mut file, new);
        }
        write_all_pieces(&mut file, &[&[new.head()?], new.body].concat())?;
        if durable { file.sync_data() } else { Ok(()) }
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        files::open_folder(path, Links::Follow)?.sync_all()
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        Ok(Box::new(files::open_regular(path, Links::Refuse)?))
    }

    fn write_at(&self, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        files::open_regular_with(OpenOptions::new().write(true), path, Links::Refuse)?.write_all_at(bytes, offset)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let is_folder = entry.file_type()?.is_dir();
            if let Ok(name) = entry.file_name().into_string() {
                entries.push(Entry { name, is_folder });
            }
        }
        Ok(entries)
    }
}

/// Bytes after which the device is set to work while the rest is still being copied. Enough for it to write in long
/// runs; a row of 64 MiB was durable a quarter sooner than with all of its writing left to the sync.
const WRITE_BEHIND: usize = 8 << 20;
/// What is written once more after the device was set to work has to be written out twice.
const PAGE: u64 = 4096;

/// Writes the body, then the head before it, and waits until all of it is on the device. The device is set to work meanwhile, which
/// pays where it is worth more than one request.
fn write_behind(file: &mut File, new: &NewFile<'_>) -> io::Result<()> {
    let head_length = new.head_length as u64;
    file.seek(SeekFrom::Start(head_length))?;
    let mut run: Vec<&[u8]> = Vec::new();
    let mut behind = head_length.next_multiple_of(PAGE);
    let (mut written, mut length) = (head_length, 0_usize);
    let mut steps = new.body.iter().flat_map(|piece| piece.chunks(WRITE_BEHIND)).peekable();
    while let Some(step) = steps.next() {
        run.push(step);
        length += step.len();
        if length >= WRITE_BEHIND || steps.peek().is_none() {
            write_all_pieces(file, &run)?;
            written += length as u64;
            start_writing_out(file, behind, written.saturating_sub(behind));
            behind = behind.max(written);
            length = 0;
            run.clear();
        }
    }
    file.write_all_at(new.head()?, 0)?;
    file.sync_data()
}

/// Asks the kernel to begin writing a range of a file out. Only speed depends on it, so nothing is said if it refuses.
#[cfg(target_os = "linux")]
fn start_writing_out(file: &File, offset: u64, length: u64) {
    // The one call that does this without waiting and without `unsafe`: on Linux this advice starts the writing, and
    // lets go of pages only once they are clean, which those just written are not.
    let _ = rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(length), rustix::fs::Advice::DontNeed);
}

/// Other systems begin on their own, or with the sync.
#[cfg(not(target_os = "linux"))]
fn start_writing_out(_file: &File, _offset: u64, _length: u64) {}

/// Writes every piece in order, however little the writer takes at a time.
pub(crate) fn write_all_pieces(writer: &mut impl Write, pieces: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> =
        pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| IoSlice::new(piece)).collect();
    let mut rest = slices.as_mut_slice();
    while !rest.is_empty() {
        match writer.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `step` bytes a call and is interrupted every third call.
    struct Dribble {
        taken: Vec<u8>,
        step: usize,
        calls: usize,
    }

    impl Write for Dribble {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            if self.calls.is_multiple_of(3) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let count = bytes.len().min(self.step);
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn short_and_interrupted_writes_lose_nothing() {
        for step in [1, 2, 3, 7, 100] {
            let mut writer = Dribble { taken: Vec::new(), step, calls: 0 };
            write_all_pieces(&mut writer, &[b"abc", b"", b"defgh", b"i"]).unwrap();
            assert_eq!(writer.taken, b"abcdefghi");
        }
    }

    #[test]
    fn a_writer_that_takes_nothing_is_an_error() {
        let mut writer = Dribble { taken: Vec::new(), step: 0, calls: 0 };
        assert_eq!(write_all_pieces(&mut writer, &[b"abc"]).unwrap_err().kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn long_writes_arrive_whole_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..WRITE_BEHIND * 2 + 777).map(|at| at.to_le_bytes()[at % 3]).collect();
        for cuts in [vec![], vec![5, 5, 12], vec![1, WRITE_BEHIND, WRITE_BEHIND + 1], vec![700, WRITE_BEHIND * 2 + 3]] {
            let mut pieces = Vec::new();
            let mut start = 0;
            for end in cuts.into_iter().chain([bytes.len()]) {
                pieces.push(&bytes[start..end]);
                start = end;
            }
            let path = folder.path().join(format!("{}-{start}", pieces[0].len()));
            StdFs.write_new(&path, &NewFile::of(&pieces), true).unwrap();
            assert!(fs::read(&path).unwrap() == bytes, "{} pieces", pieces.len());
            let (head, body) = pieces.split_first().unwrap();
            for durable in [true, false] {
                let path = path.with_extension(durable.to_string());
                let make = || Ok(*head);
                StdFs.write_new(&path, &NewFile::with_head(body, head.len(), &make), durable).unwrap();
                assert!(fs::read(&path).unwrap() == bytes, "a head of {}", head.len());
            }
        }
    }

    #[test]
    fn a_head_of_another_length_than_promised_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let large = vec![7; WRITE_BEHIND / 2];
        for (number, body) in [&b"body"[..], &large].into_iter().enumerate() {
            for durable in [true, false] {
                let make = || Ok(&[1; 3][..]);
                let pieces = [body];
                let file = NewFile::with_head(&pieces, 4, &make);
                let path = folder.path().join(format!("{number}-{durable}"));
                let error = StdFs.write_new(&path, &file, durable).unwrap_err();
                assert!(error.to_string().contains("4 bytes was promised, and has 3"), "{error}");
                let head = fs::read(&path).unwrap().into_iter().take(4).collect::<Vec<u8>>();
                assert!(head.iter().all(|byte| *byte == 0), "no part of a wrong head is written: {head:?}");
            }
        }
    }

    #[test]
    fn a_new_file_is_exclusive_and_a_link_never_replaces() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        StdFs.write_new(&one, &NewFile::of(&[b"1"]), true).unwrap();
        StdFs.write_new(&two, &NewFile::of(&[b"2"]), false).unwrap();
        assert_eq!(
            StdFs.write_new(&one, &NewFile::of(&[b"x"]), true).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(StdFs.link(&one, &two).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(two).unwrap(), b"2");
    }
}
