//! Past responses of `/v1/responses`, the items that they are made of, records of past requests, and tool servers.
//!
//! Held by the app's state and used by the handlers of the dialect. Nothing here knows HTTP or a request's fields.

pub(crate) mod fingerprint;
pub(crate) mod item;
pub(crate) mod records;
pub(crate) mod store;
pub(crate) mod token;
pub(crate) mod tool_lists;
pub(crate) mod tool_server;
