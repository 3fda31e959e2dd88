//! Routing by prefix: which node of a cluster computes a reply, by the tokens of its prompt and what the nodes announced.
//!
//! Asked by `kept.rs` for models that several nodes have. A node renders the prompt: it has the template, the hygiene and
//! the replies that it wrote, so no model file is needed here. A conversation is rendered where its last reply was
//! computed. Everything is advice: without it `choice.rs` decides, and the node looks into its own cache.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use poncho_api::{EngineError, Generate, ModelReport, Rendered};
use poncho_cluster::bus::{Chosen, Lookout, Prompt};
use poncho_cluster::hints::{Beat, ModelBeat};
use poncho_cluster::member::State;
use poncho_cluster::route::{Dispatch, Refusal};

use crate::journey::Journey;
use crate::link::NodeAddress;
use crate::membership::identity;
use crate::remote::Noted;

/// Tokens of a reply that has no limit, or a large one.
const USUAL_REPLY: u32 = 256;
/// Conversations that are remembered, twice.
const MOST_TALKS: usize = 8192;

/// A node that was chosen. While it lives, the router counts the prompt as being computed there.
pub(crate) struct Placed {
    lookout: Arc<Lookout>,
    pub(super) chosen: Chosen,
}

impl Noted for Placed {
    fn computed(&self) {
        self.lookout.computed(&self.chosen);
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.lookout.ended(&self.chosen);
    }
}

/// See the module.
pub(super) struct Router {
    pub(super) lookout: Arc<Lookout>,
    talks: Mutex<Talks>,
}

/// Where conversations were computed last. Two generations: the older one is dropped when the younger one is full.
#[derive(Default)]
struct Talks {
    young: HashMap<u64, usize>,
    old: HashMap<u64, usize>,
}

impl Router {
    pub(super) fn new(lookout: Arc<Lookout>) -> Self {
        Self { lookout, talks: Mutex::default() }
    }

    /// The node with the last reply of a conversation.
    pub(super) fn last(&self, talk: u64) -> Option<usize> {
        let talks = self.talks.lock().unwrap_or_else(PoisonError::into_inner);
        talks.young.get(&talk).or_else(|| talks.old.get(&talk)).copied()
    }

    /// A conversation goes on at a node.
    pub(super) fn note(&self, talk: u64, number: usize) {
        let mut talks = self.talks.lock().unwrap_or_else(PoisonError::into_inner);
        if talks.young.len() >= MOST_TALKS {
            talks.old = std::mem::take(&mut talks.young);
        }
        talks.young.insert(talk, number);
    }

    /// Whether a node takes new requests, as far as is known.
    pub(super) fn takes_requests(&self, address: &NodeAddress) -> bool {
        let beats = self.lookout.nodes();
        !beats.iter().any(|(beat, _)| beat.state == State::Draining && is_at(beat, address))
    }

    /// Chooses among the nodes at these addresses. `notes` is false for an explanation.
    pub(super) fn choose(
        &self,
        model: &ModelReport,
        generate: &Generate,
        rendered: &Rendered,
        among: &[NodeAddress],
        dispatch: &Dispatch,
        notes: bool,
    ) -> Result<Chosen, Refusal> {
        let reply_tokens = generate.request.max_tokens.map_or(USUAL_REPLY, |most| most.min(USUAL_REPLY));
        let prompt =
            Prompt { model: &model.id, namespace: &rendered.namespace, tokens: &rendered.tokens, reply_tokens };
        let own = identity(model);
        let is_usable =
            |beat: &Beat, found: &ModelBeat| found.namespace == own && among.iter().any(|address| is_at(beat, address));
        self.lookout.choose_among(&prompt, dispatch, notes, is_usable)
    }

    /// Sends a request to a node: the cheapest one that it was not sent to yet. `None` if the cluster has no advice.
    ///
    /// # Errors
    /// All nodes are full, and at least one said so itself.
    pub(super) fn place(
        self: &Arc<Self>,
        model: &ModelReport,
        (generate, journey): (&Generate, &mut Journey),
        rendered: &Rendered,
        among: &[NodeAddress],
    ) -> Result<Option<Placed>, EngineError> {
        match self.choose(model, generate, rendered, among, &journey.dispatch, true) {
            Ok(chosen) => {
                journey.at = Some(chosen.slot);
                Ok(Some(Placed { lookout: Arc::clone(&self.lookout), chosen }))
            }
            Err(refusal) if journey.is_refused => Err(EngineError::NodesFull { seconds: refusal.after.as_secs() }),
            // What is known of their load is a second old: a node decides itself that it is full.
            Err(_) => Ok(None),
        }
    }

    /// A request goes to this node without advice.
    pub(super) fn sent(&self, journey: &mut Journey, address: &NodeAddress) {
        journey.at = self.lookout.slot_at(&address.to_string());
    }
}

fn is_at(beat: &Beat, address: &NodeAddress) -> bool {
    beat.address.parse::<NodeAddress>().is_ok_and(|beat| beat == *address)
}
