//! Namespaces and keys: what makes two states interchangeable, and the hash that names a row.
//!
//! `Namespace` gathers everything besides the tokens that the bytes of a state depend on.
//! `KeyHasher` feeds tokens once and yields the key of every prefix on the way. Called by the store on
//! save and lookup and by recovery. A key finds a row; it never decides that a row fits: tokens do.

use std::fmt;

use poncho_gguf::QuantType;
use sha2::{Digest, Sha256};

/// The name of a row: SHA-256 over its namespace and its tokens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 32]);

impl Key {
    /// A key from its bytes (from a file, or from a caller that kept it).
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes of the key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Parses exactly 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0_u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let mut value = 0_u8;
            for &digit in pair {
                let nibble = match digit {
                    b'0'..=b'9' => digit - b'0',
                    b'a'..=b'f' => digit - b'a' + 10,
                    _ => return None,
                };
                value = (value << 4) | nibble;
            }
            *byte = value;
        }
        Some(Self(bytes))
    }

    /// The key as 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        to_hex(&self.0)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.to_hex())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Key({})", self.to_hex())
    }
}

/// Lower-case hexadecimal digits of any bytes.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from(DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'?')));
        }
    }
    text
}

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
            self.hash.update(block.get(..run.len() * 4).unwrap_or(&[]));
        }
    }

    /// The key of everything fed so far.
    #[must_use]
    pub fn key(&self) -> Key {
        Key(self.hash.clone().finalize().into())
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

    #[test]
    fn hex_round_trips_and_rejects_other_spellings() {
        let key = namespace().key(&[5]);
        assert_eq!(Key::from_hex(&key.to_hex()), Some(key));
        assert_eq!(Key::from_hex(&key.to_hex().to_uppercase()), None);
        assert_eq!(Key::from_hex(&key.to_hex()[1..]), None);
    }
}
