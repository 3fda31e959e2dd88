//! Scheduling decisions: admission, the rows of a decode call, groups, shared prefixes, waits for a parent row.
//!
//! Called by the worker and by the lifecycle of requests. Everything in this folder is pure: it decides on plain data and
//! never touches a context, the cache or a file.

pub mod admission;
pub(crate) mod awaiting_parent;
pub mod batch;
pub mod bridges;
pub mod drafts;
pub(crate) mod grid;
pub mod pace;
pub(crate) mod prefix_sharing;
