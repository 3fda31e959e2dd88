//! The hash that stands for a computation: every bit of what goes in changes what comes out.
//!
//! Used by the stub's memory and model. Not for security, and not for the cache's keys; two different histories must
//! only never look alike by accident.

/// Mixes a word into a digest.
pub(super) fn mix(digest: u64, word: u64) -> u64 {
    let mut mixed = digest.rotate_left(27) ^ word.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ (mixed >> 32)
}

/// The digest of words in order.
pub(super) fn mix_all(words: &[u64]) -> u64 {
    words.iter().fold(words.len() as u64, |digest, &word| mix(digest, word))
}

/// The digest of bytes.
pub(super) fn mix_bytes(bytes: &[u8]) -> u64 {
    let mut digest = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let word = chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        digest = mix(digest, word);
    }
    digest
}

/// A number in `0.0..1.0`.
pub(super) fn unit(digest: u64) -> f32 {
    const STEP: f32 = 1.0 / 16_777_216.0;
    // 24 bits: every value is a f32 without rounding.
    (digest >> 40) as f32 * STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_length_and_every_bit_count() {
        assert_ne!(mix_all(&[1, 2]), mix_all(&[2, 1]));
        assert_ne!(mix_all(&[0]), mix_all(&[0, 0]));
        assert_ne!(mix_bytes(b"ab"), mix_bytes(b"ab\0"));
        let bits: std::collections::HashSet<u64> = (0..64).map(|bit| mix(7, 1 << bit)).collect();
        assert_eq!(bits.len(), 64);
        assert!((0..1000).map(|word| unit(mix(3, word))).all(|unit| (0.0..1.0).contains(&unit)));
    }
}
