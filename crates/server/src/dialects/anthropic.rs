//! Anthropic's dialect: messages, whole and streamed, and the count of their tokens.
//!
//! `types` holds what goes over the wire, `convert` and `conversation` turn requests into turns, `messages` has the
//! handlers and `stream` the events. Nothing outside of this folder knows a field name of Anthropic.

pub(crate) mod conversation;
pub(crate) mod convert;
pub(crate) mod ignored;
pub(crate) mod messages;
pub(crate) mod signature;
pub(crate) mod stream;
pub(crate) mod types;
