//! Commands that take a text or a request: its tokens, its embedding, why it is not cached.

pub(crate) mod embed;
pub(crate) mod explain;
pub(crate) mod input;
pub(crate) mod tokenize;
