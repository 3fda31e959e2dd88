//! The arithmetic of drawing: a generator of random numbers, and `exp` and `ln` that are the same on every machine.
//!
//! Used by the sampler alone. The C library's `exp` differs in its last bit from one system to the next, and one bit is
//! enough to draw another token; additions and multiplications do not differ. It must never call a library function
//! with a result that IEEE 754 does not fix.

/// xoshiro256++ by Blackman and Vigna, its state filled from the seed by SplitMix64, as its authors advise.
#[derive(Debug, Clone)]
pub(super) struct Random {
    state: [u64; 4],
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        let mut counter = seed;
        let state = std::array::from_fn(|_| {
            counter = counter.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut word = counter;
            word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            word ^ (word >> 31)
        });
        Self { state }
    }

    fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let word = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        word
    }

    /// A number in `0.0..1.0`, a multiple of 2^-53.
    pub(super) fn next_unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / 9_007_199_254_740_992.0;
        // 53 bits: every value is a f64 without rounding.
        (self.next_u64() >> 11) as f64 * STEP
    }
}

/// `e` to the power of a number that is not above 0, right to 14 digits; exactly 1 for 0. Below -708, where the result
/// would not be a normal number, it is 0.
pub(super) fn exp(x: f64) -> f64 {
    // Adding this leaves the nearest whole number in the lowest bits of the sum.
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    // The logarithm of 2 in two parts: the first has so few bits that its product with a small whole number is exact.
    const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Written so that a NaN ends here too.
    if !(-708.0..=0.0).contains(&x) {
        return 0.0;
    }
    let shifted = x * std::f64::consts::LOG2_E + ROUNDER;
    let halvings = shifted - ROUNDER;
    let rest = (x - halvings * LN_2_HIGH) - halvings * LN_2_LOW;
    // The series up to the 11th power, in pairs that a processor can compute side by side.
    let (square, fourth) = (rest * rest, rest * rest * (rest * rest));
    let low = (1.0 + rest) + (0.5 + rest * (1.0 / 6.0)) * square;
    let middle = (1.0 / 24.0 + rest * (1.0 / 120.0)) + (1.0 / 720.0 + rest * (1.0 / 5_040.0)) * square;
    let high = (1.0 / 40_320.0 + rest * (1.0 / 362_880.0)) + (1.0 / 3_628_800.0 + rest * (1.0 / 39_916_800.0)) * square;
    let fraction = low + middle * fourth + high * (fourth * fourth);
    // The low 12 bits of `shifted` hold `halvings` in two's complement; with the bias they become the exponent.
    fraction * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
}

/// The natural logarithm of a number in `0.0..=1.0`; exactly 0 for 1, minus infinity for 0.
pub(super) fn ln(x: f64) -> f64 {
    if x <= 0.0 {
        return f64::NEG_INFINITY;
    }
    // Divided by a power of 2 the number lies in 0.5..=1, where Newton's steps converge from 0 within six.
    let mut mantissa = x;
    let mut halvings = 0.0;
    while mantissa < 0.5 {
        mantissa *= 2.0;
        halvings += 1.0;
    }
    let mut y = 0.0;
    for _ in 0..8 {
        // The root of e^y = mantissa; 1 / e^y would be above 1, so both sides are scaled.
        let power = exp(y);
        y = (y + (mantissa - power) / power).min(0.0);
    }
    y - halvings * std::f64::consts::LN_2
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is what is wanted")]
pub(super) fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        // The first outputs of xoshiro256++ for the state 1, 2, 3, 4, from its reference implementation.
        let mut random = Random { state: [1, 2, 3, 4] };
        let words: Vec<u64> = (0..4).map(|_| random.next_u64()).collect();
        assert_eq!(words, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
        // And of SplitMix64 for the seed 0.
        assert_eq!(Random::new(0).state[0], 0xE220_A839_7B1D_CDAF);
    }

    #[test]
    fn unit_numbers_fill_the_unit_evenly() {
        let mut random = Random::new(7);
        let mut bins = [0_u32; 10];
        for _ in 0..10_000 {
            let unit = random.next_unit();
            assert!((0.0..1.0).contains(&unit));
            let bin = (1_u8..10).position(|edge| unit * 10.0 < edge.into()).unwrap_or(9);
            bins[bin] += 1;
        }
        assert!(bins.iter().all(|&bin| (900..1100).contains(&bin)), "{bins:?}");
    }

    #[test]
    fn the_ends_of_exp_and_ln_are_exact() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(f64::NAN), 0.0);
        assert_eq!(exp(-1e300), 0.0);
        assert!(exp(-708.0) > 0.0);
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(ln(0.0), f64::NEG_INFINITY);
        assert!((ln(f64::from(f32::from_bits(1))) - f64::from(f32::from_bits(1)).ln()).abs() < 1e-12);
    }

    #[test]
    fn exp_has_the_same_bits_everywhere() {
        // Recorded once: a change of these bits changes what stored seeds draw.
        let bits: Vec<u64> = [-0.5, -1.0, -3.25, -20.0, -700.0].iter().map(|&x| exp(x).to_bits()).collect();
        assert_eq!(bits, EXP_BITS);
    }

    const EXP_BITS: [u64; 5] = [
        0x3FE3_68B2_FC6F_960B,
        0x3FD7_8B56_362C_EF2B,
        0x3FA3_DA36_8521_902D,
        0x3E21_B486_55F3_7266,
        0x00D1_4F2B_0FB9_307F,
    ];

    proptest! {
        #[test]
        fn exp_agrees_with_the_library(x in -708.0_f64..=0.0) {
            let expected = x.exp();
            prop_assert!((exp(x) - expected).abs() <= expected * 1e-14);
        }

        #[test]
        fn ln_agrees_with_the_library(x in 1e-45_f64..=1.0) {
            prop_assert!((ln(x) - x.ln()).abs() <= 2e-14 * x.ln().abs().max(1.0));
        }
    }
}
