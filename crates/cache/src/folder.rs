//! A cache folder on disk: its lock, its access rights, its notes, and a scan of its files.
//!
//! Used by the store when it opens a folder, and by the inspection tools, which open none. It must never know the index.

pub(crate) mod lock;
pub(crate) mod notes;
pub(crate) mod parents_first;
pub(crate) mod privacy;
pub(crate) mod scan;
