//! Conversations: tools, hygiene, replay, sessions.

pub(crate) mod drafts;
pub(crate) mod generic_tools;
pub(crate) mod hygiene;
pub(crate) mod poncho_options;
pub(crate) mod replay;
pub(crate) mod sessions;
pub(crate) mod speculation;
pub(crate) mod tools;
