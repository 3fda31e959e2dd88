//! A turn of a conversation: rendered, checked, replayed, and its reply taken apart.
//!
//! Called by `host.rs` for every reply and every prompt that is counted or explained. Nothing here knows a wire dialect.

pub(crate) mod delta;
pub(crate) mod hygiene;
pub(crate) mod kept;
pub(crate) mod marks;
pub(crate) mod message_ends;
pub(crate) mod model;
pub(crate) mod parse;
pub(crate) mod preparing;
pub(crate) mod prompt;
pub(crate) mod replay;
pub(crate) mod reply;
pub(crate) mod reply_prefix;
pub(crate) mod tools;
pub(crate) mod truncation;
pub(crate) mod turn;
