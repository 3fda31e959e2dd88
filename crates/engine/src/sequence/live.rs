//! What sequences hold when no request runs on them: idle sessions, and what finished requests left behind.
//!
//! The worker fills it when a request ends and asks it when one is admitted: a sequence that already holds the longest
//! prefix is used in place or copied. It records what the context holds; it must be cleared whenever the context is.

use poncho_cache::Namespace;

use crate::backend::SeqId;
use crate::calls::tenant::Tenant;
use crate::state::restore::Wanted;

/// The content of one sequence.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// Everything that was said, including a last token that is not computed yet.
    pub(crate) tokens: Vec<u32>,
    /// How many of `tokens` the sequence holds.
    pub(crate) n_past: usize,
    /// Logits after `n_past` tokens; empty if they are not known.
    pub(crate) logits: Vec<f32>,
    /// Leading tokens that were computed on the grid of exact requests.
    pub(crate) on_grid: usize,
    /// What the state depends on; `None` if the sequence is empty.
    pub(crate) namespace: Option<Namespace>,
    /// Who sent the tokens.
    pub(crate) tenant: Option<Tenant>,
    /// Larger is later.
    pub(crate) used: u64,
    /// Rows that other requests computed since then.
    pub(crate) passed: usize,
}

impl Live {
    /// The tokens that the sequence holds.
    pub(crate) fn committed(&self) -> &[u32] {
        self.tokens.get(..self.n_past).unwrap_or(&[])
    }
}

/// The content of every sequence that no request runs on.
#[derive(Debug, Default)]
pub(crate) struct LiveTable {
    sequences: Vec<Live>,
    clock: u64,
}

/// A sequence that shares a prefix with a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveMatch {
    pub(crate) seq: SeqId,
    /// Leading tokens of the prompt that it holds.
    pub(crate) common: usize,
    /// Whether it holds nothing else, so that nothing has to be cut.
    pub(crate) whole: bool,
}

impl LiveTable {
    pub(crate) fn new(n_seq: u32) -> Self {
        Self { sequences: (0..n_seq).map(|_| Live::default()).collect(), clock: 0 }
    }

    pub(crate) fn get(&self, seq: SeqId) -> Option<&Live> {
        self.sequences.get(seq as usize)
    }

    /// Takes the content out: a request runs on the sequence now.
    pub(crate) fn take(&mut self, seq: SeqId) -> Live {
        self.sequences.get_mut(seq as usize).map(std::mem::take).unwrap_or_default()
    }

    /// A request left this behind.
    pub(crate) fn put(&mut self, seq: SeqId, mut live: Live) {
        self.clock += 1;
        live.used = self.clock;
        if let Some(slot) = self.sequences.get_mut(seq as usize) {
            *slot = live;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.sequences.iter_mut().for_each(|live| *live = Live::default());
    }

    /// The sequence among `candidates` that holds the longest prefix of the prompt that a model can go on from.
    pub(crate) fn best(
        &self,
        wanted: &Wanted<'_>,
        can_cut: bool,
        candidates: impl Iterator<Item = SeqId>,
    ) -> Option<LiveMatch> {
        candidates
            .filter_map(|seq| {
                let live = self.get(seq).filter(|live| live.namespace.as_ref() == Some(wanted.namespace))?;
                let mut common = common_prefix(wanted.prompt, live.committed());
                if let Some(grid) = wanted.grid {
                    let is_all = common == wanted.prompt.len() && common == live.n_past && common == live.on_grid;
                    if !is_all || live.logits.is_empty() {
                        common = grid.usable(common.min(live.on_grid), wanted.prompt.len());
                    }
                }
                let whole = common == live.n_past;
                (common > 0 && (whole || can_cut)).then_some(LiveMatch { seq, common, whole })
            })
            .max_by_key(|found| (found.common, found.whole))
    }

    /// How many leading tokens of a prompt the sequences hold whose tokens this tenant sent.
    pub(crate) fn own_reach(&self, tenant: &Tenant, namespace: &Namespace, prompt: &[u32]) -> usize {
        let is_own = |live: &&Live| live.namespace.as_ref() == Some(namespace) && is_of(live.tenant, tenant);
        let own = self.sequences.iter().filter(is_own);
        own.map(|live| common_prefix(prompt, live.committed())).max().unwrap_or(0)
    }

    /// Other requests computed so many rows.
    pub(crate) fn pass(&mut self, rows: usize) {
        self.sequences.iter_mut().for_each(|live| live.passed = live.passed.saturating_add(rows));
    }

    /// The non-empty sequence among `candidates` that most rows have passed, and at least `rows`.
    pub(crate) fn passed_by(&self, rows: usize, candidates: impl Iterator<Item = SeqId>) -> Option<SeqId> {
        candidates
            .filter_map(|seq| self.get(seq).filter(|live| live.namespace.is_some()).map(|live| (live.passed, seq)))
            .filter(|(passed, _)| *passed >= rows)
            .max()
            .map(|(_, seq)| seq)
    }

    /// A sequence stays as it is, and the rows that passed it are forgotten.
    pub(crate) fn keep(&mut self, seq: SeqId) {
        if let Some(live) = self.sequences.get_mut(seq as usize) {
            live.passed = 0;
        }
    }

    /// The non-empty sequence among `candidates` that was left longest ago.
    pub(crate) fn oldest(&self, candidates: impl Iterator<Item = SeqId>) -> Option<SeqId> {
        candidates
            .filter_map(|seq| self.get(seq).filter(|live| live.namespace.is_some()).map(|live| (live.used, seq)))
            .min()
            .map(|(_, seq)| seq)
    }
}

/// Whether something is this tenant's.
pub(crate) fn is_of(one: Option<Tenant>, tenant: &Tenant) -> bool {
    one.is_some_and(|one| one.id == tenant.id)
}

/// How many leading tokens agree.
pub(crate) fn common_prefix(one: &[u32], two: &[u32]) -> usize {
    one.iter().zip(two).take_while(|(one, two)| one == two).count()
}

#[cfg(test)]
mod tests {
    use poncho_cache::QuantType;

    use super::*;

    fn namespace(number: u8) -> Namespace {
        Namespace { fingerprint: [number; 32], quant: QuantType::F16, context_hash: [0; 32] }
    }

    fn table() -> LiveTable {
        let mut table = LiveTable::new(3);
        for (seq, tokens) in [(0, vec![1, 2, 3]), (1, vec![1, 2, 9, 9, 9]), (2, vec![1])] {
            let n_past = tokens.len();
            table.put(seq, Live { tokens, n_past, namespace: Some(namespace(1)), ..Live::default() });
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
        assert_eq!(cuttable, LiveMatch { seq: 1, common: 3, whole: false });
        let whole = table.best(&wanted(&one), false, 0..3).unwrap();
        assert_eq!(whole, LiveMatch { seq: 2, common: 1, whole: true });
        assert_eq!(table.best(&wanted(&two), true, 0..3), None, "other adapters, other state");
        assert_eq!(table.best(&wanted(&one), true, std::iter::empty()), None);
    }

    #[test]
    fn on_a_grid_only_what_was_read_on_it_is_taken_up_and_only_at_its_boundaries() {
        let mut table = LiveTable::new(1);
        let tokens: Vec<u32> = (0..30).collect();
        let grid = Some(crate::sequence::exact::Grid(std::num::NonZeroUsize::new(8).unwrap()));
        let one = namespace(1);
        let mut best = |on_grid: usize, n_past: usize, prompt: &[u32], can_cut: bool| {
            let live = Live { tokens: tokens.clone(), n_past, on_grid, logits: vec![0.0], ..Live::default() };
            table.put(0, Live { namespace: Some(one), ..live });
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
        let tokens = vec![7];
        table.put(1, Live { tokens, n_past: 1, namespace: Some(namespace(1)), ..Live::default() });
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
}
