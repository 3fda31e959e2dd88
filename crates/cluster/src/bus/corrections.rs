//! What a router knows of the load of nodes beyond their last beats, which are up to a second old.
//!
//! Used by the lookout for each choice. A request that was sent after a beat is added, one that has ended is taken out, and
//! prompts that a node was computing get shorter as time passes. Without this, quick turns of one conversation look like a
//! crowd, and leave the node that has their prefix. A request that waits in the router counts until it is sent, because no
//! beat counts it. It must never make a node full: only the node itself knows that.

use std::collections::HashMap;

use crate::hints::{Incarnation, ModelBeat};
use crate::index::Slot;
use crate::member::Load;

/// Names a beat of a node.
pub(super) type BeatNumber = (Incarnation, u64);

/// Names a request of this router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RequestId(u64);

/// A request that has not ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Underway {
    /// Its node.
    pub(super) node: Slot,
    /// The last beat of the node when it was sent; `None` while it waits in the router.
    pub(super) after: Option<BeatNumber>,
    /// Tokens that the node computes for it.
    pub(super) tokens: f64,
    /// All tokens of its prompt: what a beat counts before the node has looked into its cache.
    pub(super) prompt: f64,
}

/// What is not in a beat.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Beyond {
    /// Sent, less those that have ended.
    requests: i32,
    /// Prompts that are not computed yet.
    tokens: f64,
    /// Prompts that the beat counts and that are computed.
    computed: f64,
}

impl Beyond {
    fn add(&mut self, requests: i32, tokens: f64) {
        self.requests = self.requests.saturating_add(requests);
        self.tokens = (self.tokens + tokens).max(0.0);
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
pub(super) struct Corrections {
    next: u64,
    underway: HashMap<RequestId, Underway>,
    /// Since a beat.
    since: HashMap<Slot, (BeatNumber, Beyond)>,
    /// What waits in the router.
    waiting: HashMap<Slot, Beyond>,
}

impl Corrections {
    fn since(&mut self, node: Slot, beat: BeatNumber) -> &mut Beyond {
        let (known, since) = self.since.entry(node).or_insert((beat, Beyond::default()));
        if *known != beat {
            (*known, *since) = (beat, Beyond::default());
        }
        since
    }

    /// A request goes to a node, or waits for its prefix first.
    pub(super) fn begin(&mut self, request: Underway) -> RequestId {
        let id = RequestId(self.next);
        self.next = self.next.wrapping_add(1);
        match request.after {
            Some(beat) => self.since(request.node, beat).add(1, request.tokens),
            None => self.waiting.entry(request.node).or_default().add(1, request.tokens),
        }
        self.underway.insert(id, request);
        id
    }

    /// A request that waited is sent. `beat` is the last one of its node.
    pub(super) fn sent(&mut self, id: RequestId, beat: BeatNumber) {
        let Some(request) = self.underway.get_mut(&id).filter(|request| request.after.is_none()) else { return };
        request.after = Some(beat);
        let Underway { node, tokens, .. } = *request;
        self.leave(node, tokens);
        self.since(node, beat).add(1, tokens);
    }

    fn leave(&mut self, node: Slot, tokens: f64) {
        if let Some(waiting) = self.waiting.get_mut(&node) {
            waiting.add(-1, -tokens);
            if waiting.requests <= 0 {
                self.waiting.remove(&node);
            }
        }
    }

    /// The prompt of a request is computed. `beat` is the last one of its node: it counts the prompt, unless that was sent
    /// after it. Each of several replies to one prompt reports this; the first report counts.
    pub(super) fn computed(&mut self, id: RequestId, beat: BeatNumber) {
        let Some(request) = self.underway.get_mut(&id) else { return };
        let Some(after) = request.after else { return };
        let node = request.node;
        let (tokens, prompt) = (std::mem::take(&mut request.tokens), std::mem::take(&mut request.prompt));
        let since = self.since(node, beat);
        if after == beat {
            since.add(0, -tokens);
        } else {
            since.computed += prompt;
        }
    }

    /// A request has ended. `beat` is the last one of its node, if that still lives: it counts the request, unless that was
    /// sent after it.
    pub(super) fn ended(&mut self, id: RequestId, beat: Option<BeatNumber>) {
        match (self.underway.remove(&id), beat) {
            (Some(Underway { node, after: None, tokens, .. }), _) => self.leave(node, tokens),
            (Some(Underway { node, .. }), Some(beat)) => self.since(node, beat).add(-1, 0.0),
            _ => {}
        }
    }

    /// The load of a node now, `age` seconds after the beat with this number.
    pub(super) fn corrected(&self, node: Slot, beat: BeatNumber, age: f64, model: &ModelBeat) -> Load {
        let speed = model.rates.prefill_tokens;
        let by_time = if speed.is_finite() && age > 0.0 { speed.max(0.0) * age } else { 0.0 };
        let since = self.since.get(&node).filter(|(known, _)| *known == beat).map(|(_, since)| *since);
        let mut beyond = since.unwrap_or_default();
        let left = (model.load.backlog_tokens - by_time.max(beyond.computed)).max(0.0);
        if let Some(waiting) = self.waiting.get(&node) {
            beyond.add(waiting.requests, waiting.tokens);
        }
        beyond.added_to(Load { backlog_tokens: left, ..model.load })
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

    fn load(corrections: &Corrections, number: u64) -> (u32, u32, f64) {
        let load = corrections.corrected(Slot(0), beat(number), 0.0, &model());
        (load.running, load.waiting, load.backlog_tokens)
    }

    #[test]
    fn requests_count_until_they_end() {
        let mut corrections = Corrections::default();
        let request = Underway { node: Slot(0), after: Some(beat(1)), tokens: 300.0, prompt: 700.0 };
        let mut ids: Vec<RequestId> = (0..7).map(|_| corrections.begin(request)).collect();
        assert_eq!(load(&corrections, 1), (4, 4, 3100.0), "all places are taken, and it is not full");
        for _ in 0..3 {
            corrections.computed(ids[0], beat(1));
            assert_eq!(load(&corrections, 1), (4, 4, 2800.0), "three replies have one prompt");
        }
        let late = ids.split_off(5);
        ids.into_iter().for_each(|id| corrections.ended(id, Some(beat(1))));
        assert_eq!(load(&corrections, 1).0, 3, "the one that the beat counts, and two others");
        assert_eq!(load(&corrections, 2), (1, 0, 1000.0), "the next beat counts all of them");
        corrections.computed(late[0], beat(2));
        assert_eq!(load(&corrections, 2).2, 300.0, "that beat may count all of its prompt");
        late.into_iter().for_each(|id| corrections.ended(id, Some(beat(2))));
        assert_eq!(load(&corrections, 2).0, 0, "those that the beat counts have ended");
    }

    #[test]
    fn requests_that_wait_in_the_router_count_whatever_beats_come() {
        let mut corrections = Corrections::default();
        let request = Underway { node: Slot(0), after: None, tokens: 300.0, prompt: 700.0 };
        let [one, two] = [(); 2].map(|()| corrections.begin(request));
        assert_eq!([load(&corrections, 1), load(&corrections, 7)], [(3, 0, 1600.0); 2]);
        corrections.sent(one, beat(7));
        assert_eq!((load(&corrections, 7), load(&corrections, 8)), ((3, 0, 1600.0), (2, 0, 1300.0)));
        corrections.ended(two, None);
        corrections.ended(one, Some(beat(8)));
        assert_eq!(load(&corrections, 8), (0, 0, 1000.0));
        assert!(corrections.underway.is_empty() && corrections.waiting.is_empty());
    }
}
