//! The record of a process that ended: what it was doing, how it ended, and its last words.
//!
//! Written by `child.rs` beside the cache, for the owner's eyes only. It holds no text of a prompt: log lines have none.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Lines of its log that are kept.
const LAST_LINES: usize = 60;
/// Records that are kept.
const KEPT: usize = 20;

/// The last lines of a log.
#[derive(Debug, Default)]
pub(crate) struct LastLines(VecDeque<String>);

impl LastLines {
    pub(crate) fn push(&mut self, line: &str) {
        if self.0.len() == LAST_LINES {
            self.0.pop_front();
        }
        self.0.push_back(line.chars().take(500).collect());
    }

    fn take(&mut self) -> Vec<String> {
        self.0.drain(..).collect()
    }
}

/// A model of the process.
#[derive(Debug, Serialize)]
pub(crate) struct CrashedModel {
    pub(crate) id: String,
    pub(crate) phase: &'static str,
    pub(crate) active: usize,
    pub(crate) pending: usize,
}

#[derive(Serialize)]
struct Record {
    version: &'static str,
    unix_seconds: u64,
    ended_by: String,
    ran_for_seconds: u64,
    models: Vec<CrashedModel>,
    last_lines: Vec<String>,
}

/// How a process ended, in words.
pub(crate) fn ended_by(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown cause".to_owned(),
    }
}

/// Writes the record of a process. Returns its path.
pub(crate) fn record(
    folder: &Path,
    status: ExitStatus,
    ran_for: Duration,
    models: Vec<CrashedModel>,
    lines: &mut LastLines,
) -> io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let record = Record {
        version: env!("CARGO_PKG_VERSION"),
        unix_seconds: now.as_secs(),
        ended_by: ended_by(status),
        ran_for_seconds: ran_for.as_secs(),
        models,
        last_lines: lines.take(),
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let path = folder.join(format!("crash-{}.json", now.as_millis()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(&serde_json::to_vec_pretty(&record)?)?;
    forget_old(folder)?;
    Ok(path)
}

fn forget_old(folder: &Path) -> io::Result<()> {
    let mut records = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("crash-") && name.ends_with(".json")) {
            records.push(folder.join(name));
        }
    }
    // Names have the time in them, with one number of digits for centuries.
    records.sort();
    let old = records.len().saturating_sub(KEPT);
    records.into_iter().take(old).try_for_each(fs::remove_file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_record_has_the_facts_is_private_and_old_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("crashes");
        let mut lines = LastLines::default();
        (0..100).for_each(|line| lines.push(&format!("line {line}")));
        let model = CrashedModel { id: "m".to_owned(), phase: "generating", active: 2, pending: 1 };
        let status = ExitStatus::from_raw(6);
        let path = record(&folder, status, Duration::from_secs(3), vec![model], &mut lines).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"ended_by\": \"signal 6\"") && text.contains("\"active\": 2"), "{text}");
        assert!(text.contains("line 99") && !text.contains("line 39\""), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        for old in 0..30 {
            fs::write(folder.join(format!("crash-00{old:02}.json")), "").unwrap();
        }
        forget_old(&folder).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), KEPT);
        assert!(path.exists(), "the youngest stays");
    }
}
