//! Namespaces and keys: what makes two states interchangeable, and the hash that names a row.
//!
//! `Namespace` gathers everything besides the tokens that the bytes of a state depend on.
//! `KeyHasher` feeds tokens once and yields the key of every prefix on the way. Called by the store on
//! save and lookup and by recovery. A key finds a row; it never decides that a row fits: tokens do.

use poncho_gguf::QuantType;
pub use poncho_kinds::{Key, to_hex};
use sha2::{Digest, Sha256};

/// What must agree for two states to be interchangeable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    /// The model's fingerprint with its adapters folded in.
    pub fingerprint: [u8; 32],
    /// The quantisation of the weights.
    pub quant: QuantType,
    /// Hash of the context settings that change the bytes or the meaning of the state.
    pub context_hash: [u8; 32],
}

impl Namespace {
    /// A hasher that has seen the namespace and no token yet.
    #[must_use]
    pub fn hasher(&self) -> KeyHasher {
        let mut hash = Sha256::new();
        hash.update(self.fingerprint);
        hash.update([self.quant.byte()]);
        hash.update(self.context_hash);
        KeyHasher { hash }
    }

    /// The key of the row for exactly these tokens.
    #[must_use]
    pub fn key(&self, tokens: &[u32]) -> Key {
        let mut hasher = self.hasher();
        hasher.update(tokens);
        hasher.key()
    }

    /// The keys of the prefixes that end at `boundaries` (ascending), in one pass over the tokens.
    /// Boundaries past the end are left out.
    #[must_use]
    pub fn prefix_keys(&self, tokens: &[u32], boundaries: &[usize]) -> Vec<Key> {
        let mut hasher = self.hasher();
        let mut done = 0;
        let mut keys = Vec::with_capacity(boundaries.len());
        for &boundary in boundaries {
            let Some(next) = tokens.get(done..boundary) else { break };
            hasher.update(next);
            done = boundary;
            keys.push(hasher.key());
        }
        keys
    }
}

/// A running hash over a namespace and some tokens; cloning it is how one pass yields many keys.
#[derive(Clone)]
pub struct KeyHasher {
    hash: Sha256,
}

impl KeyHasher {
    /// Feeds more tokens, as little-endian `u32`.
    pub fn update(&mut self, tokens: &[u32]) {
        // Through a block on the stack, so that the hash sees long runs whatever the byte order of the machine.
        let mut block = [0_u8; 4096];
        for run in tokens.chunks(block.len() / 4) {
            for (bytes, token) in block.chunks_exact_mut(4).zip(run) {
                bytes.copy_from_slice(&token.to_le_bytes());
            }
            let (filled, _) = block.split_at(run.len() * 4);
            self.hash.update(filled);
        }
    }

    /// The key of everything fed so far.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::from_bytes(self.hash.clone().finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        Namespace { fingerprint: [7; 32], quant: QuantType::Q4_1, context_hash: [9; 32] }
    }

    #[test]
    fn key_is_the_flat_hash_of_the_design() {
        let tokens = [1_u32, 70_000, 3];
        let mut flat = Vec::from([7_u8; 32]);
        flat.push(3);
        flat.extend([9_u8; 32]);
        for token in tokens {
            flat.extend(token.to_le_bytes());
        }
        let expected: [u8; 32] = Sha256::digest(&flat).into();
        assert_eq!(namespace().key(&tokens), Key::from_bytes(expected));
    }

    #[test]
    fn one_pass_yields_the_key_of_every_prefix() {
        let tokens: Vec<u32> = (0..5000).collect();
        let boundaries = [0, 1, 1024, 1025, 4999, 5000, 5001];
        let keys = namespace().prefix_keys(&tokens, &boundaries);
        assert_eq!(keys.len(), 6, "the boundary past the end is left out");
        for (key, boundary) in keys.iter().zip(boundaries) {
            assert_eq!(*key, namespace().key(&tokens[..boundary]));
        }
    }
}
