//! How many rows of long prompts a tick may have, so that it ends soon enough for a request that arrives meanwhile.
//!
//! Pure: the worker brings the measured speed of a prefill. A decode call cannot be interrupted without losing its work, so
//! everybody waits for the end of the one that runs; what bounds that wait is the number of its rows. Slices have a price: a
//! processor reads a prompt a fifth faster in large ones. So a prompt that is alone is read in large ones, which a request that
//! arrives interrupts, until too much work was lost. Replies must not depend on the measured speed: rows change in powers of two and never fall below a number that llama.cpp's kernels compute alike.

use std::time::Duration;

/// A request with at most this many tokens to compute is short: it goes before long prompts.
pub const SHORT: usize = 64;
/// A short request has its first token after this number of ticks at the latest.
pub const SHORT_TICKS: usize = 4;
/// The fewest rows of a slice: below this, a slice takes nearly as long as a larger one, and other kernels compute it.
pub(crate) const SMALLEST_SLICE: usize = 64;
/// How long the rows of long prompts in one tick may take, in seconds. [`SHORT_TICKS`] of them take a second.
const TICK_SECONDS: f64 = 0.25;

/// The share of the time of a prompt that may be lost to interruptions.
const LOST_SHARE: f64 = 0.08;
/// An interruption that may lose less than this is not worth its chance.
const LEAST_LOSS: Duration = Duration::from_millis(50);
/// A prompt is alone if nobody else was there for this long: requests come in groups.
pub(crate) const QUIET: Duration = Duration::from_secs(2);

/// How much work an interruption may lose: of a prompt that is read at `rate` tokens a second and has lost some already.
pub(crate) fn loss_left(prompt: usize, rate: Option<f64>, lost: Duration) -> Option<Duration> {
    let most = Duration::try_from_secs_f64(prompt as f64 / rate? * LOST_SHARE).ok()?;
    most.checked_sub(lost).filter(|left| *left >= LEAST_LOSS)
}

/// Rows of long prompts in a tick, at most `most`, for a prefill of `rate` tokens a second; `None` if that is not known. Work
/// of the time `lost` may be given up if a request arrives, so that the request does not wait for it.
pub(crate) fn long_rows(rate: Option<f64>, most: usize, lost: Duration) -> usize {
    let affordable = rate.unwrap_or(0.0) * (TICK_SECONDS + lost.as_secs_f64());
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
    fn a_prompt_loses_a_small_share_of_its_time_and_no_more() {
        let seconds = Duration::from_secs;
        assert_eq!(loss_left(8_000, Some(100.0), Duration::ZERO), Some(Duration::from_millis(6_400)));
        assert_eq!(loss_left(8_000, Some(100.0), seconds(6)), Some(Duration::from_millis(400)));
        assert_eq!(loss_left(8_000, Some(100.0), seconds(7)), None);
        assert_eq!(loss_left(8_000, Some(1e6), Duration::ZERO), None, "a call is over soon enough");
        assert_eq!(loss_left(8_000, None, Duration::ZERO), None, "nothing is known");
        assert_eq!(loss_left(8_000, Some(0.0), Duration::ZERO), None);
    }

    #[test]
    fn a_fast_model_reads_whole_batches_and_a_slow_one_the_smallest_slices() {
        assert_eq!(long_rows(None, 2048, Duration::ZERO), 64, "nothing is known before the first prompt");
        assert_eq!(
            [90.0, 511.0, 512.0, 3_000.0, 1e9].map(|rate| long_rows(Some(rate), 2048, Duration::ZERO)),
            [64, 64, 128, 512, 2048]
        );
        assert_eq!(long_rows(Some(f64::NAN), 2048, Duration::ZERO), 64);
        assert_eq!(long_rows(Some(1e9), 1000, Duration::ZERO), 512, "a power of two");
        assert_eq!(long_rows(Some(1e9), 16, Duration::ZERO), 16, "a batch may be smaller");
        let lost = Duration::from_millis;
        assert_eq!([0, 800, 4_000].map(|most| long_rows(Some(130.0), 2048, lost(most))), [64, 128, 512]);
    }
}
