//! FIFOs in the places of files, and rows that others could read: no command waits for a FIFO, and such rows are reported
//! and closed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

use crate::served::serve_command;
use crate::support::{Run, cache, poncho, prepare, row_path, run};

/// Far above what any of this takes on a busy machine; only something that hangs is stopped by it.
const PATIENCE: Duration = Duration::from_secs(180);

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// Runs a command that must end by itself, or say `until` on its standard output. It is ended either way; one that hangs fails
/// the test.
#[track_caller]
fn run_bounded(command: &mut Command, until: Option<&str>) -> Run {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdout, mut stderr) = (BufReader::new(child.stdout.take().unwrap()), child.stderr.take().unwrap());
    let (sender, done) = channel();
    let (until, is_server) = (until.map(str::to_owned), until.is_some());
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        while stdout.read_line(&mut said).unwrap() > 0 && until.as_ref().is_none_or(|until| !said.contains(until)) {}
        let _ = sender.send(());
        said
    });
    let hangs = done.recv_timeout(PATIENCE).is_err();
    if hangs || is_server {
        let _ = child.kill();
    }
    let status = child.wait().unwrap();
    assert!(!hangs, "{command:?} hangs");
    let mut messages = String::new();
    stderr.read_to_string(&mut messages).unwrap();
    Run { code: status.code(), stdout: reader.join().unwrap(), stderr: messages }
}

/// Hardening 16: `ls`, `stat`, `show`, `verify` and the start of a server waited forever.
#[test]
fn a_fifo_under_a_rows_name_hangs_no_command_and_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let kv = folder.path().join("kv");
    let prepared = prepare(&kv);
    let (row, linked) = (row_path(&kv, &prepared.branch), row_path(&kv, &prepared.code));
    for path in [&row, &linked] {
        std::fs::remove_file(path).unwrap();
    }
    fifo(&row);
    symlink(&row, &linked).unwrap();
    let of_cache = |words: &[&str]| run_bounded(poncho().arg("cache").args(words).arg("--cache-dir").arg(&kv), None);
    let rows: Value = of_cache(&["ls", "--json"]).json();
    assert_eq!(rows.as_array().unwrap().len(), 3);
    assert_eq!(of_cache(&["stat"]).code, Some(0));
    let verified = of_cache(&["verify"]);
    assert_eq!(verified.code, Some(1), "{}", verified.stdout);
    assert!(verified.stdout.contains(&format!("damaged: {}: it is a FIFO", row.display())), "{}", verified.stdout);
    assert!(verified.stdout.contains(&format!("damaged: {}: it is a symbolic link", linked.display())));
    assert!(verified.stdout.ends_with("3 rows checked, 2 damaged\n"), "{}", verified.stdout);
    let doctor = run_bounded(poncho().args(["doctor", "--port", "0", "--cache-dir"]).arg(&kv), None);
    assert!(doctor.stdout.contains("cache folder: "), "{}{}", doctor.stdout, doctor.stderr);

    let started = run_bounded(serve_command(&kv).args(["--port", "0"]), Some("Ctrl-C"));
    assert!(started.stdout.contains("Ctrl-C"), "{}{}", started.stdout, started.stderr);
    assert!(row.symlink_metadata().is_err() && linked.symlink_metadata().is_err(), "they are moved aside");
}

/// Hardening 16: a model that is a FIFO, or a link to one, is refused by name.
#[test]
fn a_fifo_given_as_a_model_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, link) = (folder.path().join("pipe.gguf"), folder.path().join("link.gguf"));
    fifo(&pipe);
    symlink(&pipe, &link).unwrap();
    for path in [&pipe, &link] {
        let mut serve = poncho();
        serve.args(["serve", "--port", "0", "--cache-dir"]).arg(folder.path().join("kv")).arg("--model").arg(path);
        let mut pull = poncho();
        pull.arg("pull").arg(path).arg("--models-dir").arg(folder.path().join("models"));
        for command in [&mut serve, &mut pull] {
            let refused = run_bounded(command, None);
            assert_eq!(refused.code, Some(1), "{command:?}: {}{}", refused.stdout, refused.stderr);
            assert!(refused.stderr.contains("it is a FIFO, not a regular file"), "{command:?}: {}", refused.stderr);
        }
    }
}

/// Hardening 5: `doctor` reports what others may read, `cache verify` too, and with `--repair` it closes all of it.
#[test]
fn rows_that_others_may_read_are_told_and_closed_by_the_repair() {
    let folder = tempfile::tempdir().unwrap();
    let kv = folder.path().join("kv");
    let prepared = prepare(&kv);
    let kept = folder.path().join("kv.replay");
    std::fs::write(&kept, b"").unwrap();
    let row = row_path(&kv, &prepared.code);
    for (path, mode) in [(&kv, 0o755), (&row.parent().unwrap().to_path_buf(), 0o755), (&row, 0o644), (&kept, 0o644)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let rights = || {
        let ended = run(poncho().args(["doctor", "--json", "--port", "0", "--cache-dir"]).arg(&kv));
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["check"] == "cache rights").cloned()
    };
    let told = rights().unwrap();
    assert_eq!(told["level"], "warning", "{told}");
    assert!(told["fact"].as_str().unwrap().contains("4 files and folders"), "{told}");
    let seen = cache(&kv, &["verify"]);
    assert!(seen.good().contains("open to other users: 4 files and folders"), "{}", seen.stdout);
    assert_eq!(cache(&kv, &["verify", "--json"]).json()["open_to_others"], 4);

    let repaired = cache(&kv, &["verify", "--repair"]);
    assert_eq!(repaired.good(), "made 4 files and folders private\n5 rows checked, 0 damaged\n");
    for (path, mode) in
        [(kv.as_path(), 0o700), (row.parent().unwrap(), 0o700), (row.as_path(), 0o600), (kept.as_path(), 0o600)]
    {
        assert_eq!(path.metadata().unwrap().mode() & 0o777, mode, "{}", path.display());
    }
    assert_eq!(rights(), None);
    let again = cache(&kv, &["verify", "--repair", "--json"]).json();
    assert_eq!((&again["open_to_others"], &again["closed"]), (&0.into(), &0.into()));
}
