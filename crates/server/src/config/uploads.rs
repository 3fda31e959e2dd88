//! Limits on the files that clients send.
//!
//! A setting; `http/uploads.rs` obeys it.

use std::time::Duration;

/// What clients that send files may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadRules {
    /// The most bytes of one file; 0 takes no files.
    pub most_bytes: u64,
    /// Files that may arrive at the same time.
    pub at_once: usize,
    /// How long one file may take. Between two pieces of it, [`ServerConfig::body_timeout`](crate::ServerConfig) counts.
    pub time: Duration,
    /// Bytes of the disk that an upload leaves free.
    pub reserve: u64,
    /// How often files are removed that nobody made a model of.
    pub sweep_every: Duration,
}

impl Default for UploadRules {
    fn default() -> Self {
        Self {
            // The largest single files that are in use, and some room.
            most_bytes: 64 << 30,
            at_once: 4,
            // 64 GiB at 3 MiB a second.
            time: Duration::from_secs(6 * 3600),
            reserve: 1 << 30,
            sweep_every: Duration::from_secs(600),
        }
    }
}
