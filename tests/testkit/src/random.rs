//! Seeded numbers and a stable hash, the only sources of variation in a generated file.
//!
//! `weights` draws from it, `fixture` names folders with the hash. It uses integers and the exactly rounded float
//! operations only: a logarithm or a cosine may differ in the last bit from one platform to the next.

/// SplitMix64: one addition and a mixing function for each number.
pub(crate) struct Random(u64);

impl Random {
    /// A stream of its own for each pair of seed and name, so that no tensor depends on the order of creation.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        let mut mixed = Self(seed);
        Self(mixed.next_u64() ^ fingerprint(name.as_bytes()))
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Bell-shaped, mean 0, deviation 1, never beyond 3.5: the sum of the four 16-bit quarters of one number.
    pub(crate) fn bell(&mut self) -> f32 {
        let z = self.next_u64();
        let sum = [z >> 48, z >> 32, z >> 16, z].iter().map(|quarter| (quarter & 0xffff) as f32).sum::<f32>();
        // Each quarter has mean 65535/2 and variance 65536^2/12.
        (sum - 131_070.0) * (3.0_f32.sqrt() / 65_536.0)
    }

    /// Evenly spread over `low..high`.
    pub(crate) fn between(&mut self, low: f32, high: f32) -> f32 {
        let part = (self.next_u64() >> 40) as f32 / 16_777_216.0;
        low + part * (high - low)
    }
}

/// 64-bit FNV-1a.
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_and_the_hash_match_their_published_values() {
        let mut random = Random(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
        assert_eq!(fingerprint(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn bell_has_mean_zero_and_deviation_one() {
        let mut random = Random::new(3, "bell");
        let draws: Vec<f32> = (0..20_000).map(|_| random.bell()).collect();
        let mean = draws.iter().sum::<f32>() / 20_000.0;
        let variance = draws.iter().map(|x| x * x).sum::<f32>() / 20_000.0;
        assert!(mean.abs() < 0.03, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.05, "variance {variance}");
    }

    #[test]
    fn names_and_seeds_give_streams_of_their_own() {
        let first = |seed, name| Random::new(seed, name).next_u64();
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
    }
}
