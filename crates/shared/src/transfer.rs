//! Chains on their way: found and fetched for a request, uploaded in the background.
//!
//! Used by the tier alone. `vitals.rs` is what both directions share: health, rates, counters.

pub(crate) mod pace;
pub(crate) mod read;
pub(crate) mod spare;
pub(crate) mod upload;
pub(crate) mod vitals;
pub(crate) mod waiter;
