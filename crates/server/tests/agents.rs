//! What agents and their kind need beside the shapes of a dialect.

pub(crate) mod diagnostics;
pub(crate) mod heartbeats;
pub(crate) mod llama_server;
