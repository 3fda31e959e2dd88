//! Trial loads of unfamiliar models in a child process, which is this binary again.
//!
//! `serve` and the commands that load a model of their own use [`prober`]. `main` calls [`child`] first, because the
//! child has no settings and no commands. It exits with 0, or prints why the model is refused and exits with 1; any other
//! end is reported by its parent.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use poncho_engine::backend::llama::{LlamaBackend, UncheckedLlamaBackend};
use poncho_engine::files::probe::{Trial, end_with_parent, run_trial};
use poncho_engine::{ProbeWhen, Prober};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::serving::shape::beside;
use crate::settings::args::{LogArgs, LogFormat, LogLevel, ProbeArg};
use crate::settings::logging::{self, ReplyLines};

/// Makes this binary the child. It is not in the help, because users do not need it.
const COMMAND: &str = "probe-model";
/// Set by tests of files that pass our own checks. Harmless: only the child skips them.
const UNCHECKED: &str = "_PONCHO_PROBE_UNCHECKED";

/// Tries models with this program. The ones that passed are remembered beside the cache folder, if there is one.
pub(crate) fn prober(when: ProbeArg, cache_folder: Option<&Path>) -> Option<Prober> {
    let when = match when {
        ProbeArg::Off => return None,
        ProbeArg::Auto => ProbeWhen::Unfamiliar,
        ProbeArg::Always => ProbeWhen::Always,
    };
    let memo = cache_folder.map(|folder| beside(folder, ".probed"));
    Some(Prober { args: vec![COMMAND.into()], when, memo, ..Prober::new(own_program()) })
}

/// This program, even after its file was replaced by another version.
pub(crate) fn own_program() -> PathBuf {
    let own = Path::new("/proc/self/exe");
    if own.exists() { own.to_path_buf() } else { std::env::current_exe().unwrap_or_else(|_| "poncho".into()) }
}

#[derive(Debug, Parser)]
#[command(name = "poncho probe-model")]
struct ProbeArgs {
    /// Settings of the load, as the parent wrote them
    #[arg(long)]
    settings: Option<String>,

    /// Files of the model
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Runs the trial if the command line asks for it.
pub(crate) fn child(words: &[OsString]) -> Option<ExitCode> {
    let mut words = words.iter();
    let program = words.next()?;
    if words.next()? != COMMAND {
        return None;
    }
    let args = match ProbeArgs::try_parse_from(std::iter::once(program).chain(words)) {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return Some(ExitCode::from(2));
        }
    };
    Some(match trial(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!("{reason}");
            ExitCode::FAILURE
        }
    })
}

fn trial(args: ProbeArgs) -> Result<(), String> {
    end_with_parent();
    be_expendable();
    // The parent puts these lines into its message, so they are not JSON.
    let log = LogArgs { log_level: Some(LogLevel::Warn), log_format: Some(LogFormat::Text) };
    logging::start(log, ReplyLines::WithInfo).map_err(|error| error.to_string())?;
    let trial = match &args.settings {
        Some(settings) => Trial::parse(settings, args.files)?,
        None => Trial::with_defaults(args.files),
    };
    if std::env::var_os(UNCHECKED).is_some() {
        return run_trial(&UncheckedLlamaBackend, &trial);
    }
    run_trial(&LlamaBackend, &trial)
}

/// Writes no core file when it crashes, and is killed first when memory runs out.
pub(crate) fn be_expendable() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = setrlimit(Resource::Core, none);
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}
