//! What agents and their kind need beside the shapes of a dialect.

pub(crate) mod custom_tools;
pub(crate) mod diagnostics;
pub(crate) mod heartbeats;
pub(crate) mod images;
pub(crate) mod llama_server;
