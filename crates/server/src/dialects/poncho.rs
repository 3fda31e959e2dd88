//! Poncho's own endpoints.

pub(crate) mod cache;
pub(crate) mod endpoints;
pub(crate) mod models;
pub(crate) mod sessions;
