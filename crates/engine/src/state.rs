//! States on their way: found, read, restored, packed, saved, joined and thinned.

pub(crate) mod buffer_pool;
pub(crate) mod chosen;
pub(crate) mod compaction;
pub mod cost;
pub mod identity;
pub(crate) mod restore;
pub(crate) mod save;
pub(crate) mod segment_reader;
pub mod thinning;
