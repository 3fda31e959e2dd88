//! Times as numbers: milliseconds for JSON, microseconds for logs.
//!
//! Used by the record, the log lines and the dialects. It must never lose a time that is too long for its type.

use std::time::Duration;

/// A time in milliseconds with at most three decimals.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    let micros = (time + Duration::from_nanos(500)).as_micros();
    micros as f64 / 1000.0
}

/// Microseconds as a number that fits everywhere.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_at_most_three_decimals() {
        for (nanos, written) in [(153_294_651, "153.295"), (1, "0.0"), (1_000_000, "1.0"), (999_500, "1.0")] {
            assert_eq!(serde_json::json!(milliseconds(Duration::from_nanos(nanos))).to_string(), written);
        }
    }
}
