//! HTTP itself: limits, origins, errors, documents, metrics, traces.

pub(crate) mod browser;
pub(crate) mod console;
pub(crate) mod endpoints;
pub(crate) mod errors;
pub(crate) mod ignored_input;
pub(crate) mod limits;
pub(crate) mod metrics;
pub(crate) mod mutations;
pub(crate) mod openapi;
pub(crate) mod request_ids;
pub(crate) mod schemas;
pub(crate) mod traces;
pub(crate) mod uploads;
