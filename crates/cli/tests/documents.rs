//! The documents: every example runs, every name exists.

pub(crate) mod cache_guide;
pub(crate) mod chat_guide;
pub(crate) mod guides;
pub(crate) mod manual;
pub(crate) mod models_document;
pub(crate) mod newcomer;
pub(crate) mod snippets;
