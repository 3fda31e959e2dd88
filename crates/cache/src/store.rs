//! The store: what an open cache does with its rows.
//!
//! Used by the handle (`Cache`). Nothing here waits for a disk while it holds the lock of the index.

pub(crate) mod compact;
pub(crate) mod evict;
pub(crate) mod lease;
pub(crate) mod plan;
pub(crate) mod publish;
pub(crate) mod recover;
pub(crate) mod save;
pub(crate) mod store;
pub(crate) mod tier;
pub(crate) mod writer;
