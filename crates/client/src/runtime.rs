//! The asynchronous runtime of a command.

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

/// A runtime with several threads, for commands that serve or send in parallel.
///
/// # Errors
/// If the system has no threads left.
pub fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

/// A runtime on the calling thread, for commands that only ask a server.
///
/// # Errors
/// If the system has no file descriptors left.
pub fn single_thread_runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot start the runtime")
}
