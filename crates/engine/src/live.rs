//! What sequences hold when no request runs on them: idle sessions, and what finished requests left behind.
//!
//! The worker fills it when a request ends and asks it when one is admitted: a sequence that already holds the longest
//! prefix is used in place or copied. It records what the context holds; it must be cleared whenever the context is.

use poncho_cache::Namespace;

use crate::backend::SeqId;

/// The content of one sequence.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// Everything that was said, including a last token that is not computed yet.
    pub(crate) tokens: Vec<u32>,
    /// How many of `tokens` the sequence holds.
    pub(crate) n_past: usize,
    /// Logits after `n_past` tokens; empty if they are not known.
    pub(crate) logits: Vec<f32>,
    /// What the state depends on; `None` if the sequence is empty.
    pub(crate) namespace: Option<Namespace>,
    /// Larger is later.
    pub(crate) used: u64,
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
        prompt: &[u32],
        namespace: &Namespace,
        can_cut: bool,
        candidates: impl Iterator<Item = SeqId>,
    ) -> Option<LiveMatch> {
        candidates
            .filter_map(|seq| {
                let live = self.get(seq).filter(|live| live.namespace.as_ref() == Some(namespace))?;
                let common = common_prefix(prompt, live.committed());
                let whole = common == live.n_past;
                (common > 0 && (whole || can_cut)).then_some(LiveMatch { seq, common, whole })
            })
            .max_by_key(|found| (found.common, found.whole))
    }

    /// The non-empty sequence among `candidates` that was left longest ago.
    pub(crate) fn oldest(&self, candidates: impl Iterator<Item = SeqId>) -> Option<SeqId> {
        candidates
            .filter_map(|seq| self.get(seq).filter(|live| live.namespace.is_some()).map(|live| (live.used, seq)))
            .min()
            .map(|(_, seq)| seq)
    }
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
        let cuttable = table.best(&prompt, &namespace(1), true, 0..3).unwrap();
        assert_eq!(cuttable, LiveMatch { seq: 1, common: 3, whole: false });
        let whole = table.best(&prompt, &namespace(1), false, 0..3).unwrap();
        assert_eq!(whole, LiveMatch { seq: 2, common: 1, whole: true });
        assert_eq!(table.best(&prompt, &namespace(2), true, 0..3), None, "other adapters, other state");
        assert_eq!(table.best(&prompt, &namespace(1), true, std::iter::empty()), None);
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
