//! Models that are loaded, made and fetched.

pub(crate) mod adapters;
pub(crate) mod loading;
pub(crate) mod ollama_library;
pub(crate) mod pulling;
