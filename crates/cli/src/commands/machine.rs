//! Commands about this machine and this program: its settings, its fitness, its pages, its benchmarks.

pub(crate) mod bench;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod manual;
