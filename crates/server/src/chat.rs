//! A turn of a conversation: rendered, checked, replayed, and its reply taken apart.

pub(crate) mod delta;
pub(crate) mod fair_lru;
pub(crate) mod hygiene;
pub(crate) mod message_ends;
pub(crate) mod replay;
pub(crate) mod reply;
pub(crate) mod reply_prefix;
pub(crate) mod tools;
pub(crate) mod turn;
