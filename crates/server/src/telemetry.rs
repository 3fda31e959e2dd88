//! What is measured: metrics, traces, times.

pub(crate) mod metrics;
pub(crate) mod reply_line;
pub(crate) mod timing;
pub(crate) mod traces;
