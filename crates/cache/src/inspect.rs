//! Looking at rows without changing them: listings of a folder, its index, and explanations of hits and misses.
//!
//! Used by `poncho cache` and by the server's explain endpoint. It must never take a folder's lock or change a file.

pub(crate) mod alignment;
pub(crate) mod explain;
pub(crate) mod folder_index;
pub(crate) mod listing;
pub(crate) mod sketch;
