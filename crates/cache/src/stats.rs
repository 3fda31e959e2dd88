//! The counters of the cache, each name written once.
//!
//! `Counters` is bumped by the store, its writers and the lookup path; `CounterSnapshot` is what the logs, the
//! metrics page and the JSON output read. The table below is the only place where a counter's name is spelled.
//! Counting must never lock, block or order anything: every access is relaxed.

pub(crate) mod evictions;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::kinds::{SaveReason, Tier};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Counts `amount`; wraps after 2^64.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Counts the nanoseconds of a duration.
    pub fn add_nanos(&self, duration: Duration) {
        self.add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The count so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// All counters of one store.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: Counter,)+
        }

        /// The counters at one moment, and how full the tiers are. The counters are read one after another, so
        /// two of them may be an event apart.
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct CounterSnapshot {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Bytes held per tier, by `Tier::index`. Filled by the store.
            pub tier_bytes: [u64; Tier::ALL.len()],
            /// Rows held per tier, by `Tier::index`. Filled by the store.
            pub tier_rows: [u64; Tier::ALL.len()],
        }

        impl Counters {
            /// Reads every counter; the tiers' arrays are left at zero for the store to fill.
            #[must_use]
            pub fn snapshot(&self) -> CounterSnapshot {
                CounterSnapshot { $($name: self.$name.get(),)+ ..CounterSnapshot::default() }
            }
        }

        impl CounterSnapshot {
            /// Every counter with its one name, in the order of the table. None of them ever goes down.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }

            /// Every counter with its name and what it counts, in the order of the table.
            pub fn described(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name)),+].into_iter()
            }
        }
    };
}

counters! {
    /// Lookups answered by the row of the whole prompt.
    hits_exact,
    /// Lookups answered by the parent row that the caller named.
    hits_resume,
    /// Lookups answered by the longest stored prefix.
    hits_longest_prefix,
    /// Lookups that found nothing.
    misses,
    /// Rows saved after a cold prefill.
    saves_cold,
    /// Rows saved while generating.
    saves_continued,
    /// Rows saved at the end of a request.
    saves_finish,
    /// Rows saved because a sequence had to give up its place.
    saves_evict,
    /// Rows saved because the model was unloaded.
    saves_shutdown,
    /// Saves given up: no room, a full write queue, a tier that is off, a failed or slow write, a key in use.
    saves_dropped,
    /// Saves that failed in a tier.
    save_failures,
    /// Rows thrown out to make room.
    evictions,
    /// Files moved aside because a check failed.
    corrupt_files,
    /// Files left alone because their version is not known.
    unknown_files,
    /// Saves given up because the row was there already.
    duplicate_dropped,
    /// Rows dropped because a row of their chain is gone.
    orphans_dropped,
    /// Times the `ram_file` tier was switched off by a fault.
    tier_off_ram_file,
    /// Times the `disk` tier was switched off by a fault.
    tier_off_disk,
    /// Restores given up because a file tier did not answer in time; their tokens were computed.
    reads_late,
    /// Keys looked up in the index.
    probes,
    /// Time spent packing states.
    pack_nanos,
    /// Bytes of packed states.
    pack_bytes,
    /// Time spent loading rows.
    load_nanos,
    /// Bytes of loaded rows.
    load_bytes,
    /// Time spent in lookups.
    lookup_nanos,
    /// Time spent writing rows.
    save_nanos,
    /// Bytes of written rows.
    save_bytes,
}

impl Counters {
    /// Counts a finished save. A row of unknown reason is another writer's and is not counted as saved here.
    pub fn saved(&self, reason: SaveReason) {
        match reason {
            SaveReason::Unknown => {}
            SaveReason::Cold => self.saves_cold.increment(),
            SaveReason::Continued => self.saves_continued.increment(),
            SaveReason::Evict => self.saves_evict.increment(),
            SaveReason::Shutdown => self.saves_shutdown.increment(),
            SaveReason::Finish => self.saves_finish.increment(),
        }
    }

    /// Counts that a tier was switched off by a fault. Memory has no such fault.
    pub fn tier_switched_off(&self, tier: Tier) {
        match tier {
            Tier::Ram => {}
            Tier::RamFile => self.tier_off_ram_file.increment(),
            Tier::Disk => self.tier_off_disk.increment(),
        }
    }
}

impl CounterSnapshot {
    /// Bytes and rows of each tier. These go up and down.
    pub fn tiers(&self) -> impl Iterator<Item = (Tier, u64, u64)> {
        Tier::ALL.into_iter().zip(self.tier_bytes).zip(self.tier_rows).map(|((tier, bytes), rows)| (tier, bytes, rows))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn value(snapshot: &CounterSnapshot, name: &str) -> u64 {
        snapshot.fields().find(|field| field.0 == name).unwrap().1
    }

    #[test]
    fn each_field_reports_its_own_counter() {
        let counters = Counters::default();
        counters.hits_exact.add(3);
        counters.save_bytes.add(70);
        counters.lookup_nanos.add_nanos(Duration::from_micros(2));
        let snapshot = counters.snapshot();
        assert_eq!(value(&snapshot, "hits_exact"), 3);
        assert_eq!(value(&snapshot, "save_bytes"), 70);
        assert_eq!(value(&snapshot, "lookup_nanos"), 2000);
        assert_eq!(snapshot.fields().map(|field| field.1).sum::<u64>(), 2073, "nothing else was counted");
        let names: BTreeSet<_> = snapshot.fields().map(|field| field.0).collect();
        assert_eq!(names.len(), 27);
    }

    #[test]
    fn saves_are_counted_under_the_word_of_their_reason() {
        for reason in SaveReason::ALL {
            let counters = Counters::default();
            counters.saved(reason);
            let snapshot = counters.snapshot();
            let counted: Vec<_> = snapshot.fields().filter(|field| field.1 > 0).collect();
            let expected = format!("saves_{reason}");
            if reason == SaveReason::Unknown {
                assert_eq!(counted, []);
            } else {
                assert_eq!(counted, [(expected.as_str(), 1)]);
            }
        }
    }

    #[test]
    fn switched_off_tiers_are_counted_under_their_word() {
        for tier in [Tier::RamFile, Tier::Disk] {
            let counters = Counters::default();
            counters.tier_switched_off(tier);
            assert_eq!(value(&counters.snapshot(), &format!("tier_off_{tier}")), 1);
        }
    }

    #[test]
    fn tiers_are_paired_with_their_own_slots() {
        let snapshot = CounterSnapshot { tier_bytes: [1, 2, 3], tier_rows: [4, 5, 6], ..CounterSnapshot::default() };
        for (tier, bytes, rows) in snapshot.tiers() {
            assert_eq!((bytes, rows), (snapshot.tier_bytes[tier.index()], snapshot.tier_rows[tier.index()]));
        }
        assert_ne!(snapshot, CounterSnapshot::default());
    }
}
