//! The store: what an open cache does with its rows. Each file is one part with data of its own.
//!
//! Put together by the handle (`Cache`). `SharedIndex` and `FileTiers` are what the parts share. Nothing here waits for a
//! disk while it holds the lock of the index.

pub(crate) mod compact;
pub(crate) mod evict;
mod job;
pub(crate) mod lease;
pub(crate) mod lookup;
pub(crate) mod pinned_row;
pub(crate) mod publish;
pub(crate) mod queue;
pub(crate) mod recover;
pub(crate) mod removal;
pub(crate) mod save;
pub(crate) mod shared_index;
pub(crate) mod tier;
pub(crate) mod touch;
pub(crate) mod writer;
