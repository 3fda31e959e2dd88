//! Progress reports of long operations, and how a caller stops one.
//!
//! The server and the command line pass a callback. It must be called often enough that a stop takes effect within a
//! second, and never after the operation has failed.

use std::ops::ControlFlow;

use crate::digest::Sha256;

/// One step of a long operation. Counts are bytes.
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
        /// The file's hash, if the source states it.
        digest: Option<Sha256>,
        /// Bytes that are here, those of an earlier, interrupted download included.
        done: u64,
        /// All bytes, if the source states it.
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

/// Receives progress reports; `Break` stops the operation, which then ends with a "stopped" error.
pub type ProgressSink<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// A sink for callers that do not show progress.
pub fn ignore_progress(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
