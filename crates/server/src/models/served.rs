//! A model as this server serves it: the engine's model, what the library said of it, and who asks.
//!
//! Handlers get it from `Models`. It stands for the engine's model wherever one is wanted. It must never hold the state
//! of a single request.

use std::ops::Deref;
use std::sync::Arc;

use poncho_api::{
    Explained, Generate, ModelInfo, ModelLimits, NodeModel, PastLookup, Prompt, Rendered, ReplyStream, Tenant,
};

use crate::error::ApiError;
use crate::models::defaults::ServedDefaults;
use crate::models::manager::{Held, Known, Lease};

/// See the module.
#[derive(Clone)]
pub(crate) struct ServedModel {
    model: Arc<dyn NodeModel>,
    known: Arc<Known>,
    /// Who asks it, where keys tell callers apart.
    tenant: Option<Tenant>,
    /// The name that was asked for, if no model has it.
    stands_for: Option<String>,
    /// Keeps the model loaded; the last of all, so that no handle of the model outlives it. A model that the manager
    /// does not know has none.
    _lease: Option<Arc<Lease>>,
}

impl ServedModel {
    /// A model that stays loaded as long as this value or a clone of it lives.
    pub(crate) fn held(held: Held) -> Self {
        let Held { model, known, lease } = held;
        Self { model, known, tenant: None, stands_for: None, _lease: Some(Arc::new(lease)) }
    }

    /// A model that is only looked at, and may go any time.
    pub(crate) fn shown(model: Arc<dyn NodeModel>, known: Arc<Known>) -> Self {
        Self { model, known, tenant: None, stands_for: None, _lease: None }
    }

    /// The same model, asked by somebody.
    pub(crate) fn asked_by(self, tenant: Option<Tenant>) -> Self {
        Self { tenant, ..self }
    }

    /// The same model in the place of one that nobody has.
    pub(crate) fn standing_for(self, name: &str) -> Self {
        Self { stands_for: Some(name.to_owned()), ..self }
    }

    /// The name that was asked for, if no model has it.
    pub(crate) fn stands_for(&self) -> Option<&str> {
        self.stands_for.as_deref()
    }

    /// Why its Modelfile is not applied.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.known.problem.as_deref()
    }

    /// The name under which it was loaded.
    pub(crate) fn id(&self) -> &str {
        &self.model.report().id
    }

    /// Facts about it.
    pub(crate) fn info(&self) -> &ModelInfo {
        &self.model.report().info
    }

    /// What one request may use.
    pub(crate) fn limits(&self) -> ModelLimits {
        self.model.report().limits
    }

    /// What requests that leave something out get.
    pub(crate) fn defaults(&self) -> &ServedDefaults {
        &self.known.defaults
    }

    /// Starts the replies to some prompts.
    pub(crate) async fn start(&self, prompts: Vec<Generate>) -> Result<Vec<ReplyStream>, ApiError> {
        let prompts = prompts.into_iter().map(|prompt| self.completed(prompt)).collect();
        Ok(self.model.generate(prompts).await?)
    }

    /// A prompt as the model would read it.
    pub(crate) async fn rendered(&self, prompt: Generate) -> Result<Rendered, ApiError> {
        Ok(self.model.render(self.completed(prompt)).await?)
    }

    /// Why a prompt is found in the cache or not; with `past`, as of the time when it was computed.
    pub(crate) async fn explained(&self, prompt: Generate, past: Option<PastLookup>) -> Result<Explained, ApiError> {
        Ok(self.model.explain(self.completed(prompt), past).await?)
    }

    /// The prompt with what it leaves out, and with who asks.
    fn completed(&self, mut prompt: Generate) -> Generate {
        prompt.request.tenant = self.tenant;
        if let Prompt::Chat(turn) = &mut prompt.prompt {
            // Tokens in front of the turn are a conversation that has begun.
            let begins = prompt.request.tokens.is_empty();
            self.defaults().complete(turn, begins);
        }
        prompt
    }
}

impl Deref for ServedModel {
    type Target = dyn NodeModel;

    fn deref(&self) -> &Self::Target {
        &*self.model
    }
}
