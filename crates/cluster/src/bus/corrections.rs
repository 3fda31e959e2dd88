//! What a router knows of the load of nodes beyond their last beats, which are up to a second old.
//!
//! Used by the lookout for each choice. A request that was sent after a beat is added, one that has ended is taken out, and
//! prompts that a node was computing get shorter as time passes. Without this, quick turns of one conversation look like a
//! crowd, and leave the node that has their prefix. It must never make a node full: only the node itself knows that.

use std::collections::HashMap;

use crate::hints::{Incarnation, ModelBeat};
use crate::index::Slot;
use crate::member::Load;

/// Names a beat of a node.
pub(super) type BeatNumber = (Incarnation, u64);

/// A request at the moment when it was sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sending {
    /// The last beat of its node.
    pub(super) after: BeatNumber,
    /// Tokens that the node computes for it.
    pub(super) tokens: f64,
    /// All tokens of its prompt: what a beat counts before the node has looked into its cache.
    pub(super) prompt: f64,
}

/// Requests since a beat.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Since {
    after: BeatNumber,
    /// Sent, less those that have ended.
    requests: i32,
    /// Prompts that are not computed yet.
    tokens: f64,
    /// Prompts that the beat counts and that are computed.
    computed: f64,
}

impl Since {
    fn new(after: BeatNumber) -> Self {
        Self { after, requests: 0, tokens: 0.0, computed: 0.0 }
    }

    fn added_to(self, load: Load) -> Load {
        let ended = self.requests.min(0).unsigned_abs();
        let requests = self.requests.max(0).unsigned_abs();
        let before = load.running.saturating_sub(ended);
        let running = before.saturating_add(requests).min(load.places.max(before));
        let rest = requests - (running - before);
        let waiting = load.waiting.saturating_add(rest).min(load.queue.saturating_sub(1).max(load.waiting));
        Load { running, waiting, backlog_tokens: load.backlog_tokens + self.tokens, ..load }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Corrections(HashMap<Slot, Since>);

impl Corrections {
    fn since(&mut self, node: Slot, beat: BeatNumber) -> &mut Since {
        let since = self.0.entry(node).or_insert(Since::new(beat));
        if since.after != beat {
            *since = Since::new(beat);
        }
        since
    }

    /// A request goes to a node.
    pub(super) fn sent(&mut self, node: Slot, sending: Sending) {
        let since = self.since(node, sending.after);
        since.requests = since.requests.saturating_add(1);
        since.tokens += sending.tokens;
    }

    /// The prompt of a request is computed. `beat` is the last one of its node: it counts the prompt, unless that was sent
    /// after it.
    pub(super) fn computed(&mut self, node: Slot, beat: BeatNumber, sending: Sending) {
        let since = self.since(node, beat);
        if sending.after == beat {
            since.tokens = (since.tokens - sending.tokens).max(0.0);
        } else {
            since.computed += sending.prompt;
        }
    }

    /// A request has ended. `beat` is the last one of its node: it counts the request, unless that was sent after it.
    pub(super) fn ended(&mut self, node: Slot, beat: BeatNumber) {
        let since = self.since(node, beat);
        since.requests = since.requests.saturating_sub(1);
    }

    /// The load of a node now, `age` seconds after the beat with this number.
    pub(super) fn corrected(&self, node: Slot, beat: BeatNumber, age: f64, model: &ModelBeat) -> Load {
        let speed = model.rates.prefill_tokens;
        let by_time = if speed.is_finite() && age > 0.0 { speed.max(0.0) * age } else { 0.0 };
        let since = self.0.get(&node).filter(|since| since.after == beat).copied().unwrap_or(Since::new(beat));
        let left = (model.load.backlog_tokens - by_time.max(since.computed)).max(0.0);
        since.added_to(Load { backlog_tokens: left, ..model.load })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Rates;

    const LOAD: Load =
        Load { running: 1, places: 4, waiting: 0, queue: 8, backlog_tokens: 1000.0, line_bytes: 0.0, mean_stay: 1.0 };

    fn beat(number: u64) -> BeatNumber {
        (Incarnation { started_ms: 1, random: 2 }, number)
    }

    fn model() -> ModelBeat {
        let rates = Rates {
            prefill_tokens: 2000.0,
            decode_step: 0.01,
            decode_stream: 0.0,
            bytes_per_token: 1000.0,
            ram_bytes: 1e9,
            disk_bytes: 1e9,
            peer_bytes: 0.0,
            shared_bytes: 0.0,
            remote_delay: 0.0,
        };
        ModelBeat { name: "m".to_owned(), namespace: [0; 32], can_cut: true, rates, load: LOAD }
    }

    #[test]
    fn what_a_node_computes_gets_less_with_time() {
        let corrections = Corrections::default();
        let left = |age: f64| corrections.corrected(Slot(0), beat(1), age, &model()).backlog_tokens;
        assert_eq!([left(0.0), left(0.25), left(0.5), left(3.0), left(f64::NAN)], [1000.0, 500.0, 0.0, 0.0, 1000.0]);
    }

    #[test]
    fn requests_count_until_they_end() {
        let mut corrections = Corrections::default();
        let sending = Sending { after: beat(1), tokens: 300.0, prompt: 700.0 };
        let load = |corrections: &Corrections, number: u64| {
            let load = corrections.corrected(Slot(0), beat(number), 0.0, &model());
            (load.running, load.waiting, load.backlog_tokens)
        };
        for _ in 0..5 {
            corrections.sent(Slot(0), sending);
        }
        assert_eq!(load(&corrections, 1), (4, 2, 2500.0), "all places are taken, and it is not full");
        corrections.computed(Slot(0), beat(1), sending);
        assert_eq!(load(&corrections, 1), (4, 2, 2200.0));
        for _ in 0..5 {
            corrections.ended(Slot(0), beat(1));
        }
        assert_eq!(load(&corrections, 1).0, 1, "the one that the beat counts");
        assert_eq!(load(&corrections, 2), (1, 0, 1000.0), "the next beat counts all of them");
        corrections.ended(Slot(0), beat(2));
        corrections.ended(Slot(0), beat(2));
        assert_eq!(load(&corrections, 2).0, 0, "one that the beat counts has ended");
        corrections.computed(Slot(0), beat(2), sending);
        assert_eq!(load(&corrections, 2).2, 300.0, "the beat may count all of its prompt");
    }
}
