//! Unfamiliar models are tried in a child process first: how this binary is that child, and how it starts it.
//!
//! `serve` and the commands that load a model of their own ask for [`prober`]; `main` asks [`child`] before anything
//! else, as the child has no settings and no commands. It ends with 0, or says on standard output why the model is
//! refused and ends with 1; whatever else happens to it is told by its parent.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use poncho_engine::backend::llama::{LlamaBackend, UncheckedLlamaBackend};
use poncho_engine::probe::{Trial, end_with_parent, run_trial};
use poncho_engine::{ProbeWhen, Prober};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::args::{LogFormat, LogLevel};
use crate::settings;
use crate::terminal::logging;

/// The word that makes this binary the child; it is in no help, as nobody needs to type it.
const COMMAND: &str = "probe-model";
/// Set by tests of what happens when a file gets past our own look at it. Harmless: only the child leaves that look out.
const UNCHECKED: &str = "_PONCHO_PROBE_UNCHECKED";

/// Which models are tried before they are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ProbeArg {
    /// Those that this build did not load before
    Auto,
    /// Every one, at every load
    Always,
    /// None: a file that makes llama.cpp give up ends the server
    Off,
}

/// What variables and the settings file say, for commands that have no flag for it.
pub(crate) fn configured_probing() -> anyhow::Result<ProbeArg> {
    let stated = settings::configured("probe_models")?;
    let stated = stated.and_then(|(value, _)| ProbeArg::from_str(value.to_str()?, true).ok());
    Ok(stated.unwrap_or(ProbeArg::Auto))
}

/// Tries models with this very program. Which ones passed is kept beside the cache folder, if there is one.
pub(crate) fn prober(when: ProbeArg, cache_folder: Option<&Path>) -> Option<Prober> {
    let when = match when {
        ProbeArg::Off => return None,
        ProbeArg::Auto => ProbeWhen::Unfamiliar,
        ProbeArg::Always => ProbeWhen::Always,
    };
    let memo = cache_folder.map(|folder| {
        let mut name = folder.as_os_str().to_owned();
        name.push(".probed");
        PathBuf::from(name)
    });
    Some(Prober { args: vec![COMMAND.into()], when, memo, ..Prober::new(own_program()) })
}

/// This program, also after its file was replaced by another version.
fn own_program() -> PathBuf {
    let own = Path::new("/proc/self/exe");
    if own.exists() { own.to_path_buf() } else { std::env::current_exe().unwrap_or_else(|_| "poncho".into()) }
}

#[derive(Debug, Parser)]
#[command(name = "poncho probe-model")]
struct ProbeArgs {
    /// What the model is loaded with, as the parent wrote it
    #[arg(long)]
    settings: Option<String>,

    /// The model's files
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Runs the trial if the words of the command line ask for it.
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
    // The parent reads these lines; JSON would not fit into its message.
    logging::start(Some(LogLevel::Warn), Some(LogFormat::Text)).map_err(|error| error.to_string())?;
    let trial = match &args.settings {
        Some(settings) => Trial::parse(settings, args.files)?,
        None => Trial::with_defaults(args.files),
    };
    if std::env::var_os(UNCHECKED).is_some() {
        return run_trial(&UncheckedLlamaBackend, &trial);
    }
    run_trial(&LlamaBackend, &trial)
}

/// No core file is written when it dies, and it dies first when memory runs out.
fn be_expendable() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = setrlimit(Resource::Core, none);
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}
