//! Texts at the border of llama.cpp: large stacks, long runs, tokens.

pub(crate) mod deep;
pub(crate) mod runs;
pub(crate) mod split;
pub(crate) mod tokenizer;
