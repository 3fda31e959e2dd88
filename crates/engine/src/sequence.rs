//! What each sequence holds, and the requests that run on them.

pub(crate) mod exact;
pub(crate) mod idle;
pub(crate) mod lifecycle;
pub(crate) mod live;
pub(crate) mod reading;
pub(crate) mod task;
