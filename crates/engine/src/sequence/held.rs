//! The content of sequences that no request runs on: idle sessions, and what finished requests left behind.
//!
//! Owned by `slots.rs`, which fills it when a request ends and searches it when one is admitted: a sequence that holds the
//! longest prefix of a prompt is used in place or copied. It must never describe a sequence that a request runs on.

use poncho_cache::Namespace;

use crate::backend::SeqId;
use crate::calls::tenant::Tenant;
use crate::schedule::prefix_sharing::common_prefix;
use crate::state::restore::Wanted;

/// The content of one sequence. It is never empty.
#[derive(Debug)]
pub(crate) struct Held {
    /// The whole conversation, including a last token that is not computed yet.
    pub(crate) tokens: Vec<u32>,
    /// How many of `tokens` the sequence holds.
    pub(crate) n_past: usize,
    /// The logits after `n_past` tokens, if they are known.
    pub(crate) logits: Option<Vec<f32>>,
    /// Leading tokens that were computed on the grid of exact requests.
    pub(crate) on_grid: usize,
    /// The namespace of the state.
    pub(crate) namespace: Namespace,
    /// The tenant that sent the tokens.
    pub(crate) tenant: Option<Tenant>,
}

impl Held {
    /// The tokens that the sequence holds.
    #[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
    pub(crate) fn committed(&self) -> &[u32] {
        self.tokens.get(..self.n_past).expect("invariant: a sequence holds a prefix of its conversation")
    }
}

/// A sequence at rest and how long it has been there.
#[derive(Debug)]
struct Resting {
    held: Held,
    /// Larger is later.
    used: u64,
    /// Rows that other requests computed since then.
    passed: usize,
}

/// The content of all sequences that no request runs on; empty ones have none.
#[derive(Debug)]
pub(crate) struct HeldTable {
    sequences: Vec<Option<Resting>>,
    clock: u64,
}

/// A sequence that shares a prefix with a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrefixMatch {
    pub(crate) seq: SeqId,
    /// Leading tokens of the prompt that it holds.
    pub(crate) common: usize,
    /// Whether it holds nothing else, so that nothing has to be cut.
    pub(crate) whole: bool,
}

impl HeldTable {
    pub(crate) fn new(n_seq: u32) -> Self {
        Self { sequences: (0..n_seq).map(|_| None).collect(), clock: 0 }
    }

    fn resting(&self, seq: SeqId) -> Option<&Resting> {
        self.sequences.get(seq as usize).and_then(Option::as_ref)
    }

    #[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
    fn slot(&mut self, seq: SeqId) -> &mut Option<Resting> {
        self.sequences.get_mut(seq as usize).expect("invariant: a sequence is one of the context's")
    }

    /// The content of a sequence; `None` if it is empty.
    pub(crate) fn get(&self, seq: SeqId) -> Option<&Held> {
        self.resting(seq).map(|resting| &resting.held)
    }

    /// The same with a number that no other content of this table ever had.
    pub(crate) fn stamped(&self, seq: SeqId) -> Option<(u64, &Held)> {
        self.resting(seq).map(|resting| (resting.used, &resting.held))
    }

    /// Takes the content out: a request runs on the sequence now, or it is about to be cleared.
    pub(crate) fn take(&mut self, seq: SeqId) -> Option<Held> {
        self.slot(seq).take().map(|resting| resting.held)
    }

    /// A request left this content behind.
    pub(crate) fn put(&mut self, seq: SeqId, held: Held) {
        debug_assert!(held.n_past > 0 && held.n_past <= held.tokens.len(), "invariant: content is never empty");
        self.clock += 1;
        let used = self.clock;
        *self.slot(seq) = Some(Resting { held, used, passed: 0 });
    }

    pub(crate) fn clear(&mut self) {
        self.sequences.iter_mut().for_each(|resting| *resting = None);
    }

    /// The sequence among `candidates` that holds the longest prefix of the prompt that a model can resume from.
    pub(crate) fn best(
        &self,
        wanted: &Wanted<'_>,
        can_cut: bool,
        candidates: impl Iterator<Item = SeqId>,
    ) -> Option<PrefixMatch> {
        candidates
            .filter_map(|seq| {
                let held = self.get(seq).filter(|held| held.namespace == *wanted.namespace)?;
                let mut common = common_prefix(wanted.prompt, held.committed());
                if let Some(grid) = wanted.grid {
                    let is_all = common == wanted.prompt.len() && common == held.n_past && common == held.on_grid;
                    if !is_all || held.logits.is_none() {
                        common = grid.usable(common.min(held.on_grid), wanted.prompt.len());
                    }
                }
                let whole = common == held.n_past;
                (common > 0 && (whole || can_cut)).then_some(PrefixMatch { seq, common, whole })
            })
            .max_by_key(|found| (found.common, found.whole))
    }

    /// The longest prefix of a prompt that is held with tokens that this tenant sent.
    pub(crate) fn own_reach(&self, tenant: &Tenant, namespace: &Namespace, prompt: &[u32]) -> usize {
        let all = self.sequences.iter().flatten().map(|resting| &resting.held);
        let own = all.filter(|held| held.namespace == *namespace && is_of(held.tenant, tenant));
        own.map(|held| common_prefix(prompt, held.committed())).max().unwrap_or(0)
    }

    /// Counts rows that other requests computed.
    pub(crate) fn pass(&mut self, rows: usize) {
        for resting in self.sequences.iter_mut().flatten() {
            resting.passed = resting.passed.saturating_add(rows);
        }
    }

    /// The non-empty sequence among `candidates` that most rows have passed, and at least `rows`.
    pub(crate) fn passed_by(&self, rows: usize, candidates: impl Iterator<Item = SeqId>) -> Option<SeqId> {
        candidates
            .filter_map(|seq| self.resting(seq).map(|resting| (resting.passed, seq)))
            .filter(|(passed, _)| *passed >= rows)
            .max()
            .map(|(_, seq)| seq)
    }

    /// A sequence stays as it is, and the rows that passed it no longer count.
    pub(crate) fn keep(&mut self, seq: SeqId) {
        if let Some(resting) = self.slot(seq) {
            resting.passed = 0;
        }
    }

    /// The non-empty sequence among `candidates` that was left longest ago.
    pub(crate) fn oldest(&self, candidates: impl Iterator<Item = SeqId>) -> Option<SeqId> {
        candidates.filter_map(|seq| self.resting(seq).map(|resting| (resting.used, seq))).min().map(|(_, seq)| seq)
    }
}

/// Whether a tenant is this one.
pub(crate) fn is_of(one: Option<Tenant>, tenant: &Tenant) -> bool {
    one.is_some_and(|one| one.id == tenant.id)
}

#[cfg(test)]
mod tests {
    use poncho_cache::QuantType;

    use super::*;

    fn namespace(number: u8) -> Namespace {
        Namespace { fingerprint: [number; 32], quant: QuantType::F16, context_hash: [0; 32] }
    }

    fn held(tokens: Vec<u32>) -> Held {
        Held { n_past: tokens.len(), tokens, logits: None, on_grid: 0, namespace: namespace(1), tenant: None }
    }

    fn table() -> HeldTable {
        let mut table = HeldTable::new(3);
        for (seq, tokens) in [(0, vec![1, 2, 3]), (1, vec![1, 2, 9, 9, 9]), (2, vec![1])] {
            table.put(seq, held(tokens));
        }
        table
    }

    #[test]
    fn the_longest_prefix_wins_and_a_model_that_cannot_be_cut_needs_a_whole_one() {
        let table = table();
        let prompt = [1, 2, 9, 4];
        let (one, two) = (namespace(1), namespace(2));
        let wanted = |namespace| Wanted { namespace, prompt: &prompt, grid: None };
        let cuttable = table.best(&wanted(&one), true, 0..3).unwrap();
        assert_eq!(cuttable, PrefixMatch { seq: 1, common: 3, whole: false });
        let whole = table.best(&wanted(&one), false, 0..3).unwrap();
        assert_eq!(whole, PrefixMatch { seq: 2, common: 1, whole: true });
        assert_eq!(table.best(&wanted(&two), true, 0..3), None, "other adapters, other state");
        assert_eq!(table.best(&wanted(&one), true, std::iter::empty()), None);
    }

    #[test]
    fn on_a_grid_only_what_was_read_on_it_is_taken_up_and_only_at_its_boundaries() {
        let mut table = HeldTable::new(1);
        let tokens: Vec<u32> = (0..30).collect();
        let grid = Some(crate::schedule::grid::Grid(std::num::NonZeroUsize::new(8).unwrap()));
        let one = namespace(1);
        let mut best = |on_grid: usize, n_past: usize, prompt: &[u32], can_cut: bool| {
            table.put(0, Held { n_past, on_grid, logits: Some(vec![0.0]), ..held(tokens.clone()) });
            table
                .best(&Wanted { namespace: &one, prompt, grid }, can_cut, 0..1)
                .map(|found| (found.common, found.whole))
        };
        let longer: Vec<u32> = (0..50).collect();
        assert_eq!(best(20, 30, &longer, true), Some((16, false)), "10 of 30 were generated");
        assert_eq!(best(20, 30, &longer, false), None);
        assert_eq!(best(24, 24, &longer, false), Some((24, true)));
        assert_eq!(best(20, 20, &tokens[..20], false), Some((20, true)), "all of it, with its logits");
        assert_eq!(best(16, 20, &tokens[..20], true), Some((16, false)), "its end was generated");
        assert_eq!(best(7, 30, &longer, true), None);
    }

    #[test]
    fn a_sequence_that_many_rows_have_passed_is_named_until_it_is_kept() {
        let mut table = table();
        table.pass(20);
        table.put(1, held(vec![7]));
        table.pass(12);
        assert_eq!(table.passed_by(33, 0..3), None);
        assert_eq!(table.passed_by(32, 0..2), Some(0), "1 was left later");
        table.keep(0);
        assert_eq!(table.passed_by(32, 0..2), None);
        assert_eq!(table.passed_by(32, 0..3), Some(2));
    }

    #[test]
    fn the_oldest_leftover_is_given_up_first() {
        let mut table = table();
        assert_eq!(table.oldest(0..3), Some(0));
        drop(table.take(0));
        assert_eq!(table.oldest(0..3), Some(1));
        table.clear();
        assert_eq!(table.oldest(0..3), None);
    }

    #[test]
    fn content_that_contradicts_itself_and_unknown_sequences_are_loud() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        let longer = Held { n_past: 4, ..held(vec![1, 2, 3]) };
        assert!(catch_unwind(AssertUnwindSafe(|| longer.committed().len())).is_err());
        let mut table = table();
        assert!(catch_unwind(AssertUnwindSafe(|| table.take(3))).is_err(), "the context has three sequences");
        assert!(catch_unwind(AssertUnwindSafe(|| table.put(9, held(vec![1])))).is_err());
    }
}
