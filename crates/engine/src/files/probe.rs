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

use std::time::Duration;

use crate::config::ModelConfig;
use crate::error::EngineError;

pub use child::ProbeError;
pub use poncho_api::{ProbeWhen, Prober};
pub use trial::{Trial, end_with_parent, run_trial};

/// Time that every child has.
const LEAST_DEADLINE: Duration = Duration::from_secs(60);
/// Bytes that the slowest disk reads in a second, further time being given for the file's size.
const SLOWEST_DISK: u64 = 16 << 20;

/// Tries the model of a configuration unless it is familiar.
///
/// # Errors
/// The child refused the file, died, took too long or could not be started.
pub(crate) fn try_model(prober: &Prober, config: &ModelConfig) -> Result<(), EngineError> {
    let trial = Trial::of(config);
    let identity = memo::identity(&prober.program, &trial);
    if prober.when == ProbeWhen::Unfamiliar && memo::contains(prober.memo.as_deref(), identity.as_deref()) {
        return Ok(());
    }
    let path = &config.model.path;
    tracing::info!(path = %path.display(), "an unfamiliar model is tried in a process of its own first");
    let deadline = prober.deadline.unwrap_or_else(|| LEAST_DEADLINE + reading_time(&trial));
    child::run(prober, &trial, deadline)
        .map_err(|error| EngineError::Load { path: path.clone(), reason: error.to_string() })?;
    // What changed meanwhile was not what was tried.
    if identity.is_some() && identity == memo::identity(&prober.program, &trial) {
        memo::add(prober.memo.as_deref(), identity.as_deref());
    }
    Ok(())
}

fn reading_time(trial: &Trial) -> Duration {
    let bytes: u64 = trial.files.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|file| file.len()).sum();
    Duration::from_secs(bytes / SLOWEST_DISK)
}
