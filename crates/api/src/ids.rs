//! Names that nobody can guess: a prefix and random digits.
//!
//! Tool-call ids come back from clients, so they must not be countable. Nothing here is ever used as a path.

use std::hash::{BuildHasher, RandomState};

use poncho_kinds::to_hex;

/// 120 bits: no two meet and none is guessed.
const RANDOM_BYTES: usize = 15;

/// A new name, such as `chatcmpl-0f3a..`.
#[must_use]
pub fn random_id(prefix: &str) -> String {
    let mut bytes = [0_u8; RANDOM_BYTES];
    if getrandom::fill(&mut bytes).is_err() {
        // A system without a random source still gives each hasher its own seed.
        for part in bytes.chunks_mut(8) {
            let fresh = RandomState::new().hash_one(0_u8).to_le_bytes();
            part.iter_mut().zip(fresh).for_each(|(byte, random)| *byte = random);
        }
    }
    format!("{prefix}{}", to_hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_do_not_repeat_and_keep_their_prefix() {
        let ids: std::collections::BTreeSet<String> = (0..1000).map(|_| random_id("call_")).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.starts_with("call_") && id.len() == 5 + 2 * RANDOM_BYTES));
    }
}
