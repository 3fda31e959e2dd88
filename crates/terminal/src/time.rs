//! Unix seconds as people read them: an ISO 8601 date in UTC, and how long ago.
//!
//! Used by the tables. Times come out of files and may be anything, also in the future.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;
/// 9999-12-31T23:59:59Z, the last date that the formatter knows.
const LAST_DATE: u64 = 253_402_300_799;

/// Now, in unix seconds.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `2026-01-31T23:59:59Z`. Dates after the year 9999 are shown as its last second.
#[must_use]
pub fn iso(unix_seconds: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(unix_seconds.min(LAST_DATE))).to_string()
}

/// `5 min ago`, in the largest unit that fits.
#[must_use]
pub fn ago(now: u64, then: u64) -> String {
    let Some(seconds) = now.checked_sub(then) else { return "in the future".to_owned() };
    match seconds {
        0 => "now".to_owned(),
        1..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..DAY => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / DAY),
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
    }

    #[test]
    fn ages_take_the_largest_unit_that_fits() {
        let cases = [(0, "now"), (59, "59 s ago"), (60, "1 min ago"), (7199, "1 h ago"), (DAY * 40, "40 d ago")];
        for (age, expected) in cases {
            assert_eq!(ago(1_000_000_000, 1_000_000_000 - age), expected);
        }
        assert_eq!(ago(5, 6), "in the future");
    }
}
