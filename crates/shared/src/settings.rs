//! Settings of the shared tier, with their defaults.
//!
//! Filled by the command line and by tests. Plain data: nothing here opens a store or reads a file.

use std::path::PathBuf;
use std::time::Duration;

/// How a shared tier is opened.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the rows are: `file://`, `s3://`, `gs://` or `az://`. Credentials come from the store's usual variables.
    pub url: String,
    /// The most bytes that the store may hold. `None`: no limit, and nothing is collected.
    pub quota: Option<u64>,
    /// The most bytes per second that uploads use. `None`: no limit.
    pub upload_bytes_per_second: Option<u64>,
    /// A file with the cluster's secret. Names are keyed with it and contents are encrypted. `None`: neither.
    pub key_file: Option<PathBuf>,
    /// Settings of the store's client besides its variables, for example `aws_endpoint` and a value.
    pub options: Vec<(String, String)>,
    /// Times.
    pub timing: Timing,
    /// Sizes.
    pub sizes: Sizes,
}

impl Settings {
    /// The defaults for a store.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            quota: None,
            upload_bytes_per_second: None,
            key_file: None,
            options: Vec::new(),
            timing: Timing::default(),
            sizes: Sizes::default(),
        }
    }
}

/// The times that the shared tier observes.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// The longest time to connect.
    pub connect: Duration,
    /// The longest time of a small request.
    pub request: Duration,
    /// The longest time of a request that carries a segment.
    pub transfer: Duration,
    /// First pause after a failed probe; each further failure doubles it.
    pub first_pause: Duration,
    /// Longest pause after a failed probe. A store is in use again within this time and one probe of its return.
    pub longest_pause: Duration,
    /// A healthy store that is in use is measured again after this time.
    pub measure_again: Duration,
    /// A fetched row that was last refreshed this long ago is refreshed, so that collection keeps it.
    pub refresh_after: Duration,
    /// A segment without a manifest is kept at least this long. An upload gives up after half of it.
    pub grace: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(3),
            request: Duration::from_secs(8),
            transfer: Duration::from_secs(60),
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(20),
            measure_again: Duration::from_secs(60),
            refresh_after: Duration::from_secs(3600),
            grace: Duration::from_secs(600),
        }
    }
}

/// The sizes that the shared tier observes.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Rows are joined until a segment has this many bytes.
    pub joined: usize,
    /// A segment has at most this many bytes. One that is read in one part is checked while it comes.
    pub segment: usize,
    /// A segment is read in parts of this many bytes.
    pub part: usize,
    /// Parts that are read at once.
    pub parallel_parts: usize,
    /// Offers that wait for their upload.
    pub queue: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { joined: 4 << 20, segment: 8 << 20, part: 8 << 20, parallel_parts: 16, queue: 256 }
    }
}
