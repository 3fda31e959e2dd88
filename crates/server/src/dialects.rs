//! The dialects: each turns its wire format into turns and back; none knows another.

pub(crate) mod anthropic;
pub(crate) mod embedding;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod openapi;
pub(crate) mod poncho;
pub(crate) mod poncho_options;
pub(crate) mod responses;
pub(crate) mod shared;
