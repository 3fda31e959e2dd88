//! The agent as a process: found on PATH, started with its setup, waited for.
//!
//! The terminal belongs to the agent. Ctrl-C reaches it directly and must not end this process first, because the
//! temporary folder has to be removed and a server of our own has to save its states. SIGTERM and SIGHUP are passed on.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use poncho_terminal::Outcome;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::setup::{FOLDER, Setup};

/// A program of this name on PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    find_in(&std::env::var_os("PATH")?, program)
}

fn find_in(path: &std::ffi::OsStr, program: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path).map(|folder| folder.join(program)).find(is_program)
}

/// Runs the agent to its end; the outcome is its exit code.
pub(crate) fn run(runtime: &Runtime, program: &Path, setup: &Setup, args: &[OsString]) -> anyhow::Result<Outcome> {
    // Private to the user: it may hold the key of the server.
    let folder = folder(setup)?;
    let in_folder = |text: &str| match &folder {
        Some(folder) => text.replace(FOLDER, &folder.path().to_string_lossy()),
        None => text.to_owned(),
    };
    let mut command = Command::new(program);
    for name in &setup.removed {
        command.env_remove(name);
    }
    command.envs(setup.variables.iter().map(|(name, value)| (name, in_folder(value))));
    command.args(setup.arguments.iter().map(|argument| in_folder(argument))).args(args);
    let signals = {
        let _on_runtime = runtime.enter();
        let listen = |kind| signal(kind).context("cannot listen for signals");
        (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?)
    };
    let mut child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let passing = runtime.spawn(async move {
        let (mut interrupt, mut terminate, mut hang_up) = signals;
        loop {
            let passed = tokio::select! {
                // From the terminal, which sent it to the agent too.
                _ = interrupt.recv() => None,
                _ = terminate.recv() => Some(Signal::TERM),
                _ = hang_up.recv() => Some(Signal::HUP),
            };
            if let (Some(pid), Some(passed)) = (pid, passed) {
                let _ = kill_process(pid, passed);
            }
        }
    });
    let status = child.wait().with_context(|| format!("cannot wait for {}", program.display()));
    passing.abort();
    let status = status?;
    let code = status.code().or_else(|| status.signal().map(|number| 128 + number)).unwrap_or(1);
    Ok(match u8::try_from(code) {
        Ok(0) => Outcome::Good,
        Ok(code) => Outcome::Code(code),
        Err(_) => Outcome::Bad,
    })
}

/// The temporary folder with the files of the setup, if it has any.
fn folder(setup: &Setup) -> anyhow::Result<Option<TempDir>> {
    if setup.files.is_empty() && setup.linked.is_none() {
        return Ok(None);
    }
    let private = fs::Permissions::from_mode(0o700);
    let folder = tempfile::Builder::new().prefix("poncho-launch-").permissions(private).tempdir();
    let folder = folder.context("cannot make a temporary folder")?;
    let entries =
        setup.linked.and_then(|linked| fs::read_dir(PathBuf::from(std::env::var_os("HOME")?).join(linked)).ok());
    for entry in entries.into_iter().flatten().flatten() {
        if setup.files.iter().all(|(name, _)| entry.file_name() != *name) {
            symlink(entry.path(), folder.path().join(entry.file_name())).context("cannot link the agent's files")?;
        }
    }
    for (name, content) in &setup.files {
        let path = folder.path().join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Some(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_file_that_may_run() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("agent");
        let path = std::env::join_paths([Path::new("/nonexistent"), folder.path()]).unwrap();
        assert_eq!(find_in(&path, "agent"), None);
        fs::write(&program, "").unwrap();
        assert_eq!(find_in(&path, "agent"), None, "it may not run");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_in(&path, "agent"), Some(program));
    }
}
