//! `poncho bench`: becomes `poncho-bench` from its own folder or from PATH, with arguments and exit status.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::support::{Run, run, without_settings};

/// Prints its arguments and exits with 7.
const STAND_IN: &str = "#!/bin/sh\necho \"$0 $*\"\nexit 7\n";

fn install(folder: &Path) {
    let path = folder.join("poncho-bench");
    std::fs::write(&path, STAND_IN).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The binary under test in a folder of its own.
fn alone(folder: &Path) -> PathBuf {
    let path = folder.join("poncho");
    if std::fs::hard_link(env!("CARGO_BIN_EXE_poncho"), &path).is_err() {
        std::fs::copy(env!("CARGO_BIN_EXE_poncho"), &path).unwrap();
    }
    path
}

fn bench(poncho: &Path, path: &Path) -> Run {
    let words = ["bench", "replay", "--model", "m.gguf", "--json", "--", "-x"];
    run(without_settings(poncho.to_str().unwrap()).args(words).env("PATH", format!("{}:/usr/bin:/bin", path.display())))
}

#[test]
fn the_program_beside_it_gets_the_arguments_and_gives_the_exit_status() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    install(folder.path());
    install(other.path());
    let ran = bench(&alone(folder.path()), other.path());
    let expected = format!("{}/poncho-bench replay --model m.gguf --json -- -x\n", folder.path().display());
    assert_eq!((ran.code, ran.stdout), (Some(7), expected), "{}", ran.stderr);
}

#[test]
fn the_program_on_the_path_is_the_second_choice() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    install(other.path());
    let ran = bench(&alone(folder.path()), other.path());
    assert_eq!(ran.code, Some(7), "{}", ran.stderr);
    assert!(ran.stdout.starts_with(other.path().to_str().unwrap()), "{}", ran.stdout);
}

#[test]
fn the_error_says_how_to_get_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let ran = bench(&alone(folder.path()), folder.path());
    let error = ran.failed();
    assert!(error.contains("poncho-bench is not installed") && error.contains("make build"), "{error}");
}
