//! What a reply must look like: JSON schemas and grammars.

#[cfg(feature = "llama")]
pub(crate) mod gbnf;
pub(crate) mod schema;
