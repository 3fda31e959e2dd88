//! The file behind the replayed turns: records are appended by a thread of its own and read at the next start.
//!
//! One line a record, each with its checksum; a line that does not check is skipped, wherever it stands. A turn is used
//! only after its line was written (`kept.rs` waits for it), so that a process which is killed at any moment has never
//! used what the next one does not find. Nothing is synced: a machine that loses its power may lose the last lines. The
//! file is written again when it has grown to several times what is still remembered. Texts of conversations are in it,
//! so only its owner may read it.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use poncho_cache::{Links, open_or_create_private, open_regular};

use super::record::{Name, Record};
use super::shelves::Shelves;

/// Turns that wait for the thread; more are not kept.
const QUEUE: u64 = 1024;
/// How long the end of the server waits for them to be written.
const END_WAIT: Duration = Duration::from_secs(5);
/// Below this size a file is not worth writing again.
const SMALL: u64 = 1 << 20;
/// A file that is this many times larger than what it must hold is written again.
const GROWTH: u64 = 2;
/// A file beyond this size was not written by this code; only its end is read.
const MOST_READ: u64 = 1 << 28;

/// A line on its way into the file.
pub(super) struct Line {
    text: String,
    name: Option<Name>,
    number: u64,
}

impl Line {
    pub(super) fn of(record: &Record) -> Self {
        Self { text: record.encode(), name: record.name(), number: 0 }
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.text.len()
    }
}

/// How far the thread is.
#[derive(Default)]
struct Progress {
    /// The number of the last line that was handed over.
    sent: u64,
    /// The number of the last line that is in the file, or was given up and taken back.
    written: u64,
}

#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    moved: Condvar,
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(super) struct Journal {
    lines: Option<Sender<Line>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<Receiver<()>>,
}

impl Journal {
    /// Reads what the file holds onto the shelves and starts to write behind it.
    pub(super) fn open(path: PathBuf, shelves: Arc<Mutex<Shelves>>) -> Self {
        match load(&path, &shelves) {
            Ok(0) => {}
            Ok(skipped) => {
                tracing::warn!(path = %path.display(), skipped, "damaged records of replayed turns were skipped");
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(path = %path.display(), %error, "kept turns cannot be read"),
        }
        let (lines, waiting) = channel();
        let (ending, ended) = channel::<()>();
        let shared = Arc::<Shared>::default();
        let mut writer = Writer { path, shelves, shared: Arc::clone(&shared), file: None, next: VecDeque::new() };
        let write = move || {
            // Dropped when the thread ends, which is all that is heard of it.
            let _ending = ending;
            writer.run(&waiting);
        };
        let thread = std::thread::Builder::new().name("replay".to_owned()).spawn(write);
        Self { lines: Some(lines), shared, thread: thread.ok(), ended: Mutex::new(ended) }
    }

    /// Hands a line to the thread and returns its number; never waits for it. `None` if too many wait already. Called
    /// with the shelves locked, so that lines come in the order of what happens there.
    pub(super) fn append(&self, line: Line) -> Option<u64> {
        let mut progress = self.shared.progress();
        if progress.sent - progress.written >= QUEUE {
            return None;
        }
        self.send(line, &mut progress)
    }

    /// Notes that a turn must not be put back from here on, however many lines wait.
    pub(super) fn forget(&self, name: Name) {
        tracing::warn!("a turn was not written in time and is forgotten; is the disk of the replay file slow?");
        self.send(Line { name: None, ..Line::of(&Record::Forget(name)) }, &mut self.shared.progress());
    }

    fn send(&self, line: Line, progress: &mut Progress) -> Option<u64> {
        let number = progress.sent + 1;
        self.lines.as_ref()?.send(Line { number, ..line }).ok()?;
        progress.sent = number;
        Some(number)
    }

    /// Whether a line is in the file; one that could not be written is off the shelves by then.
    pub(super) fn is_written(&self, number: u64) -> bool {
        self.shared.progress().written >= number
    }

    /// Waits until that is so, but not longer.
    pub(super) fn wait_for(&self, number: u64, patience: Duration) {
        let waits = |progress: &mut Progress| progress.written < number;
        drop(self.shared.moved.wait_timeout_while(self.shared.progress(), patience, waits));
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.lines = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(END_WAIT) {
            tracing::warn!("the file of kept tool calls is not written; its disk does not answer");
            return;
        }
        if let Some(thread) = self.thread.take() {
            // It has nothing to say; what it could not write it has logged.
            let _ = thread.join();
        }
    }
}

/// Returns how many lines were no records.
fn load(path: &Path, shelves: &Mutex<Shelves>) -> io::Result<usize> {
    let mut file = open_regular(path, Links::Refuse)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MOST_READ)))?;
    let mut bytes = Vec::new();
    file.take(MOST_READ).read_to_end(&mut bytes)?;
    let mut skipped = 0;
    let mut shelves = shelves.lock().unwrap_or_else(PoisonError::into_inner);
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match Record::decode(line) {
            // With its end, as it was counted when it was written.
            Some(record) => shelves.put(record, line.len() + 1, 0),
            None => skipped += 1,
        }
    }
    Ok(skipped)
}

/// The thread's own.
struct Writer {
    path: PathBuf,
    shelves: Arc<Mutex<Shelves>>,
    shared: Arc<Shared>,
    file: Option<File>,
    /// Lines that were taken over and are not written yet.
    next: VecDeque<Line>,
}

impl Writer {
    fn run(&mut self, lines: &Receiver<Line>) {
        while let Some(line) = self.next.pop_front().or_else(|| lines.recv().ok()) {
            match self.write(&line) {
                Ok(()) => {
                    self.advance(line.number);
                    if let Err(error) = self.rewrite_if_grown(lines) {
                        tracing::warn!(path = %self.path.display(), %error, "the file of replayed turns stays large");
                    }
                }
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), %error, "a turn is not kept");
                    self.file = None;
                    if let Some(name) = &line.name {
                        self.shelves().take_back(name, line.number);
                    }
                    self.advance(line.number);
                }
            }
        }
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self, number: u64) {
        self.shared.progress().written = number;
        self.shared.moved.notify_all();
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => open_end(&self.path)?,
        };
        file.write_all(line.text.as_bytes())?;
        self.file = Some(file);
        Ok(())
    }

    fn rewrite_if_grown(&mut self, lines: &Receiver<Line>) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if file.metadata()?.len() <= SMALL.max(GROWTH.saturating_mul(self.shelves().bytes())) {
            return Ok(());
        }
        // Lines are sent with the shelves locked: those that wait now are what the shelves already say.
        let records = {
            let shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
            self.next.extend(lines.try_iter());
            shelves.records()
        };
        write_new(&self.path, &records)?;
        self.file = None;
        if let Some(last) = self.next.back().map(|line| line.number) {
            self.next.clear();
            self.advance(last);
        }
        Ok(())
    }
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
fn write_new(path: &Path, records: &[Record]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut file = open_or_create_private(OpenOptions::new().write(true).truncate(true), &new)?;
    for record in records {
        file.write_all(record.encode().as_bytes())?;
    }
    drop(file);
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::super::record::TextTurn;
    use super::super::record::tests::turn;
    use super::*;

    type Shared = Arc<Mutex<Shelves>>;

    fn empty() -> Shared {
        Arc::new(Mutex::new(Shelves::new(8, 1 << 20, 1 << 20)))
    }

    fn put(journal: &Journal, shelves: &Shared, record: Record) {
        let line = Line::of(&record);
        let bytes = line.bytes();
        let mut shelves = shelves.lock().unwrap();
        let number = journal.append(line).unwrap();
        shelves.put(record, bytes, number);
    }

    fn keep(journal: &Journal, shelves: &Shared, id: &str) {
        put(journal, shelves, Record::Call(Arc::new(turn(id))));
    }

    fn ids(shelves: &Shared) -> Vec<String> {
        let shelves = shelves.lock().unwrap();
        shelves.calls.values().into_iter().map(|kept| kept.turn.ids[0].clone()).collect()
    }

    /// Hardening 5 and 16: others could read a file of an older release, and a FIFO under its name held up the start and the
    /// end of a server.
    #[test]
    fn an_old_journal_is_closed_to_others_and_a_fifo_is_not_waited_for() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        std::fs::write(&path, Record::Call(Arc::new(turn("old"))).encode()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let shelves = empty();
        let journal = Journal::open(path.clone(), Arc::clone(&shelves));
        keep(&journal, &shelves, "new");
        drop(journal);
        assert_eq!(reopened(&path), ["old", "new"]);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        write_new(&path, &[Record::Call(Arc::new(turn("old")))]).unwrap();
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
        let (sender, done) = channel();
        std::thread::spawn(move || {
            let shelves = empty();
            let journal = Journal::open(pipe, Arc::clone(&shelves));
            keep(&journal, &shelves, "one");
            drop(journal);
            sender.send(ids(&shelves).len())
        });
        let kept = done.recv_timeout(Duration::from_secs(120));
        assert_eq!(kept, Ok(0), "it hangs, or remembers what it could not write");
    }

    fn reopened(path: &Path) -> Vec<String> {
        let shelves = empty();
        drop(Journal::open(path.to_owned(), Arc::clone(&shelves)));
        ids(&shelves)
    }

    #[test]
    fn records_outlive_the_process_and_damage_costs_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls");
        assert!(reopened(&path).is_empty());
        let shelves = empty();
        let journal = Journal::open(path.clone(), Arc::clone(&shelves));
        ["1", "2", "3"].iter().for_each(|id| keep(&journal, &shelves, id));
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
        let shelves = empty();
        let journal = Journal::open(path.clone(), Arc::clone(&shelves));
        keep(&journal, &shelves, "4");
        drop(journal);
        assert_eq!(reopened(&path), ["1", "2", "4"], "a torn tail does not swallow what comes after it");
        std::fs::write(&path, [0xff, b'\n', 0, 1, 2]).unwrap();
        assert!(reopened(&path).is_empty());
    }

    /// Hardening 9: texts were in memory only, and the order of uses too, so that a restart left other turns.
    #[test]
    fn a_restart_leaves_the_same_turns_in_the_same_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("turns");
        let shelves = empty();
        let journal = Journal::open(path.clone(), Arc::clone(&shelves));
        let text = |number: u8, owner: u8| {
            Record::Text(Arc::new(TextTurn {
                text: [number; 32],
                tokens: vec![number.into()],
                owner: Some([owner; 16]),
            }))
        };
        // More than there is room for, of two owners, some of them again and some forgotten.
        for number in 0..30 {
            put(&journal, &shelves, text(number, number % 3 / 2));
            keep(&journal, &shelves, &format!("call {}", number % 11));
            if number % 7 == 0 {
                put(&journal, &shelves, Record::Forget(Name::Call(format!("call {}", number % 5))));
            }
        }
        drop(journal);
        let again = empty();
        drop(Journal::open(path, Arc::clone(&again)));
        let (one, two) = (shelves.lock().unwrap().records(), again.lock().unwrap().records());
        assert!(one.len() > 10);
        assert_eq!(one, two);
    }

    #[test]
    fn a_line_can_be_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("turns");
        let shelves = empty();
        let journal = Journal::open(path.clone(), Arc::clone(&shelves));
        keep(&journal, &shelves, "1");
        let line = shelves.lock().unwrap().calls.peek("1").unwrap().line;
        journal.wait_for(line, Duration::from_secs(60));
        assert!(journal.is_written(line));
        assert_eq!(reopened(&path), ["1"], "another process would find it now");
    }

    #[test]
    fn a_file_that_grew_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls");
        let junk = vec![b'x'; usize::try_from(SMALL).unwrap()];
        std::fs::write(&path, &junk).unwrap();
        let shelves = empty();
        let journal = Journal::open(path.clone(), Arc::clone(&shelves));
        ["1", "2", "3"].iter().for_each(|id| keep(&journal, &shelves, id));
        drop(journal);
        assert_eq!(reopened(&path), ["1", "2", "3"]);
        assert!(std::fs::metadata(&path).unwrap().len() < 3000);
    }

    #[test]
    fn a_turn_that_cannot_be_written_is_not_remembered_either() {
        let shelves = empty();
        let journal = Journal::open(PathBuf::from("/nonexistent/folder/calls"), Arc::clone(&shelves));
        keep(&journal, &shelves, "1");
        drop(journal);
        assert!(ids(&shelves).is_empty(), "the next server would not know it");
    }
}
