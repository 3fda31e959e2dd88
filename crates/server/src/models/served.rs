//! A model as this server serves it: the engine's model, and what the server keeps for all conversations.
//!
//! Handlers get it from `Models`. It stands for the engine's model wherever one is wanted. It must never hold the state
//! of a single request.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use poncho_cache::OwnerId;
use poncho_engine::backend::{ChatPrompt, ChatRequest};
use poncho_engine::{EngineError, Exactness, Model, Privacy, Tenant};

use crate::chat::hygiene::HygieneRule;
use crate::chat::replay::Replay;
use crate::dialects::shared::client_left;
use crate::models::defaults::ServedDefaults;
use crate::models::manager::{Held, Known, Lease};

/// A model's fingerprint, and the template that stands for its own.
type TemplateKey = ([u8; 32], Option<String>);

/// What all conversations of a server share.
pub(crate) struct Conversations {
    /// What models wrote, put back verbatim.
    pub(crate) replay: Replay,
    /// The rules that are on.
    pub(crate) hygiene: Vec<HygieneRule>,
    /// Whether a template knows tools, by the model's fingerprint and the template that stands for its own: found out
    /// once.
    knows_tools: Mutex<HashMap<TemplateKey, bool>>,
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
    known: Arc<Known>,
    /// Who asks it, where keys tell callers apart.
    tenant: Option<Tenant>,
    /// Keeps the model loaded; the last of all, so that no handle of the model outlives it. A model that the manager
    /// does not know has none.
    _lease: Option<Arc<Lease>>,
}

impl ServedModel {
    #[cfg(test)]
    pub(crate) fn new(model: Model, conversations: Arc<Conversations>) -> Self {
        Self { model, conversations, known: Arc::default(), tenant: None, _lease: None }
    }

    /// A model that stays loaded as long as this value or a clone of it lives.
    pub(crate) fn held(held: Held, conversations: Arc<Conversations>) -> Self {
        let Held { model, known, lease } = held;
        Self { model, conversations, known, tenant: None, _lease: Some(Arc::new(lease)) }
    }

    /// A model that is only looked at, and may go any time.
    pub(crate) fn shown(model: Model, known: Arc<Known>, conversations: Arc<Conversations>) -> Self {
        Self { model, conversations, known, tenant: None, _lease: None }
    }

    /// The same model, asked by somebody.
    pub(crate) fn asked_by(self, tenant: Option<Tenant>) -> Self {
        Self { tenant, ..self }
    }

    /// Who asks.
    pub(crate) fn tenant(&self) -> Option<Tenant> {
        self.tenant
    }

    /// Whose conversations may be looked at; `None` where all are one caller's.
    pub(crate) fn private_to(&self) -> Option<OwnerId> {
        self.tenant.filter(|tenant| tenant.privacy != Privacy::Open).map(|tenant| tenant.id)
    }

    /// Whether a prompt may depend on nothing but its request.
    pub(crate) fn is_exact(&self, asked: bool) -> bool {
        asked || self.config().exactness == Exactness::Always
    }

    /// What requests that leave something out get.
    pub(crate) fn defaults(&self) -> &ServedDefaults {
        &self.known.defaults
    }

    /// Renders messages with the model's template, or with the one that stands for it.
    pub(crate) fn apply_chat_template(&self, request: &ChatRequest) -> Result<ChatPrompt, EngineError> {
        if client_left() {
            return Err(EngineError::Template { reason: "nobody waits for the prompt any more".to_owned() });
        }
        match self.defaults().template() {
            None => self.model.apply_chat_template(request),
            Some(template) => {
                let template_override = Some(template.to_owned());
                self.model.apply_chat_template(&ChatRequest { template_override, ..request.clone() })
            }
        }
    }

    /// Whether the template knows tools; `find` looks, the first time.
    pub(crate) fn knows_tools(&self, find: impl FnOnce(&Self) -> bool) -> bool {
        let known = || self.conversations.knows_tools.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (self.namespace().fingerprint, self.defaults().template().map(str::to_owned));
        let answer = known().get(&key).copied();
        answer.unwrap_or_else(|| {
            let found = find(self);
            known().insert(key, found);
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
