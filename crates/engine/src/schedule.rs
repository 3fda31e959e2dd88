//! Who runs next: admission, the batch planner, requests that wait for another's prefix or row.

pub mod admission;
pub(crate) mod awaiting_parent;
pub mod batch;
pub(crate) mod prefix_sharing;
pub(crate) mod queue_place;
