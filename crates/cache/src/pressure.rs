//! Memory pressure: where it is measured, and the watcher that evicts rows before memory runs out.
//!
//! Used by the handle, which lends it an eviction function. It must never know the store.

pub(crate) mod backoff;
pub(crate) mod config;
pub(crate) mod sources;
pub(crate) mod watcher;
