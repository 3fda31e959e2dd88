//! Chat templates, grammars and their matching.

pub(crate) mod matcher;
#[cfg(test)]
pub(crate) mod reference_grammar;
pub(crate) mod render;
pub(crate) mod schema;
pub(crate) mod template;
