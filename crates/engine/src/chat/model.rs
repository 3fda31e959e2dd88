//! A model in conversation: the engine's model, and what one call brings to it.
//!
//! Made by the host for each call. It stands for the engine's model wherever one is wanted. `Conversations` is what all
//! calls of a host share; it must never hold the state of a single request.

pub(crate) mod known_ends;
mod known_prompts;
mod template_clock;
mod tokens;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use poncho_api::{HygieneRule, Privacy, Tenant};
use poncho_cache::OwnerId;

use self::known_ends::KnownEnds;
use crate::backend::{ChatPrompt, ChatRequest, TokenizeMode};
use crate::chat::kept::KeptTurns;
use crate::chat::preparing::client_left;
use crate::config::Exactness;
use crate::error::EngineError;
use crate::model::Model;

use known_prompts::KnownPrompts;
use template_clock::Clock;
use tokens::KnownTokens;

/// A model's fingerprint, and the template that stands for its own.
type TemplateKey = ([u8; 32], Option<String>);

/// What all conversations share.
pub(crate) struct Conversations {
    /// What models wrote, put back verbatim.
    pub(crate) replay: KeptTurns,
    /// The rules that are on.
    pub(crate) hygiene: Vec<HygieneRule>,
    /// Whether a template knows tools, by the model's fingerprint and the template that stands for its own: probed once.
    knows_tools: Mutex<HashMap<TemplateKey, bool>>,
    /// Conversations that were rendered before.
    prompts: KnownPrompts,
    /// The tokens of what was rendered before.
    tokens: KnownTokens,
    /// Where the messages of earlier turns end.
    pub(crate) ends: KnownEnds,
}

impl Conversations {
    pub(crate) fn new(replay: KeptTurns, hygiene: Vec<HygieneRule>) -> Self {
        Self {
            replay,
            hygiene,
            knows_tools: Mutex::default(),
            prompts: KnownPrompts::default(),
            tokens: KnownTokens::default(),
            ends: KnownEnds::default(),
        }
    }
}

/// See the module.
#[derive(Clone)]
pub(crate) struct ChatModel {
    model: Model,
    conversations: Arc<Conversations>,
    /// The chat template that stands for the model's own.
    template: Option<String>,
    /// Who asks, where keys tell callers apart.
    tenant: Option<Tenant>,
}

impl ChatModel {
    pub(crate) fn new(
        model: Model,
        conversations: Arc<Conversations>,
        template: Option<String>,
        tenant: Option<Tenant>,
    ) -> Self {
        Self { model, conversations, template, tenant }
    }

    /// Who asks.
    pub(crate) fn tenant(&self) -> Option<Tenant> {
        self.tenant
    }

    /// The one tenant with access to the conversations of this call; `None` where there is only one caller.
    pub(crate) fn private_to(&self) -> Option<OwnerId> {
        self.tenant.filter(|tenant| tenant.privacy != Privacy::Open).map(|tenant| tenant.id)
    }

    /// The bytes of that tenant's id, for what is kept apart by them.
    pub(crate) fn share(&self) -> Option<[u8; OwnerId::LENGTH]> {
        self.private_to().map(|owner| *owner.as_bytes())
    }

    /// The template that stands for the model's own.
    pub(crate) fn template_override(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// The tokens of one stretch of a rendered prompt; those of earlier turns are remembered.
    pub(crate) fn stretch_tokens(&self, text: &str, mode: TokenizeMode) -> Result<Arc<[u32]>, EngineError> {
        let fingerprint = self.namespace().fingerprint;
        let tokenize = |text: &str| self.model.tokenize(text, mode);
        self.conversations.tokens.of(fingerprint, self.share(), text, mode, tokenize)
    }

    /// The tokens of a rendered prompt: what came from the request never becomes a special token.
    pub(crate) fn conversation_tokens(&self, prompt: &ChatPrompt) -> Result<Vec<u32>, EngineError> {
        let mut tokens = Vec::new();
        for (place, part) in prompt.parts.iter().enumerate() {
            let mode = TokenizeMode { add_special: place == 0, parse_special: !part.is_input };
            tokens.extend_from_slice(&self.stretch_tokens(&part.text, mode)?);
        }
        Ok(tokens)
    }

    /// Whether a prompt may depend on nothing but its request.
    pub(crate) fn is_exact(&self, asked: bool) -> bool {
        asked || self.config().exactness == Exactness::Always
    }

    /// Renders the conversation of a turn, or takes what was rendered for the very same request before.
    pub(crate) fn rendered_once(&self, request: &ChatRequest) -> Result<ChatPrompt, EngineError> {
        let clock = self.clock();
        let Some(slot) = clock.slot() else { return self.apply_chat_template(request) };
        let owner = self.share();
        let template = self.template_override();
        let key = known_prompts::key(self.namespace().fingerprint, owner, slot, template, request);
        if let Some(known) = self.conversations.prompts.find(&key) {
            return Ok(known);
        }
        let prompt = self.apply_chat_template(request)?;
        if clock.slot() == Some(slot) {
            self.conversations.prompts.put(owner, key, &prompt);
        }
        Ok(prompt)
    }

    /// What the template reads of the clock.
    fn clock(&self) -> Clock {
        match &self.template {
            Some(template) => Clock::of(template),
            // Some files have another template for requests with tools.
            None => {
                Clock::of(&[None, Some("tool_use")].map(|name| self.template_named(name).unwrap_or_default()).concat())
            }
        }
    }

    /// Renders messages with the model's template, or with the one that stands for it.
    pub(crate) fn apply_chat_template(&self, request: &ChatRequest) -> Result<ChatPrompt, EngineError> {
        if client_left() {
            return Err(EngineError::Cancelled);
        }
        match &self.template {
            None => self.model.apply_chat_template(request),
            Some(template) => {
                let template_override = Some(template.clone());
                self.model.apply_chat_template(&ChatRequest { template_override, ..request.clone() })
            }
        }
    }

    /// Whether the template knows tools; `probe` looks, the first time.
    pub(crate) fn knows_tools(&self, probe: impl FnOnce(&Self) -> bool) -> bool {
        let known = || self.conversations.knows_tools.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (self.namespace().fingerprint, self.template.clone());
        let answer = known().get(&key).copied();
        answer.unwrap_or_else(|| {
            let found = probe(self);
            known().insert(key, found);
            found
        })
    }

    /// What all conversations share.
    pub(crate) fn conversations(&self) -> &Arc<Conversations> {
        &self.conversations
    }
}

impl Deref for ChatModel {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}
