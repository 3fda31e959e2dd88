//! Keyed hashes of prompts: one for each block of 256 tokens, and one for each saved boundary.
//!
//! Nodes hash the tokens of their rows, routers those of a prompt; equal prefixes have equal hashes. Each hash covers
//! everything before it, and the key and the namespace (model, context, tenant) are part of it, so that a hash reveals
//! nothing to a reader without the cluster key. Hashes have 64 bits: they are hints, and a collision costs time only.

use ring::hmac;
use serde::{Deserialize, Serialize};

/// Tokens of one block.
pub const BLOCK_TOKENS: usize = 256;

/// A length at which a row's state was saved. States of sliding-window, recurrent and hybrid models are usable there only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Boundary {
    /// Complete blocks before it.
    pub blocks: u32,
    /// The hash of the last of them, or of the namespace if there are none.
    pub after: u64,
    /// Tokens after the last complete block.
    pub tail: u16,
    /// The hash of everything up to the boundary.
    pub hash: u64,
}

/// Makes hashes under one key.
#[derive(Clone)]
pub struct BlockHasher {
    key: hmac::Key,
}

impl std::fmt::Debug for BlockHasher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("BlockHasher")
    }
}

impl BlockHasher {
    /// Hashes under this key. Nodes and routers of one cluster use the same one.
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, key) }
    }

    /// The hashes of a prompt in a namespace.
    #[must_use]
    pub fn prefix<'a>(&'a self, namespace: &[u8; 32], tokens: &'a [u32]) -> Prefix<'a> {
        let root = self.hash(b'n', 0, namespace);
        let mut chain = Vec::with_capacity(tokens.len() / BLOCK_TOKENS + 1);
        chain.push(root);
        let mut last = root;
        for block in tokens.chunks_exact(BLOCK_TOKENS) {
            last = self.hash_tokens(b'b', last, block);
            chain.push(last);
        }
        Prefix { hasher: self, chain, tokens }
    }

    fn hash_tokens(&self, what: u8, before: u64, tokens: &[u32]) -> u64 {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        for token in tokens {
            bytes.extend_from_slice(&token.to_le_bytes());
        }
        self.hash(what, before, &bytes)
    }

    fn hash(&self, what: u8, before: u64, bytes: &[u8]) -> u64 {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&[what]);
        context.update(&before.to_le_bytes());
        context.update(bytes);
        let tag = context.sign();
        tag.as_ref().iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
    }
}

/// The hashes of one prompt.
#[derive(Debug, Clone)]
pub struct Prefix<'a> {
    hasher: &'a BlockHasher,
    /// The namespace's own hash, then one for each complete block.
    chain: Vec<u64>,
    tokens: &'a [u32],
}

impl Prefix<'_> {
    /// The hashes of the complete blocks, the first one first.
    #[must_use]
    pub fn blocks(&self) -> &[u64] {
        self.chain.get(1..).unwrap_or_default()
    }

    /// The boundary after that many tokens, as a node announces it; `None` past the end.
    #[must_use]
    pub fn boundary(&self, tokens: usize) -> Option<Boundary> {
        let blocks = tokens / BLOCK_TOKENS;
        let after = *self.chain.get(blocks)?;
        let rest = self.tokens.get(blocks * BLOCK_TOKENS..tokens)?;
        let tail = u16::try_from(rest.len()).ok()?;
        let hash = self.hasher.hash_tokens(b't', after, rest);
        Some(Boundary { blocks: u32::try_from(blocks).ok()?, after, tail, hash })
    }
}

/// What the index asks of a prompt. The simulator has prompts without tokens.
pub trait Lookup {
    /// The hashes of the complete blocks.
    fn blocks(&self) -> &[u64];
    /// The hash that covers the namespace alone: what comes before the first block.
    fn root(&self) -> u64;
    /// The hash of the boundary `tail` tokens behind the first `blocks` blocks; `None` if the prompt is shorter.
    fn tail_hash(&self, blocks: usize, tail: u16) -> Option<u64>;
}

impl Lookup for Prefix<'_> {
    fn blocks(&self) -> &[u64] {
        Prefix::blocks(self)
    }

    fn root(&self) -> u64 {
        self.chain.first().copied().unwrap_or_default()
    }

    fn tail_hash(&self, blocks: usize, tail: u16) -> Option<u64> {
        self.boundary(blocks.checked_mul(BLOCK_TOKENS)? + usize::from(tail)).map(|boundary| boundary.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(count: u32) -> Vec<u32> {
        (0..count).collect()
    }

    #[test]
    fn equal_prefixes_have_equal_hashes_up_to_the_first_difference() {
        let hasher = BlockHasher::new(b"key");
        let (one, mut other) = (tokens(1000), tokens(1000));
        other[600] = 7;
        let (a, b) = (hasher.prefix(&[1; 32], &one), hasher.prefix(&[1; 32], &other));
        assert_eq!(a.blocks().len(), 3);
        assert_eq!(a.blocks()[..2], b.blocks()[..2]);
        assert_ne!(a.blocks()[2], b.blocks()[2]);
        assert_eq!(a.boundary(600), b.boundary(600));
        assert_ne!(a.boundary(601), b.boundary(601));
        assert_eq!(a.boundary(1001), None);
    }

    #[test]
    fn another_key_or_namespace_shares_no_hash() {
        let all = tokens(512);
        let (ours, theirs) = (BlockHasher::new(b"key"), BlockHasher::new(b"other"));
        let a = ours.prefix(&[1; 32], &all);
        assert!(a.blocks().iter().zip(theirs.prefix(&[1; 32], &all).blocks()).all(|(a, b)| a != b));
        assert!(a.blocks().iter().zip(ours.prefix(&[2; 32], &all).blocks()).all(|(a, b)| a != b));
    }

    #[test]
    fn a_block_at_another_place_has_another_hash() {
        let hasher = BlockHasher::new(b"key");
        let twice: Vec<u32> = tokens(256).into_iter().chain(tokens(256)).collect();
        let prefix = hasher.prefix(&[0; 32], &twice);
        assert_ne!(prefix.blocks()[0], prefix.blocks()[1]);
    }
}
