//! The file behind the replayed calls: records are appended by a thread of its own and read at the next start.
//!
//! One line a record, each with its checksum; a line that does not check is skipped, wherever it stands. Nothing is
//! synced: a crash may lose the last lines, which costs a cache hit and never an answer. The file is written anew when
//! it has grown to several times what is still remembered. Texts of conversations are in it, so only its owner may read it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use poncho_cache::files::{Links, open_or_create_private, open_regular};

use super::Calls;
use super::record::CallTurn;

/// Records that wait for the thread; more are remembered in memory only.
const QUEUE: usize = 1024;
/// Below this size a file is not worth writing anew.
const SMALL: u64 = 1 << 20;
/// A file that is so many times larger than what it must hold is written anew.
const GROWTH: u64 = 2;
/// A file beyond this size was not written by this code; only its end is read.
const MOST_READ: u64 = 1 << 28;

/// See the module.
pub(super) struct Journal {
    lines: Option<SyncSender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Journal {
    /// Reads what the file holds into `calls` and starts to write behind it.
    pub(super) fn open(path: PathBuf, calls: Calls) -> Self {
        match load(&path, &calls) {
            Ok(0) => {}
            Ok(skipped) => {
                tracing::warn!(path = %path.display(), skipped, "damaged records of tool calls were skipped")
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(path = %path.display(), %error, "kept tool calls cannot be read"),
        }
        let (lines, waiting) = sync_channel(QUEUE);
        let thread =
            std::thread::Builder::new().name("replay".to_owned()).spawn(move || write_all(&path, &calls, &waiting));
        Self { lines: Some(lines), thread: thread.ok() }
    }

    /// Hands a line to the thread; never waits for it.
    pub(super) fn append(&self, line: String) {
        if self.lines.as_ref().is_some_and(|lines| lines.try_send(line).is_err()) {
            tracing::debug!("a tool call is kept in memory only");
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to say; what it could not write it has logged.
            let _ = thread.join();
        }
    }
}

/// Returns how many lines were no records.
fn load(path: &Path, calls: &Calls) -> io::Result<usize> {
    let mut file = open_regular(path, Links::Refuse)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MOST_READ)))?;
    let mut bytes = Vec::new();
    file.take(MOST_READ).read_to_end(&mut bytes)?;
    let mut skipped = 0;
    let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match CallTurn::decode(line) {
            Some(turn) => {
                let id = turn.key().unwrap_or_default();
                calls.put(id, Arc::new(turn), line.len());
            }
            None => skipped += 1,
        }
    }
    Ok(skipped)
}

fn write_all(path: &Path, calls: &Calls, lines: &Receiver<String>) {
    let mut file = None;
    while let Ok(line) = lines.recv() {
        if let Err(error) = write_line(path, calls, &mut file, &line) {
            tracing::warn!(path = %path.display(), %error, "a tool call was not kept on disk");
            file = None;
        }
    }
}

fn write_line(path: &Path, calls: &Calls, kept: &mut Option<File>, line: &str) -> io::Result<()> {
    let mut file = match kept.take() {
        Some(file) => file,
        None => open_end(path)?,
    };
    file.write_all(line.as_bytes())?;
    let limit = {
        let calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
        SMALL.max(GROWTH.saturating_mul(calls.bytes() as u64))
    };
    if file.metadata()?.len() > limit {
        rewrite(path, calls)?;
        file = open_end(path)?;
    }
    *kept = Some(file);
    Ok(())
}

/// The file, ready for the next line also if the last one was torn.
fn open_end(path: &Path) -> io::Result<File> {
    let mut file = open_or_create_private(OpenOptions::new().read(true).append(true), path)?;
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last != [b'\n'] {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

/// Writes only what is remembered; the old file stays until the new one is whole.
fn rewrite(path: &Path, calls: &Calls) -> io::Result<()> {
    let kept = calls.lock().unwrap_or_else(PoisonError::into_inner).values();
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut file = open_or_create_private(OpenOptions::new().write(true).truncate(true), &new)?;
    for turn in kept {
        file.write_all(turn.encode().as_bytes())?;
    }
    drop(file);
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::lru::Lru;
    use super::super::record::tests::turn;
    use super::*;

    fn empty() -> Calls {
        Arc::new(Mutex::new(Lru::new(100, 1 << 20)))
    }

    fn keep(journal: &Journal, calls: &Calls, id: &str) {
        let turn = turn(id);
        let line = turn.encode();
        calls.lock().unwrap().put(id.to_owned(), Arc::new(turn), line.len());
        journal.append(line);
    }

    /// Hardening 5 and 16: others could read a file of an older release, and a FIFO under its name held up the start and the
    /// end of a server.
    #[test]
    fn an_old_journal_is_closed_to_others_and_a_fifo_is_not_waited_for() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        std::fs::write(&path, turn("old").encode()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let calls = empty();
        let journal = Journal::open(path.clone(), Arc::clone(&calls));
        keep(&journal, &calls, "new");
        drop(journal);
        assert_eq!(reopened(&path), ["old", "new"]);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        rewrite(&path, &calls).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);

        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let (sender, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let calls = empty();
            let journal = Journal::open(pipe, Arc::clone(&calls));
            keep(&journal, &calls, "one");
            drop(journal);
            sender.send(calls.lock().unwrap().values().len())
        });
        let kept = done.recv_timeout(std::time::Duration::from_secs(120));
        assert_eq!(kept, Ok(1), "it hangs, or does not remember");
    }

    fn reopened(path: &Path) -> Vec<String> {
        let calls = empty();
        drop(Journal::open(path.to_owned(), Arc::clone(&calls)));
        let values = calls.lock().unwrap().values();
        values.iter().map(|turn| turn.ids[0].clone()).collect()
    }

    #[test]
    fn records_outlive_the_process_and_damage_costs_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls");
        assert!(reopened(&path).is_empty());
        let calls = empty();
        let journal = Journal::open(path.clone(), Arc::clone(&calls));
        ["1", "2", "3"].iter().for_each(|id| keep(&journal, &calls, id));
        drop(journal);
        assert_eq!(reopened(&path), ["1", "2", "3"]);
        let whole = std::fs::read(&path).unwrap();
        let line = whole.len() / 3;
        let mut damaged = whole.clone();
        damaged[line + line / 2] ^= 0x20;
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(reopened(&path), ["1", "3"]);
        std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        assert_eq!(reopened(&path), ["1", "2"], "the tail is torn");
        let calls = empty();
        let journal = Journal::open(path.clone(), Arc::clone(&calls));
        keep(&journal, &calls, "4");
        drop(journal);
        assert_eq!(reopened(&path), ["1", "2", "4"], "a torn tail does not swallow what comes after it");
        std::fs::write(&path, [0xff, b'\n', 0, 1, 2]).unwrap();
        assert!(reopened(&path).is_empty());
    }

    #[test]
    fn a_file_that_grew_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls");
        let junk = vec![b'x'; usize::try_from(SMALL).unwrap()];
        std::fs::write(&path, &junk).unwrap();
        let calls = empty();
        let journal = Journal::open(path.clone(), Arc::clone(&calls));
        keep(&journal, &calls, "1");
        drop(journal);
        assert_eq!(reopened(&path), ["1"]);
        assert!(std::fs::metadata(&path).unwrap().len() < 1000);
    }

    #[test]
    fn a_place_that_cannot_be_written_costs_nothing_else() {
        let calls = empty();
        let journal = Journal::open(PathBuf::from("/nonexistent/folder/calls"), Arc::clone(&calls));
        keep(&journal, &calls, "1");
        drop(journal);
        assert_eq!(calls.lock().unwrap().values().len(), 1);
    }
}
