//! Past responses of `/v1/responses`, and the items that they are made of.
//!
//! Held by the app's state and used by the handlers of the dialect. Nothing here knows HTTP or a request's fields.

pub(crate) mod item;
pub(crate) mod store;
pub(crate) mod token;
