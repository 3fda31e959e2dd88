//! A radix tree over tokens: the longest stored prefix at token granularity.
//!
//! Used by the index, one tree for each namespace. It must never know more of a row than its id.

mod arena;
mod children;
mod edit;
mod label;
mod node;
#[cfg(test)]
mod tests;
mod token_trie;

pub(crate) use node::NodeId;
pub(crate) use token_trie::{Match, TokenTrie};
