//! Ollama's dialect: generate, chat, embeddings, and what the models are.
//!
//! `types` holds what goes over the wire, `options` and `convert` turn requests into generations and turns, `lines`
//! writes replies, and each endpoint has its own file. Nothing outside of this folder knows a field name of Ollama.

pub(crate) mod call;
pub(crate) mod chat;
pub(crate) mod convert;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod ignored;
pub(crate) mod library;
pub(crate) mod lines;
pub(crate) mod models;
pub(crate) mod types;
