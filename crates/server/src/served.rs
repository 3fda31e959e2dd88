//! A model as this server serves it: the engine's model, and what the server keeps for all conversations.
//!
//! Handlers get it from `Models`. It stands for the engine's model wherever one is wanted. It must never hold the state
//! of a single request.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use poncho_engine::Model;

use crate::hygiene::HygieneRule;
use crate::replay::Replay;

/// What all conversations of a server share.
pub(crate) struct Conversations {
    /// What models wrote, put back verbatim.
    pub(crate) replay: Replay,
    /// The rules that are on.
    pub(crate) hygiene: Vec<HygieneRule>,
    /// Whether a model's template knows tools, by its fingerprint: found out once.
    knows_tools: Mutex<HashMap<[u8; 32], bool>>,
}

impl Conversations {
    pub(crate) fn new(replay: Replay, hygiene: Vec<HygieneRule>) -> Self {
        Self { replay, hygiene, knows_tools: Mutex::default() }
    }
}

/// See the module.
#[derive(Clone)]
pub(crate) struct ServedModel {
    model: Model,
    conversations: Arc<Conversations>,
}

impl ServedModel {
    pub(crate) fn new(model: Model, conversations: Arc<Conversations>) -> Self {
        Self { model, conversations }
    }

    /// Whether the template knows tools; `find` looks, the first time.
    pub(crate) fn knows_tools(&self, find: impl FnOnce(&Model) -> bool) -> bool {
        let known = || self.conversations.knows_tools.lock().unwrap_or_else(PoisonError::into_inner);
        let fingerprint = self.namespace().fingerprint;
        let answer = known().get(&fingerprint).copied();
        answer.unwrap_or_else(|| {
            let found = find(self);
            known().insert(fingerprint, found);
            found
        })
    }

    /// What all conversations share.
    pub(crate) fn conversations(&self) -> &Arc<Conversations> {
        &self.conversations
    }
}

impl Deref for ServedModel {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}
