//! Builds of this program for newer CPUs: the best one that works on this machine takes over.
//!
//! `make cpu-builds` and the released packages put them into a folder beside the program. `main` calls [`take_over`] before
//! anything else, for commands that compute. A build is tried in a child process first, because some virtual machines
//! announce instructions that end the program. If none fits, this program goes on. A build never looks for others.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use poncho_engine::backend::llama::{cpu_has_all, try_cpu};

/// Chooses a build by name; `base` is the program itself.
pub(crate) const VARIABLE: &str = "PONCHO_CPU_BUILD";
/// The program that a build took over from, for the folders beside it.
const TAKEN_OVER: &str = "_PONCHO_TAKEN_OVER";
/// Makes this program the child that tries the instructions. It is not in the help, because users do not need it.
const TRIAL: &str = "try-cpu";
/// A trial takes a few milliseconds.
const LONGEST_TRIAL: Duration = Duration::from_secs(5);
/// Commands that compute in their own process or in a child of the same build.
const COMPUTING: [&str; 6] = ["serve", "run", "node", "embed", "launch", "rpc-worker"];
/// Flags before the command that may have their value in the next word.
const WITH_VALUE: [&str; 2] = ["--log-level", "--log-format"];

/// A build, with the compiler flags that its file was made with. The best one first; `scripts/dist/builds.py` has the same
/// list.
const BUILDS: [(&str, &str); 2] = [
    ("avx512", "-march=x86-64-v4 -mavx512vnni -mavx512vbmi -mavx512vbmi2 -mavx512bf16"),
    ("avxvnni", "-march=x86-64-v3 -mavxvnni"),
];

/// Lets the best build run the command. Returns if this program is to go on.
pub(crate) fn take_over(words: &[OsString]) {
    let Some(program) = std::env::current_exe().ok().filter(|_| computes(words) && taken_over().is_none()) else {
        return;
    };
    let wanted = std::env::var_os(VARIABLE).filter(|name| !name.is_empty() && name != "auto");
    if wanted.as_deref() == Some(OsStr::new("base")) {
        return;
    }
    let found = found(&program);
    let known = |name: &OsStr| BUILDS.iter().any(|(build, _)| OsStr::new(build) == name);
    if let Some(name) = wanted.as_deref().filter(|name| !known(name)) {
        let names: Vec<&str> = BUILDS.iter().map(|(name, _)| *name).collect();
        let name = name.display();
        eprintln!("poncho: {VARIABLE} is `{name}`; it can be auto, base, {}", names.join(", "));
    }
    let wanted = wanted.as_deref();
    for (name, path) in found.into_iter().filter(|(name, _)| wanted.is_none_or(|wanted| wanted == *name)) {
        match tried(&path) {
            Ok(()) => {
                let mut command = Command::new(&path);
                command.args(words.iter().skip(1)).env(TAKEN_OVER, &program);
                if let Some(own) = words.first() {
                    command.arg0(own);
                }
                let error = command.exec();
                eprintln!("poncho: the build for {name} was not started ({error}); using the one for older CPUs");
            }
            Err(why) => {
                eprintln!("poncho: the build for {name} does not work here ({why}); using the one for older CPUs")
            }
        }
    }
}

/// Which build computes on this machine, and what is wrong with the better ones.
pub(crate) struct Chosen {
    /// `None`: the program itself.
    pub(crate) build: Option<&'static str>,
    pub(crate) unusable: Vec<String>,
}

/// What [`take_over`] would do, for `doctor`.
pub(crate) fn chosen() -> Chosen {
    let mut unusable = Vec::new();
    if std::env::var_os(VARIABLE).is_some_and(|name| name == "base") {
        return Chosen { build: None, unusable };
    }
    for (name, path) in std::env::current_exe().map(|program| found(&program)).unwrap_or_default() {
        match tried(&path) {
            Ok(()) => return Chosen { build: Some(name), unusable },
            Err(why) => unusable.push(format!("{name}: {why}")),
        }
    }
    Chosen { build: None, unusable }
}

/// Runs the trial if the command line asks for it.
pub(crate) fn child(words: &[OsString]) -> Option<ExitCode> {
    if words.get(1)? != TRIAL || words.len() != 2 {
        return None;
    }
    Some(match try_cpu() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    })
}

/// The program that users started: this one, or the one that it took over from.
pub(crate) fn started_program() -> Option<PathBuf> {
    taken_over().or_else(|| std::env::current_exe().ok())
}

fn taken_over() -> Option<PathBuf> {
    std::env::var_os(TAKEN_OVER).map(PathBuf::from)
}

fn computes(words: &[OsString]) -> bool {
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        if WITH_VALUE.iter().any(|flag| word == flag) {
            words.next();
        } else if !word.to_string_lossy().starts_with('-') {
            return COMPUTING.iter().any(|known| word == known);
        }
    }
    false
}

/// The builds beside a program that this CPU has the instructions for, the best first.
fn found(program: &Path) -> Vec<(&'static str, PathBuf)> {
    let Some(folder) = program.parent() else { return Vec::new() };
    let folders = [folder.join("poncho-cpu"), folder.join("../lib/poncho/cpu")];
    let fitting = BUILDS.iter().filter(|(_, flags)| cpu_has_all(flags));
    let file =
        |name: &str| folders.iter().map(|folder| folder.join(format!("poncho-{name}"))).find(|path| path.is_file());
    fitting.filter_map(|(name, _)| file(name).map(|path| (*name, path))).collect()
}

/// Tries a build in a process of its own.
fn tried(path: &Path) -> Result<(), String> {
    let mut command = Command::new(path);
    command.arg(TRIAL).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(status.to_string()),
            Ok(None) if started.elapsed() < LONGEST_TRIAL => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) => {
                // A process that cannot be ended is left behind.
                let _ = child.kill().and_then(|()| child.wait());
                return Err(format!("its trial took longer than {} s", LONGEST_TRIAL.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn only_commands_that_compute_are_taken_over() {
        assert!(computes(&words("poncho serve --port 0")) && computes(&words("poncho --quiet run model hello")));
        assert!(
            computes(&words("poncho --log-level debug serve m")) && computes(&words("poncho --log-level=info run"))
        );
        assert!(computes(&words("poncho launch codex")), "it may start a server of its own");
        let others = ["poncho", "poncho --version", "poncho cache ls", "poncho ps", "poncho try-cpu"];
        for line in others.into_iter().chain(["poncho --log-level serve ps", "poncho --log-level"]) {
            assert!(!computes(&words(line)), "{line}");
        }
    }

    #[test]
    fn builds_lie_beside_the_program_or_in_the_library_folder() {
        let root = tempfile::tempdir().unwrap();
        let (bin, library) = (root.path().join("bin"), root.path().join("lib/poncho/cpu"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&library).unwrap();
        let program = bin.join("poncho");
        assert!(found(&program).is_empty());
        for (name, _) in BUILDS {
            std::fs::write(library.join(format!("poncho-{name}")), "").unwrap();
        }
        let fitting: Vec<&str> = BUILDS.iter().filter(|(_, flags)| cpu_has_all(flags)).map(|(name, _)| *name).collect();
        let names: Vec<&str> = found(&program).iter().map(|(name, _)| *name).collect();
        assert_eq!(names, fitting);
    }
}
