//! What callers say and receive: requests, events, streams, embeddings.

pub mod event;
pub mod request;
pub(crate) mod stream;
pub mod tenant;
