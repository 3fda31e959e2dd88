//! What is packed and installed.

pub(crate) mod deployment;
pub(crate) mod packaged_files;
pub(crate) mod self_contained;
