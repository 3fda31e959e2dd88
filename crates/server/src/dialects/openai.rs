//! OpenAI's dialect: models, chat completions, completions, responses and embeddings.
//!
//! `types` and `answers` hold what goes over the wire, `convert` turns requests into turns and generations, and each endpoint has
//! its own file. Nothing outside of this folder knows a field name of OpenAI.

pub(crate) mod answers;
pub(crate) mod call;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod embeddings;
pub(crate) mod ignored;
pub(crate) mod models;
pub(crate) mod pieces;
pub(crate) mod prompt;
pub(crate) mod types;
