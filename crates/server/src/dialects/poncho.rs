//! Poncho's own endpoints.

pub(crate) mod adapters;
pub(crate) mod cache;
pub(crate) mod counting;
pub(crate) mod endpoints;
pub(crate) mod explain;
pub(crate) mod models;
pub(crate) mod requests;
pub(crate) mod rows;
pub(crate) mod sessions;
pub(crate) mod speculation;
pub(crate) mod system;
