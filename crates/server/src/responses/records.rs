//! Records of past requests that asked for diagnostics: their fingerprints by the id of the reply, in memory and in a file.
//!
//! Held by the app's state. The file outlives the server, so that a request can be compared with one before a restart. It
//! is written by a thread of its own; a request must never wait for it, and a fault of it never reaches a client.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use super::fingerprint::Fingerprint;

/// Records that are kept; the oldest go first.
const MOST: usize = 4096;
/// Longer lines are not ours.
const LONGEST_LINE: usize = 4096;

/// A past request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    /// The place of the key that asked, if the server has keys.
    pub(crate) owner: Option<u64>,
    /// Tokens of its prompt.
    pub(crate) tokens: usize,
    pub(crate) fingerprint: Fingerprint,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Records {
    kept: Mutex<Kept>,
    writer: Mutex<Option<Writer>>,
}

#[derive(Default)]
struct Kept {
    by_id: HashMap<String, Arc<Record>>,
    /// In the order in which they came.
    order: VecDeque<String>,
}

struct Writer {
    lines: Option<Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Records {
    /// With what an earlier server wrote to this file.
    pub(crate) fn open(path: Option<&Path>) -> Self {
        let records = Self::default();
        let Some(path) = path else { return records };
        for record in read(path) {
            records.keep(record);
        }
        match Writer::start(path.to_owned(), &records.lines()) {
            Ok(writer) => *records.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(writer),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "records for cache diagnostics are kept in memory only");
            }
        }
        records
    }

    /// Keeps a record.
    pub(crate) fn put(&self, record: Record) {
        let line = serde_json::to_string(&record).unwrap_or_default();
        self.keep(record);
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lines) = writer.as_ref().and_then(|writer| writer.lines.as_ref()) {
            // A thread that is gone has logged why.
            let _ = lines.send(line);
        }
    }

    /// The record of an owner's own request.
    pub(crate) fn get(&self, owner: Option<u64>, id: &str) -> Option<Arc<Record>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.by_id.get(id).filter(|record| record.owner == owner).cloned()
    }

    fn keep(&self, record: Record) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let id = record.id.clone();
        if kept.by_id.insert(id.clone(), Arc::new(record)).is_none() {
            kept.order.push_back(id);
        }
        if kept.order.len() > MOST
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.by_id.remove(&oldest);
        }
    }

    fn lines(&self) -> Vec<String> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let records = kept.order.iter().filter_map(|id| kept.by_id.get(id));
        records.filter_map(|record| serde_json::to_string(&**record).ok()).collect()
    }
}

/// The records of a file; lines that cannot be read are skipped, the last one may be torn.
fn read(path: &Path) -> Vec<Record> {
    let Ok(file) = File::open(path) else { return Vec::new() };
    if !file.metadata().is_ok_and(|facts| facts.is_file()) {
        return Vec::new();
    }
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    let lines = lines.filter(|line| line.len() <= LONGEST_LINE);
    lines.filter_map(|line| serde_json::from_slice(&line).ok()).collect()
}

impl Writer {
    /// Writes the file again with what is kept, and then a line for each record that comes.
    fn start(path: PathBuf, kept: &[String]) -> std::io::Result<Self> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(kept.iter().map(|line| format!("{line}\n")).collect::<String>().as_bytes())?;
        let (lines, coming) = channel::<String>();
        let work = move || {
            for line in coming {
                if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
                    tracing::warn!(path = %path.display(), %error, "cannot write a record for cache diagnostics");
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("records".to_owned()).spawn(work)?;
        Ok(Self { lines: Some(lines), thread: Some(thread) })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Ends the loop of the thread, after the lines that wait.
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use poncho_api::{ChatTurn, Generate, Request};

    use super::*;

    fn record(id: &str) -> Record {
        let fingerprint = Fingerprint::of("m", &Generate::chat(ChatTurn::default(), Request::default())).unwrap();
        Record { id: id.to_owned(), owner: Some(1), tokens: 5, fingerprint }
    }

    #[test]
    fn records_outlive_the_server_and_belong_to_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let records = Records::open(Some(&path));
        records.put(record("a"));
        records.put(record("b"));
        drop(records);
        // The end of a line that was not written whole.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"id\":\"c\",\"own").unwrap();
        let again = Records::open(Some(&path));
        assert_eq!(again.get(Some(1), "a").as_deref(), Some(&record("a")));
        assert_eq!(again.get(Some(2), "a"), None);
        assert_eq!(again.get(None, "b"), None);
        assert_eq!(again.get(Some(1), "c"), None);
        again.put(record("d"));
        drop(again);
        assert_eq!(read(&path).iter().map(|record| record.id.as_str()).collect::<Vec<_>>(), ["a", "b", "d"]);
    }

    #[test]
    fn the_oldest_record_goes_first() {
        let records = Records::default();
        for number in 0..=MOST {
            records.put(record(&number.to_string()));
        }
        assert!(records.get(Some(1), "0").is_none() && records.get(Some(1), "1").is_some());
        assert_eq!(records.lines().len(), MOST);
    }
}
