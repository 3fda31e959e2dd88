//! One download that can be interrupted at any byte and resumed later, by this process or another.
//!
//! Called by `pull.rs`. The bytes so far are in `partial/KEY/data`, beside a file that identifies the remote file.
//! Bytes are appended only if the server confirms that it still has the same file; otherwise the download starts again.
//! The caller checks the bytes: nothing here may give a file its name.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use poncho_gguf::file::{self, Links};
use serde::{Deserialize, Serialize};
use ureq::Body;
use ureq::http::{Response, StatusCode};

use crate::digest::{PIECE, Sha256};
use crate::error::RegistryError;
use crate::progress::{Progress, ProgressSink};
use crate::reference::without_secrets;
use crate::registry::blobs::tell;
use crate::registry::facts_of;
use crate::registry::layout::{DATA_NAME, LOCK_NAME, Layout};
use crate::registry::lock::{self, HeldLock};

use super::error::PullError;
use super::http::{Get, agent, get, header};
use super::options::PullOptions;
use super::remote::Remote;

/// How often a waiting process looks whether the other one is done, and whether it is to stop.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const STATE_NAME: &str = "state.json";
/// An address and a tag; a longer file was not written by this program.
const MOST_STATE: u64 = 1 << 16;

/// What identifies the file that the bytes belong to.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct State {
    /// For people.
    url: String,
    /// The server's strong tag of the file.
    etag: Option<String>,
}

/// The folder of a download, held by this process.
#[derive(Debug)]
pub(super) struct PartialFolder {
    path: PathBuf,
    _lock: HeldLock,
}

impl PartialFolder {
    fn data(&self) -> PathBuf {
        self.path.join(DATA_NAME)
    }

    /// Removes it: the file has its name, or is not worth keeping.
    pub(super) fn forget(&self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Takes the folder of a download; waits while another process has it.
pub(super) fn lock_folder(
    layout: &Layout,
    remote: &Remote,
    progress: ProgressSink<'_>,
) -> Result<PartialFolder, PullError> {
    layout.prepare()?;
    // By content if the hash is known: then it does not matter which address the bytes come from.
    let key = remote.sha256.unwrap_or_else(|| Sha256::of(without_secrets(&remote.url).as_bytes()));
    let path = layout.partial().join(key.to_hex());
    loop {
        fs::create_dir_all(&path).map_err(|source| RegistryError::io("create", &path, source))?;
        if let Some(lock) = take(&path)? {
            return Ok(PartialFolder { path, _lock: lock });
        }
        tell(progress, Progress::Waiting)?;
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The lock of a download's folder. `None` if another process has it, or has finished and removed the folder.
fn take(folder: &Path) -> Result<Option<HeldLock>, RegistryError> {
    match lock::try_take(&folder.join(LOCK_NAME)) {
        Err(RegistryError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        taken => taken,
    }
}

/// Downloads until all bytes are here, and returns where they are.
pub(super) fn fetch(
    folder: &PartialFolder,
    remote: &Remote,
    options: &PullOptions,
    progress: ProgressSink<'_>,
) -> Result<PathBuf, PullError> {
    let agent = agent(options, &remote.url);
    let mut failures = 0;
    loop {
        let before = length(&folder.data());
        let mut attempt = Attempt { folder, remote, progress: &mut *progress };
        let error = match attempt.run(&agent) {
            Ok(()) => return Ok(folder.data()),
            Err(error) => error,
        };
        let is_passing =
            matches!(error, PullError::Interrupted { .. } | PullError::Server { .. } | PullError::Unreachable { .. });
        failures = if length(&folder.data()) > before { 0 } else { failures + 1 };
        if !is_passing || options.retries == 0 || failures > options.retries {
            return Err(error);
        }
        pause(options.retry_pause, remote, folder, progress)?;
    }
}

/// Waits; a stop ends the wait.
fn pause(time: Duration, remote: &Remote, folder: &PartialFolder, progress: ProgressSink<'_>) -> Result<(), PullError> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        let done = length(&folder.data());
        tell(progress, Progress::Downloading { digest: remote.sha256, done, total: remote.bytes })?;
        std::thread::sleep(LOOK_AGAIN.min(time));
    }
    Ok(())
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

struct Attempt<'a, 'b> {
    folder: &'a PartialFolder,
    remote: &'a Remote,
    progress: ProgressSink<'b>,
}

impl Attempt<'_, '_> {
    fn run(&mut self, agent: &ureq::Agent) -> Result<(), PullError> {
        let state = self.state();
        let here = length(&self.folder.data());
        if here > 0 && Some(here) == self.remote.bytes {
            return Ok(());
        }
        // Without a tag, only a known hash can show whether old and new bytes belong to the same file.
        let may_resume = state.etag.is_some() || self.remote.sha256.is_some();
        let from = if may_resume { here } else { 0 };
        let ask = Get { token: self.remote.token.as_deref(), from, if_range: state.etag.as_deref() };
        let response = get(agent, &self.remote.url, &ask)?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => match content_range(&response) {
                Some((start, total)) if start == from => self.receive(response, from, total),
                _ => {
                    self.reset()?;
                    Err(self.interrupted("the server sent another part of the file than was asked for".to_owned()))
                }
            },
            StatusCode::RANGE_NOT_SATISFIABLE => {
                // Either all bytes are here, or there are more than the server has; then the download starts again.
                let is_all = content_range_total(&response) == Some(from) && from > 0;
                if is_all {
                    return Ok(());
                }
                self.reset()?;
                Err(self.interrupted("the server has less of the file than is here".to_owned()))
            }
            _ => {
                let total = response.body().content_length();
                self.reset()?;
                self.receive(response, 0, total)
            }
        }
    }

    fn receive(&mut self, response: Response<Body>, from: u64, total: Option<u64>) -> Result<(), PullError> {
        let url = without_secrets(&self.remote.url);
        if let (Some(got), Some(expected)) = (total, self.remote.bytes)
            && got != expected
        {
            return Err(PullError::WrongSize { url, expected, got });
        }
        let total = total.or(self.remote.bytes);
        self.check_room(total.unwrap_or(0).saturating_sub(from))?;
        if from == 0 {
            self.remember(&response)?;
        }
        let path = self.folder.data();
        let wrap = |source| RegistryError::io("write", &path, source);
        let mut options = OpenOptions::new();
        let file = file::open_regular_with(options.create(true).append(true), &path, Links::Refuse);
        let mut file = file.map_err(wrap)?;
        let mut reader = response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; PIECE];
        let mut done = from;
        self.tell(done, total)?;
        loop {
            let count = match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let reason = error.to_string();
                    return Err(PullError::Interrupted { url, done, total, reason });
                }
            };
            let piece = buffer.get(..count).unwrap_or_default();
            file.write_all(piece).map_err(wrap)?;
            // Stop at the first bytes of a web page or an error message: the rest of the file is of no use.
            if done == 0 && count >= 4 && !piece.starts_with(b"GGUF") {
                let error = facts_of(&path).err();
                self.folder.forget();
                return Err(match error {
                    Some(error) => PullError::from_registry(error, &self.remote.url),
                    None => PullError::NotAModel { url, reason: "it does not begin as a GGUF file".to_owned() },
                });
            }
            done = done.saturating_add(count as u64);
            self.tell(done, total)?;
        }
        match total {
            Some(total) if done < total => {
                let reason = "the server closed the connection".to_owned();
                Err(PullError::Interrupted { url, done, total: Some(total), reason })
            }
            Some(expected) if done > expected => {
                self.reset()?;
                Err(PullError::WrongSize { url, expected, got: done })
            }
            _ => Ok(()),
        }
    }

    fn tell(&mut self, done: u64, total: Option<u64>) -> Result<(), PullError> {
        Ok(tell(self.progress, Progress::Downloading { digest: self.remote.sha256, done, total })?)
    }

    fn check_room(&self, needed: u64) -> Result<(), PullError> {
        let Ok(facts) = rustix::fs::statvfs(&self.folder.path) else { return Ok(()) };
        let free = facts.f_bavail.saturating_mul(facts.f_frsize);
        if needed > free {
            return Err(PullError::NoRoom { needed, free, folder: self.folder.path.display().to_string() });
        }
        Ok(())
    }

    fn interrupted(&self, reason: String) -> PullError {
        let done = length(&self.folder.data());
        PullError::Interrupted { url: without_secrets(&self.remote.url), done, total: self.remote.bytes, reason }
    }

    fn state(&self) -> State {
        let mut bytes = Vec::new();
        let read = file::open_regular(&self.folder.path.join(STATE_NAME), Links::Refuse)
            .and_then(|file| file.take(MOST_STATE).read_to_end(&mut bytes));
        if read.is_err() {
            return State::default();
        }
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// Keeps what identifies the file, before its first byte is stored.
    fn remember(&self, response: &Response<Body>) -> Result<(), PullError> {
        // A weak tag does not promise the same bytes.
        let etag = header(response, "etag").filter(|tag| tag.starts_with('"')).map(str::to_owned);
        let state = State { url: without_secrets(&self.remote.url), etag };
        let path = self.folder.path.join(STATE_NAME);
        let written = serde_json::to_vec(&state).map_err(io::Error::other).and_then(|bytes| {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true);
            file::open_regular_with(&mut options, &path, Links::Refuse)?.write_all(&bytes)
        });
        Ok(written.map_err(|source| RegistryError::io("write", &path, source))?)
    }

    /// Throws the bytes away.
    fn reset(&self) -> Result<(), PullError> {
        let path = self.folder.data();
        let _ = fs::remove_file(self.folder.path.join(STATE_NAME));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let emptied = file::open_regular_with(&mut options, &path, Links::Refuse);
        Ok(emptied.map(drop).map_err(|source| RegistryError::io("write", &path, source))?)
    }
}

/// Start and whole size in `bytes 5-9/10`.
fn content_range(response: &Response<Body>) -> Option<(u64, Option<u64>)> {
    let (range, total) = header(response, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()))
}

/// The whole size in `bytes */10`.
fn content_range_total(response: &Response<Body>) -> Option<u64> {
    header(response, "content-range")?.rsplit('/').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pull failed with "no such file" when another one ended between creating the folder and opening its lock.
    #[test]
    fn a_folder_that_another_pull_removed_has_no_lock_to_take() {
        let place = tempfile::tempdir().unwrap();
        assert!(take(&place.path().join("removed")).unwrap().is_none());
        assert!(take(place.path()).unwrap().is_some());
    }
}
