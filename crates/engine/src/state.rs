//! Stored states: how they are identified, found, read, saved, joined and thinned.
//!
//! Called by `sequence/slots`, which owns the context, and by the lifecycle of requests. Nothing in this folder touches a
//! context.

pub(crate) mod buffer_pool;
pub(crate) mod chosen;
pub(crate) mod compaction;
pub mod cost;
pub(crate) mod failure;
pub mod identity;
pub(crate) mod position;
pub(crate) mod remote_fetch;
pub(crate) mod restore;
pub(crate) mod save;
pub(crate) mod segment_reader;
pub(crate) mod sharing;
pub mod thinning;
