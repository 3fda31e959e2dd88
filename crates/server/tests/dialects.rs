//! The dialects: shapes, streams and errors of each.

pub(crate) mod anthropic;
pub(crate) mod anthropic_errors;
pub(crate) mod anthropic_stream;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embed_turns;
pub(crate) mod embeddings;
pub(crate) mod ollama;
pub(crate) mod ollama_errors;
pub(crate) mod ollama_models;
pub(crate) mod response_fields;
pub(crate) mod response_store;
pub(crate) mod responses;
