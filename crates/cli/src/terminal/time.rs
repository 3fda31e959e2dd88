//! Unix seconds as people read them: an ISO 8601 date in UTC, and how long ago.
//!
//! Used by the tables. Times come out of files and may be anything, also in the future.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// Now, in unix seconds.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `2026-01-31T23:59:59Z`. Years with more than four digits are written with all of them.
pub(crate) fn iso(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / DAY, unix_seconds % DAY);
    // Days since 0000-03-01: with the year beginning in March, the leap day is its last day.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// `5 min ago`, in the largest unit that fits.
pub(crate) fn ago(now: u64, then: u64) -> String {
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
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(iso(seconds), expected);
        }
        assert!(iso(u64::MAX).ends_with('Z'), "any number is a date");
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
