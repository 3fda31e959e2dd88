//! Evictions over time: how many rows and bytes left which tier, and why, by the hour.
//!
//! The store counts, reports read, and `folder/notes.rs` keeps the text over restarts. Bounded: the oldest hours leave
//! first. It must never do I/O.

use std::collections::BTreeMap;

use crate::io::sync::Mutex;
use crate::kinds::{EvictionCause, Tier};

/// Hours that are kept: 30 days.
const MOST_HOURS: u64 = 30 * 24;
const SECONDS_AN_HOUR: u64 = 3600;

/// Rows that left a tier within one hour for one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evictions {
    /// The beginning of the hour, unix seconds.
    pub hour: u64,
    /// The tier that they left.
    pub tier: Tier,
    /// Why they left.
    pub cause: EvictionCause,
    /// How many rows.
    pub rows: u64,
    /// Their bytes in that tier.
    pub bytes: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct EvictionLog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By hours since 1970, tier and cause: rows and bytes.
    sums: BTreeMap<(u64, Tier, EvictionCause), (u64, u64)>,
    is_changed: bool,
}

impl EvictionLog {
    /// Counts rows that left a tier.
    pub(crate) fn add(&self, now: u64, tier: Tier, cause: EvictionCause, rows: u64, bytes: u64) {
        if rows == 0 {
            return;
        }
        let mut state = self.0.lock();
        let hour = now / SECONDS_AN_HOUR;
        let sum = state.sums.entry((hour, tier, cause)).or_default();
        *sum = (sum.0.saturating_add(rows), sum.1.saturating_add(bytes));
        state.is_changed = true;
        // A clock that was wrong must not keep its hours forever.
        while state.sums.first_key_value().is_some_and(|((first, ..), _)| hour.saturating_sub(*first) >= MOST_HOURS) {
            state.sums.pop_first();
        }
    }

    /// All sums, the oldest first.
    pub(crate) fn all(&self) -> Vec<Evictions> {
        let state = self.0.lock();
        let shown = state.sums.iter().map(|((hour, tier, cause), (rows, bytes))| Evictions {
            hour: hour.saturating_mul(SECONDS_AN_HOUR),
            tier: *tier,
            cause: *cause,
            rows: *rows,
            bytes: *bytes,
        });
        shown.collect()
    }

    /// Whether the sums changed since their text was taken.
    pub(crate) fn is_changed(&self) -> bool {
        self.0.lock().is_changed
    }

    /// The sums as lines of text if they changed since the last call.
    pub(crate) fn take_text(&self) -> Option<String> {
        if !std::mem::take(&mut self.0.lock().is_changed) {
            return None;
        }
        let line = |sum: &Evictions| format!("{} {} {} {} {}\n", sum.hour, sum.tier, sum.cause, sum.rows, sum.bytes);
        Some(self.all().iter().map(line).collect())
    }

    /// Adds the sums of a text. Lines that cannot be parsed are skipped.
    pub(crate) fn add_text(&self, text: &str, now: u64) {
        let oldest = now.saturating_sub(MOST_HOURS * SECONDS_AN_HOUR);
        for line in text.lines() {
            let mut words = line.split(' ');
            let hour = words.next().and_then(|word| word.parse().ok());
            let tier = words.next().and_then(Tier::from_name);
            let cause = words.next().and_then(EvictionCause::from_name);
            let [rows, bytes] = [words.next(), words.next()].map(|word| word.and_then(|word| word.parse().ok()));
            if let (Some(hour), Some(tier), Some(cause), Some(rows), Some(bytes)) = (hour, tier, cause, rows, bytes)
                && (oldest..=now).contains(&hour)
            {
                self.add(hour, tier, cause, rows, bytes);
            }
        }
        self.0.lock().is_changed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    #[test]
    fn evictions_are_summed_by_hour_tier_and_cause_and_survive_as_text() {
        let log = EvictionLog::default();
        log.add(NOW, Tier::Ram, EvictionCause::Room, 2, 100);
        log.add(NOW + 10, Tier::Ram, EvictionCause::Room, 1, 50);
        log.add(NOW + 10, Tier::Disk, EvictionCause::Asked, 1, 7);
        log.add(NOW + 7200, Tier::Ram, EvictionCause::Pressure, 1, 9);
        log.add(NOW, Tier::Ram, EvictionCause::Quota, 0, 0);
        let all = log.all();
        assert_eq!(all.len(), 3);
        let hour = NOW / 3600 * 3600;
        let first = Evictions { hour, tier: Tier::Ram, cause: EvictionCause::Room, rows: 3, bytes: 150 };
        assert_eq!(all[0], first);
        let text = log.take_text().unwrap();
        assert_eq!(log.take_text(), None, "nothing changed since");
        let again = EvictionLog::default();
        again.add_text(&format!("\n1 2 3\n{NOW} tape room 1 1\n{NOW} ram room x 1\n{text}"), NOW + 7200);
        assert_eq!((again.all(), again.take_text()), (all, None));
    }

    #[test]
    fn hours_are_bounded_and_those_of_a_wrong_clock_are_not_read() {
        let log = EvictionLog::default();
        for hour in 0..2 * MOST_HOURS {
            log.add(NOW + hour * 3600, Tier::Disk, EvictionCause::Room, 1, 1);
        }
        assert_eq!(log.all().len() as u64, MOST_HOURS);
        let text = log.take_text().unwrap();
        let early = EvictionLog::default();
        early.add_text(&text, NOW);
        assert_eq!(early.all(), [], "all of them lie in the future");
    }
}
