//! Backing off from evictions that do not help.
//!
//! Asked by the watcher before it evicts. A source may measure memory that holds no rows: evicting row after row
//! would then empty the cache and change nothing. Pure: no clock, no I/O; it counts samples.

/// The most samples that are skipped: five minutes with the usual interval.
const LONGEST_PAUSE: u32 = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// Bytes in use at the last eviction, until the next sample.
    before: Option<u64>,
    /// How many samples the next pause lasts.
    next_pause: u32,
    /// Samples that are still to be skipped.
    left: u32,
}

impl Backoff {
    /// Takes a sample at which bytes are wanted. Returns whether to evict: not for a growing while after an eviction that
    /// left no less in use.
    pub(super) fn may_evict(&mut self, used: u64) -> bool {
        match self.before.take() {
            Some(before) if used < before => self.calm(),
            Some(_) => {
                self.left = self.next_pause.max(1);
                self.next_pause = self.left.saturating_mul(2).min(LONGEST_PAUSE);
            }
            None => {}
        }
        let may = self.left == 0;
        self.left = self.left.saturating_sub(1);
        may
    }

    /// Rows were evicted at a sample. An eviction that found none is not counted: it cost nothing and proves nothing.
    pub(super) fn evicted(&mut self, used: u64, freed: u64) {
        self.before = (freed > 0).then_some(used);
    }

    /// Nothing is wanted, or the last eviction helped.
    pub(super) fn calm(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The samples, of `samples` in all, at which rows are given up; `used` returns what each sample finds.
    fn evictions(samples: u64, freed: u64, used: impl Fn(u64, usize) -> u64) -> Vec<u64> {
        let mut backoff = Backoff::default();
        let mut done = Vec::new();
        for sample in 0..samples {
            let used = used(sample, done.len());
            if backoff.may_evict(used) {
                backoff.evicted(used, freed);
                done.push(sample);
            }
        }
        done
    }

    /// Hardening 8: full memory of a GPU emptied the cache of the machine, row by row.
    #[test]
    fn evictions_that_change_nothing_become_rare() {
        let full = evictions(1000, 1, |_, _| 99);
        assert_eq!(full[..6], [0, 2, 5, 10, 19, 36], "pauses of 1, 2, 4, 8 and 16 samples");
        assert_eq!(full.len(), 7 + (1000 - 69) / 65, "and of 64 in the end: {full:?}");
        assert!(evictions(1000, 1, |sample, _| 99 + sample).len() < 25, "growing use is not a success either");
    }

    #[test]
    fn evictions_that_help_are_not_held_back() {
        assert_eq!(evictions(100, 1, |_, done| 1000 - done as u64).len(), 100);
        // Useless at first, then a help: the pauses begin from the start.
        let late = evictions(12, 1, |sample, _| if sample < 5 { 99 } else { 99 - sample });
        assert_eq!(late, [0, 2, 5, 6, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn an_eviction_that_found_nothing_is_tried_again_at_once() {
        assert_eq!(evictions(50, 0, |_, _| 99).len(), 50);
        let mut backoff = Backoff::default();
        assert!(backoff.may_evict(99));
        backoff.evicted(99, 5);
        assert!(!backoff.may_evict(99));
        backoff.calm();
        assert!(backoff.may_evict(99), "pressure was gone meanwhile");
    }
}
