//! What long work tells its caller while it runs, and how the caller stops it.
//!
//! Handed down as a callback by the server and the command line. It must be called often enough that a stop is heard
//! within a second, and never after the work has failed.

use std::ops::ControlFlow;

use crate::digest::Sha256;

/// One step of long work. Counts are bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Asking the source what it has.
    Resolving,
    /// Another process is fetching the same file; waiting for it.
    Waiting,
    /// The source's own tool is fetching, and does not say how far it is.
    Fetching {
        /// What is fetched.
        what: String,
    },
    /// Bytes arrive over the network.
    Downloading {
        /// The file's hash, where the source told it.
        digest: Option<Sha256>,
        /// Bytes that are here, those of an earlier, interrupted download included.
        done: u64,
        /// All bytes, where the source told it.
        total: Option<u64>,
    },
    /// A file of this machine is copied.
    Copying {
        /// Bytes that are copied.
        done: u64,
        /// All bytes.
        total: u64,
    },
    /// The hash of a whole file is computed.
    Verifying {
        /// Bytes that are read.
        done: u64,
        /// All bytes.
        total: u64,
    },
    /// The file is whole and is given its name.
    Installing,
}

/// Hears of progress; `Break` stops the work, which then ends with a "stopped" error.
pub type ProgressSink<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// For callers that do not want to know.
pub fn ignore_progress(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
