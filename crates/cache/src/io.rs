//! The outside world as the crate sees it: files, time, locks and threads.
//!
//! Everything here can be replaced by tests. It must never know the file format or a row.

pub(crate) mod clock;
pub(crate) mod files;
pub(crate) mod fs;
pub(crate) mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
