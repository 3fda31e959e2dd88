//! What callers say and receive: requests, events, streams, embeddings.

pub mod event;
pub(crate) mod open_request;
pub mod request;
pub(crate) mod stream;
pub mod tenant;
