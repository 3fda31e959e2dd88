//! What is measured: metrics, traces, times, the record of requests and what the cache saved.

pub(crate) mod drafts;
pub(crate) mod metrics;
pub(crate) mod record;
pub(crate) mod reply_line;
pub(crate) mod savings;
pub(crate) mod timing;
pub(crate) mod traces;
pub(crate) mod units;
