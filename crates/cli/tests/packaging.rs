//! What is packed and installed.

pub(crate) mod cpu_builds;
pub(crate) mod deployment;
pub(crate) mod kubernetes;
pub(crate) mod packaged_files;
pub(crate) mod self_contained;
