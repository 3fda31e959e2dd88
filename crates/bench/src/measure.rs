//! The tools of every measurement: a server of our own, requests and their timing, prompts, recorded conversations,
//! statistics, charts.
//!
//! Used by `replay`, `compare` and `matrix`. Nothing here knows which of them it serves.

pub(crate) mod call;
pub(crate) mod chart;
pub(crate) mod figures;
pub(crate) mod machine;
pub(crate) mod prompts;
pub(crate) mod server;
pub(crate) mod stats;
pub(crate) mod stream;
pub(crate) mod trace;
