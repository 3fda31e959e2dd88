//! When to save: the gates of a model and the pure decisions made from them.
//!
//! `Gates` is what a user wrote; `Policy` is the same, checked once, and can no longer be wrong. The engine asks
//! it for boundaries before a save, the store asks it whether a state is worth keeping. Nothing here does I/O,
//! keeps state or looks at tokens: offsets and counts in, decision out.

use std::time::Duration;

use crate::kinds::SaveReason;

pub use poncho_kinds::Gates;

/// Gates that contradict each other or make a kind of save impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// Prompts would pass the cold gate only to be refused by the general one.
    #[error(
        "cold_min_tokens ({cold_min_tokens}) is below min_tokens ({min_tokens}): such cold saves would always be \
         refused; raise cold_min_tokens to at least {min_tokens} or lower min_tokens"
    )]
    ColdMinBelowMin {
        /// The configured `cold_min_tokens`.
        cold_min_tokens: u32,
        /// The configured `min_tokens`.
        min_tokens: u32,
    },
    /// No prompt length lies between the two cold gates.
    #[error(
        "cold_max_tokens ({cold_max_tokens}) is below cold_min_tokens ({cold_min_tokens}): no prompt could be saved \
         cold; raise cold_max_tokens or lower cold_min_tokens"
    )]
    ColdMaxBelowColdMin {
        /// The configured `cold_max_tokens`.
        cold_max_tokens: u32,
        /// The configured `cold_min_tokens`.
        cold_min_tokens: u32,
    },
    /// Rounding to a multiple of nothing.
    #[error("boundary_align_tokens is 0; set it to 1 to save at any token, or to a multiple such as 2048")]
    AlignZero,
    /// A save after every zero tokens.
    #[error("continued_interval is 0; set it to how many generated tokens lie between two saves, such as 2048")]
    ContinuedIntervalZero,
    /// Nothing is left of the longest cold save.
    #[error(
        "boundary_trim_tokens ({boundary_trim_tokens}) is not below cold_max_tokens ({cold_max_tokens}): nothing would \
         be left to save; lower boundary_trim_tokens (32 is usual) or raise cold_max_tokens"
    )]
    TrimNotBelowColdMax {
        /// The configured `boundary_trim_tokens`.
        boundary_trim_tokens: u32,
        /// The configured `cold_max_tokens`.
        cold_max_tokens: u32,
    },
    /// The longest prompt under the cap still has no boundary that may be saved.
    #[error(
        "boundary_align_tokens ({boundary_align_tokens}) leaves no boundary between min_tokens ({min_tokens}) and \
         cold_max_tokens ({cold_max_tokens}) less boundary_trim_tokens ({boundary_trim_tokens}): the last one is at \
         {last_boundary}; lower boundary_align_tokens or min_tokens, or raise cold_max_tokens"
    )]
    AlignLeavesNoBoundary {
        /// The configured `boundary_align_tokens`.
        boundary_align_tokens: u32,
        /// The configured `boundary_trim_tokens`.
        boundary_trim_tokens: u32,
        /// The configured `cold_max_tokens`.
        cold_max_tokens: u32,
        /// The configured `min_tokens`.
        min_tokens: u32,
        /// Where the longest single cold save would end.
        last_boundary: u32,
    },
    /// Every save that a caller waits for would be given up at once.
    #[error("evict_save_timeout_ms is 0: every evict and shutdown save would be lost; set it to 30000 or so")]
    EvictSaveTimeoutZero,
}

/// Checked gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    gates: Gates,
}

impl Policy {
    /// Checks the gates; the error names the ones that contradict each other.
    ///
    /// # Errors
    /// The first invalid gate or pair of gates.
    pub fn new(gates: Gates) -> Result<Self, GateError> {
        let Gates {
            min_tokens,
            cold_min_tokens,
            cold_max_tokens,
            continued_interval,
            boundary_trim_tokens,
            boundary_align_tokens,
            session_resume_wait_ms: _,
            evict_save_timeout_ms,
        } = gates;
        if boundary_align_tokens == 0 {
            return Err(GateError::AlignZero);
        }
        if continued_interval == 0 {
            return Err(GateError::ContinuedIntervalZero);
        }
        if evict_save_timeout_ms == 0 {
            return Err(GateError::EvictSaveTimeoutZero);
        }
        if cold_min_tokens < min_tokens {
            return Err(GateError::ColdMinBelowMin { cold_min_tokens, min_tokens });
        }
        if cold_max_tokens < cold_min_tokens {
            return Err(GateError::ColdMaxBelowColdMin { cold_max_tokens, cold_min_tokens });
        }
        if boundary_trim_tokens >= cold_max_tokens {
            return Err(GateError::TrimNotBelowColdMax { boundary_trim_tokens, cold_max_tokens });
        }
        let longest = cold_max_tokens - boundary_trim_tokens;
        let last_boundary = longest - longest % boundary_align_tokens;
        if last_boundary < min_tokens.max(1) {
            return Err(GateError::AlignLeavesNoBoundary {
                boundary_align_tokens,
                boundary_trim_tokens,
                cold_max_tokens,
                min_tokens,
                last_boundary,
            });
        }
        Ok(Self { gates })
    }

    /// The gates, as they were configured.
    #[must_use]
    pub const fn gates(&self) -> &Gates {
        &self.gates
    }

    /// How long a request with a parent key waits for that row.
    #[must_use]
    pub const fn session_resume_wait(&self) -> Duration {
        Duration::from_millis(self.gates.session_resume_wait_ms)
    }

    /// Bound of the saves that a caller waits for.
    #[must_use]
    pub const fn evict_save_timeout(&self) -> Duration {
        Duration::from_millis(self.gates.evict_save_timeout_ms)
    }

    /// Whether a state of `token_count` tokens is worth a row. The same floor holds for every reason: a short state is
    /// computed again sooner than it is found, read and put back.
    #[must_use]
    pub fn should_save(&self, _reason: SaveReason, token_count: usize) -> bool {
        token_count >= tokens(self.gates.min_tokens).max(1)
    }

    /// Whether the tokens generated since the last save call for a continued one.
    #[must_use]
    pub fn continued_due(&self, tokens_since_last_save: usize) -> bool {
        tokens_since_last_save >= tokens(self.gates.continued_interval)
    }

    /// The boundary of a single cold save of a prompt of `n` tokens: `floor((n - trim) / align) * align`, none if
    /// that is 0 or `n` is outside the cold gates. The result may still be under `min_tokens` when the alignment is
    /// small; `should_save` has the last word, and `cold_boundaries` has asked it already.
    #[must_use]
    pub fn cold_boundary(&self, n: usize) -> Option<usize> {
        let in_gates = n >= tokens(self.gates.cold_min_tokens) && n <= tokens(self.gates.cold_max_tokens);
        Some(self.trimmed_and_aligned(n)).filter(|&boundary| in_gates && boundary > 0)
    }

    /// The boundaries at which a cold prompt of `n` tokens is saved, ascending. No save covers more than
    /// `cold_max_tokens` beyond the one before it; a longer prompt becomes a chain that ends at its last boundary.
    #[must_use]
    pub fn cold_boundaries(&self, n: usize) -> Vec<usize> {
        if n < tokens(self.gates.cold_min_tokens) {
            return Vec::new();
        }
        let last = self.trimmed_and_aligned(n);
        // The check of the gates makes this at least one alignment and at least min_tokens.
        let stride = self.aligned(tokens(self.gates.cold_max_tokens)).max(1);
        let mut boundaries: Vec<usize> = (1..=last / stride).map(|link| link.saturating_mul(stride)).collect();
        if !last.is_multiple_of(stride) && self.should_save(SaveReason::Cold, last) {
            boundaries.push(last);
        }
        boundaries
    }

    /// Where to save a prompt of `n` tokens on a model with a state that cannot be cut: at the hints, which are the ends
    /// of the system prompt with its tools and of each message, because the next turn diverges exactly there. Hints
    /// past `n` and under `min_tokens` fall away; a hint at `n` itself stays, so the last usable one is always there.
    #[must_use]
    pub fn resumable_boundaries(&self, n: usize, hints: &[usize]) -> Vec<usize> {
        let usable = |hint: &usize| *hint <= n && self.should_save(SaveReason::Cold, *hint);
        let mut boundaries: Vec<usize> = hints.iter().copied().filter(usable).collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        boundaries
    }

    fn trimmed_and_aligned(&self, n: usize) -> usize {
        self.aligned(n.saturating_sub(tokens(self.gates.boundary_trim_tokens)))
    }

    fn aligned(&self, n: usize) -> usize {
        n - n % tokens(self.gates.boundary_align_tokens).max(1)
    }
}

impl Default for Policy {
    /// The default gates, which a test shows to be valid.
    fn default() -> Self {
        Self { gates: Gates::default() }
    }
}

fn tokens(gate: u32) -> usize {
    usize::try_from(gate).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refusal(change: impl FnOnce(&mut Gates)) -> GateError {
        let mut gates = Gates::default();
        change(&mut gates);
        Policy::new(gates).unwrap_err()
    }

    #[test]
    fn default_gates_are_valid_and_those_of_the_design() {
        assert_eq!(Policy::new(Gates::default()), Ok(Policy::default()));
        let policy = Policy::default();
        assert_eq!(policy.session_resume_wait(), Duration::from_millis(500));
        assert_eq!(policy.evict_save_timeout(), Duration::from_secs(30));
        assert_eq!(
            [511, 2079, 2080, 4127, 4128].map(|n| policy.cold_boundary(n)),
            [None, None, Some(2048), Some(2048), Some(4096)]
        );
        assert_eq!(policy.cold_boundary(30_000), Some(28_672));
        assert_eq!(policy.cold_boundary(30_001), None, "one save never goes past the cap");
    }

    #[test]
    fn senseless_gates_are_refused_by_name() {
        assert_eq!(refusal(|gates| gates.boundary_align_tokens = 0), GateError::AlignZero);
        assert_eq!(refusal(|gates| gates.continued_interval = 0), GateError::ContinuedIntervalZero);
        assert_eq!(refusal(|gates| gates.evict_save_timeout_ms = 0), GateError::EvictSaveTimeoutZero);
        assert_eq!(
            refusal(|gates| gates.cold_min_tokens = 511),
            GateError::ColdMinBelowMin { cold_min_tokens: 511, min_tokens: 512 }
        );
        assert_eq!(
            refusal(|gates| gates.cold_max_tokens = 500),
            GateError::ColdMaxBelowColdMin { cold_max_tokens: 500, cold_min_tokens: 512 }
        );
        assert_eq!(
            refusal(|gates| gates.boundary_trim_tokens = 30_000),
            GateError::TrimNotBelowColdMax { boundary_trim_tokens: 30_000, cold_max_tokens: 30_000 }
        );
        let align = refusal(|gates| gates.boundary_align_tokens = 29_969);
        assert!(matches!(align, GateError::AlignLeavesNoBoundary { last_boundary: 0, .. }));
        let under_min = refusal(|gates| (gates.min_tokens, gates.cold_min_tokens) = (29_000, 29_000));
        assert!(matches!(under_min, GateError::AlignLeavesNoBoundary { last_boundary: 28_672, .. }));
        for part in ["boundary_align_tokens (2048)", "min_tokens (29000)", "28672"] {
            assert!(under_min.to_string().contains(part), "{under_min}");
        }
    }

    #[test]
    fn long_prompt_becomes_a_chain_of_capped_saves() {
        let policy = Policy::default();
        assert_eq!(policy.cold_boundaries(100_000), [28_672, 57_344, 86_016, 98_304]);
        assert_eq!(policy.cold_boundaries(28_672 * 2 + 32), [28_672, 57_344]);
        assert_eq!(policy.cold_boundaries(30_001), [28_672]);
        assert_eq!(policy.cold_boundaries(600), [0_usize; 0]);
        let fine = Policy::new(Gates { boundary_align_tokens: 64, ..Gates::default() }).unwrap();
        assert_eq!(
            (fine.cold_boundary(520), fine.cold_boundaries(520)),
            (Some(448), vec![]),
            "448 is under min_tokens"
        );
    }

    #[test]
    fn hints_are_kept_unless_they_are_short_or_past_the_end() {
        let policy = Policy::default();
        assert_eq!(policy.resumable_boundaries(5000, &[4000, 511, 512, 4000, 5000, 5001]), [512, 4000, 5000]);
        assert_eq!(policy.resumable_boundaries(400, &[100, 400]), [0_usize; 0]);
    }

    #[test]
    fn empty_state_is_never_saved_even_without_a_minimum() {
        let gates = Gates { min_tokens: 0, cold_min_tokens: 0, boundary_align_tokens: 1, ..Gates::default() };
        let policy = Policy::new(gates).unwrap();
        assert!(SaveReason::ALL.into_iter().all(|reason| !policy.should_save(reason, 0)));
        assert!(SaveReason::ALL.into_iter().all(|reason| policy.should_save(reason, 1)));
        assert_eq!(policy.cold_boundaries(0), [0_usize; 0]);
        assert!(!policy.continued_due(2047) && policy.continued_due(2048));
    }

    /// Valid policies from the whole range of gates, mostly small ones so that edges meet.
    fn policies() -> impl Strategy<Value = Policy> {
        let gate = || prop_oneof![0_u32..40, 0_u32..5000, any::<u32>()];
        (gate(), gate(), gate(), gate(), gate()).prop_filter_map("refused gates", |(min, more, span, trim, align)| {
            let cold_min = min.checked_add(more)?;
            let gates = Gates {
                min_tokens: min,
                cold_min_tokens: cold_min,
                cold_max_tokens: cold_min.checked_add(span)?,
                boundary_trim_tokens: trim,
                boundary_align_tokens: align,
                ..Gates::default()
            };
            Policy::new(gates).ok()
        })
    }

    proptest! {
        #[test]
        fn boundaries_obey_every_gate(policy in policies(), n in prop_oneof![0_usize..200, 0_usize..100_000]) {
            let gates = *policy.gates();
            let boundaries = policy.cold_boundaries(n);
            prop_assert!(boundaries.is_sorted_by(|a, b| a < b));
            let mut previous = 0;
            for &boundary in &boundaries {
                prop_assert_eq!(boundary % tokens(gates.boundary_align_tokens), 0);
                prop_assert!(boundary + tokens(gates.boundary_trim_tokens) <= n);
                prop_assert!(boundary - previous <= tokens(gates.cold_max_tokens));
                prop_assert!(policy.should_save(SaveReason::Cold, boundary));
                previous = boundary;
            }
            prop_assert!(boundaries.is_empty() || n >= tokens(gates.cold_min_tokens));
            if let Some(single) = policy.cold_boundary(n) {
                prop_assert!(single > 0 && single + tokens(gates.boundary_trim_tokens) <= n);
                if policy.should_save(SaveReason::Cold, single) {
                    prop_assert_eq!(boundaries.last(), Some(&single));
                }
            }
        }

        #[test]
        fn last_boundary_never_moves_back_as_the_prompt_grows(policy in policies(), n in 0_usize..100_000, more in 0_usize..9000) {
            prop_assert!(policy.cold_boundaries(n).last() <= policy.cold_boundaries(n + more).last());
        }

        #[test]
        fn resumable_boundaries_are_exactly_the_usable_hints(n in 0_usize..3000, hints in prop::collection::vec(0_usize..4000, 0..20)) {
            let policy = Policy::default();
            let boundaries = policy.resumable_boundaries(n, &hints);
            prop_assert!(boundaries.is_sorted_by(|a, b| a < b));
            for hint in 0..4000 {
                let usable = hints.contains(&hint) && hint >= 512 && hint <= n;
                prop_assert_eq!(boundaries.contains(&hint), usable);
            }
        }
    }
}
