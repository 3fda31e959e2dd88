//! Tries a model in a child process before this one loads it, so that a file which makes llama.cpp end its process is an
//! error message.
//!
//! Called by `Model::load` when its configuration names a prober. The child (`poncho probe-model`, or any program that
//! calls [`run_trial`]) loads the file as it will be loaded here, with a small context, and ends with 0. Files that
//! passed are remembered by `memo.rs` and not tried again with the same program and settings. `child.rs` runs the child,
//! `trial.rs` is what it does. The file must not be loaded here when the child did not end well.

mod child;
mod memo;
#[cfg(test)]
mod tests;
mod trial;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::backend::{ContextOptions, ModelOptions};
use crate::error::EngineError;

pub use child::ProbeError;
pub use trial::{Trial, end_with_parent, run_trial};

/// Time that every child has.
const LEAST_DEADLINE: Duration = Duration::from_secs(60);
/// Bytes that the slowest disk reads in a second, further time being given for the file's size.
const SLOWEST_DISK: u64 = 16 << 20;

/// Which files are tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProbeWhen {
    /// Those that did not pass before.
    #[default]
    Unfamiliar,
    /// All, at every load.
    Always,
}

/// How a model is tried before it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prober {
    /// The program that tries it; with the same llama.cpp inside as this one.
    pub program: PathBuf,
    /// Its first arguments. The settings and the paths of the model's files follow.
    pub args: Vec<OsString>,
    /// Which files are tried.
    pub when: ProbeWhen,
    /// Where it is remembered which files passed; `None` tries each one at every load.
    pub memo: Option<PathBuf>,
    /// How long it may take; `None` for a minute, and more for a large file.
    pub deadline: Option<Duration>,
}

impl Prober {
    /// A prober that tries unfamiliar files and remembers nothing.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), args: Vec::new(), when: ProbeWhen::Unfamiliar, memo: None, deadline: None }
    }

    /// Tries a model with its settings unless it is familiar.
    ///
    /// # Errors
    /// The child refused the file, died, took too long or could not be started.
    pub(crate) fn try_model(&self, model: &ModelOptions, context: &ContextOptions) -> Result<(), EngineError> {
        let trial = Trial::of(model, context);
        let identity = memo::identity(&self.program, &trial);
        if self.when == ProbeWhen::Unfamiliar && memo::contains(self.memo.as_deref(), identity.as_deref()) {
            return Ok(());
        }
        let path = &model.path;
        tracing::info!(path = %path.display(), "an unfamiliar model is tried in a process of its own first");
        let deadline = self.deadline.unwrap_or_else(|| LEAST_DEADLINE + reading_time(&trial));
        child::run(self, &trial, deadline)
            .map_err(|error| EngineError::Load { path: path.clone(), reason: error.to_string() })?;
        // What changed meanwhile was not what was tried.
        if identity.is_some() && identity == memo::identity(&self.program, &trial) {
            memo::add(self.memo.as_deref(), identity.as_deref());
        }
        Ok(())
    }
}

fn reading_time(trial: &Trial) -> Duration {
    let bytes: u64 = trial.files.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|file| file.len()).sum();
    Duration::from_secs(bytes / SLOWEST_DISK)
}
