//! How many rows of long prompts a tick may have, so that it ends soon enough for a request that arrives meanwhile.
//!
//! Pure: the worker brings the measured speed of a prefill. A decode call cannot be interrupted without losing its work, so
//! everybody waits for the end of the one that runs; what bounds that wait is the number of its rows. Replies must not depend
//! on the measured speed: rows change in powers of two and never fall below a number that llama.cpp's kernels compute alike.

/// A request with at most this many tokens to compute is short: it goes before long prompts.
pub const SHORT: usize = 64;
/// A short request has its first token after this number of ticks at the latest.
pub const SHORT_TICKS: usize = 4;
/// The fewest rows of a slice: below this, a slice takes nearly as long as a larger one, and other kernels compute it.
pub(crate) const SMALLEST_SLICE: usize = 64;
/// How long the rows of long prompts in one tick may take, in seconds. [`SHORT_TICKS`] of them take a second.
const TICK_SECONDS: f64 = 0.25;

/// Rows of long prompts in a tick, at most `most`, for a prefill of `rate` tokens a second; `None` if that is not known.
pub(crate) fn long_rows(rate: Option<f64>, most: usize) -> usize {
    let affordable = rate.unwrap_or(0.0) * TICK_SECONDS;
    let mut rows = SMALLEST_SLICE;
    while rows.saturating_mul(2) <= most && (rows * 2) as f64 <= affordable {
        rows *= 2;
    }
    rows.min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_model_reads_whole_batches_and_a_slow_one_the_smallest_slices() {
        assert_eq!(long_rows(None, 2048), 64, "nothing is known before the first prompt");
        assert_eq!(
            [90.0, 511.0, 512.0, 3_000.0, 1e9].map(|rate| long_rows(Some(rate), 2048)),
            [64, 64, 128, 512, 2048]
        );
        assert_eq!(long_rows(Some(f64::NAN), 2048), 64);
        assert_eq!(long_rows(Some(1e9), 1000), 512, "a power of two");
        assert_eq!(long_rows(Some(1e9), 16), 16, "a batch may be smaller");
    }
}
