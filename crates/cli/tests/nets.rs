//! Nets for changes: a cache folder of an earlier build, and interfaces as text.

pub(crate) mod everyday;
pub(crate) mod fixture;
pub(crate) mod snapshots;
