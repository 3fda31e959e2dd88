//! Times as people read them: an ISO 8601 date in UTC, how long ago or until when, and how long something took.
//!
//! Used by the tables and the chat. Times come out of files and from servers and may be anything, also in the future.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// Weeks and months begin where days become hard to count.
const MONTH: u64 = 30 * DAY;
const YEAR: u64 = 365 * DAY;
/// 9999-12-31T23:59:59Z, the last date that the formatter knows.
const LAST_DATE: u64 = 253_402_300_799;

/// Now, in unix seconds.
#[must_use]
pub fn now() -> u64 {
    unix_seconds(SystemTime::now())
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `2026-01-31T23:59:59Z`. Dates after the year 9999 are shown as its last second.
#[must_use]
pub fn iso(unix_seconds: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(unix_seconds.min(LAST_DATE))).to_string()
}

/// The unix seconds of `2026-01-31T23:59:59Z`, with or without a fraction. `None` for any other text.
#[must_use]
pub fn parse_iso(text: &str) -> Option<u64> {
    humantime::parse_rfc3339(text).ok().map(unix_seconds)
}

/// `5 minutes ago`, or `in 5 minutes` for a time in the future.
#[must_use]
pub fn ago(now: u64, then: u64) -> String {
    match (now.checked_sub(then), then.saturating_sub(now)) {
        (Some(0..=9), _) => "just now".to_owned(),
        (Some(past), _) => format!("{} ago", rounded(past)),
        (None, future) => format!("in {}", rounded(future)),
    }
}

/// `5 minutes`, in the largest unit that fits.
fn rounded(seconds: u64) -> String {
    let (unit, name) = match seconds {
        0..MINUTE => (1, "second"),
        MINUTE..HOUR => (MINUTE, "minute"),
        HOUR..DAY => (HOUR, "hour"),
        DAY..MONTH => (DAY, "day"),
        MONTH..YEAR => (MONTH, "month"),
        _ => (YEAR, "year"),
    };
    match seconds / unit {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    }
}

/// How long something took: `85 ms`, `1.2 s`, `2 min 5 s`, `1 h 2 min`.
#[must_use]
pub fn show_duration(time: Duration) -> String {
    let milliseconds = time.as_millis();
    // The seconds are rounded first, so that no unit is shown in full.
    let seconds = (milliseconds + 500) / 1000;
    match milliseconds {
        0..1000 => format!("{milliseconds} ms"),
        1000..59_950 => format!("{:.1} s", time.as_secs_f64()),
        _ if seconds < u128::from(HOUR) => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_is_a_date() {
        assert_eq!(iso(0), "1970-01-01T00:00:00Z");
        assert_eq!(iso(1_700_000_000), "2023-11-14T22:13:20Z");
        for seconds in [LAST_DATE, LAST_DATE + 1, u64::MAX] {
            assert_eq!(iso(seconds), "9999-12-31T23:59:59Z");
        }
        for text in ["2023-11-14T22:13:20Z", "2023-11-14T22:13:20.123456Z"] {
            assert_eq!(parse_iso(text), Some(1_700_000_000), "{text}");
        }
        for text in ["", "soon", "2023-11-14", "0001-01-01T00:00:00Z", "2023-13-14T22:13:20Z"] {
            assert_eq!(parse_iso(text), None, "{text}");
        }
    }

    #[test]
    fn ages_take_the_largest_unit_that_fits() {
        for (age, expected) in [
            (0, "just now"),
            (10, "10 seconds ago"),
            (59, "59 seconds ago"),
            (60, "1 minute ago"),
            (3 * MINUTE + 59, "3 minutes ago"),
            (7199, "1 hour ago"),
            (2 * DAY, "2 days ago"),
            (DAY * 40, "1 month ago"),
            (DAY * 800, "2 years ago"),
        ] {
            assert_eq!(ago(1_000_000_000, 1_000_000_000 - age), expected);
        }
        assert_eq!(ago(5, 6), "in 1 second");
        assert_eq!(ago(0, 299), "in 4 minutes");
    }

    #[test]
    fn durations_have_two_digits_or_two_units() {
        for (milliseconds, expected) in [
            (0, "0 ms"),
            (85, "85 ms"),
            (999, "999 ms"),
            (1234, "1.2 s"),
            (59_949, "59.9 s"),
            (59_950, "1 min 0 s"),
            (125_000, "2 min 5 s"),
            (3_599_500, "1 h 0 min"),
            (3_725_000, "1 h 2 min"),
        ] {
            assert_eq!(show_duration(Duration::from_millis(milliseconds)), expected);
        }
    }
}
