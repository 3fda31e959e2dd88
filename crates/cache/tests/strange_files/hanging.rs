//! Work that must not hang, and FIFOs, which make what opens them carelessly wait forever.
//!
//! Used by the tests of strange files, those of the registry of models included.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};

/// Far above what any of this takes on a busy machine; only something that hangs is stopped by it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Does something that must not hang; if it does, the test fails and its process ends with the thread.
#[track_caller]
pub(crate) fn bounded<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, done) = channel();
    let worker = std::thread::spawn(move || sender.send(work()));
    match done.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(_) if worker.is_finished() => panic!("{what} panicked"),
        Err(_) => panic!("{what} hangs"),
    }
}

pub(crate) fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}
