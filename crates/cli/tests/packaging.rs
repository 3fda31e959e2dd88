//! What is packed and installed.

pub(crate) mod packaged_files;
pub(crate) mod packaging;
pub(crate) mod self_contained;
