//! One loaded model as the api offers it.
//!
//! Cheap to make: a handle of the model and what all conversations share. A full queue refuses before a prompt is
//! rendered; prompts are prepared on a few blocking threads; replies are read straight from the worker's channel.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use poncho_api::{
    AdapterId, AdapterInfo, Capabilities, ChatTurn, EngineError, Explained, Footprint, Generate, Input, ModelFiles,
    ModelReport, NodeModel, PastLookup, Prompt, Rendered, ReplyStream, Request, RequestReport, SessionInfo,
    SpecialText, StatusReport, Tenant, TokenizeMode, Verified,
};

use super::capabilities::capabilities;
use super::explain::{Asked, explain};
use super::{follow, reports};
use crate::chat::model::{ChatModel, Conversations};
use crate::chat::preparing::{blocking, client_left, preparing};
use crate::chat::prompt::{embedding_input, most_counted, prompt_tokens};
use crate::chat::reply::Reply;
use crate::chat::truncation::prepare_fitting;
use crate::chat::turn::{self, Prepared, ReplyForm, prepare_chat, submit};
use crate::files::footprint::footprint;
use crate::model::Model;
use crate::shared::queue_place::QueuePlace;

/// See the module.
#[derive(Clone)]
pub(super) struct Hosted {
    model: Model,
    conversations: Arc<Conversations>,
}

impl Hosted {
    pub(super) fn new(model: Model, conversations: Arc<Conversations>) -> Self {
        Self { model, conversations }
    }

    /// The model as one call sees it.
    fn for_call(&self, template: Option<String>, tenant: Option<Tenant>) -> ChatModel {
        ChatModel::new(self.model.clone(), Arc::clone(&self.conversations), template, tenant)
    }

    /// Runs a call of the model that may wait for its worker or a disk.
    async fn call<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Model) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let model = self.model.clone();
        blocking(doing, move || work(&model)).await
    }

    /// Makes a request out of a prompt.
    fn prepare(&self, prompt: &Prompt, request: &Request) -> Result<Prepared, EngineError> {
        let mut prepared = match prompt {
            Prompt::Chat(turn) => self.prepare_turn(turn, request)?,
            other => {
                let tokens = prompt_tokens(&self.model, other, request.mode, self.model.limits().context)?;
                Prepared { request: Request { tokens, ..request.clone() }, form: ReplyForm::default() }
            }
        };
        if !request.tokens.is_empty() {
            go_on(&self.model, &request.tokens, &mut prepared.request);
        }
        Ok(prepared)
    }

    /// A prompt with the model's own settings where the client left them open.
    fn as_configured(&self, mut prompt: Generate) -> Generate {
        if matches!(prompt.prompt, Prompt::Chat(_)) {
            prompt.request.fill_reasoning(self.model.config().reasoning);
        }
        prompt
    }

    fn prepare_turn(&self, turn: &ChatTurn, request: &Request) -> Result<Prepared, EngineError> {
        let model = self.for_call(turn.template.clone(), request.tenant);
        if turn.needs_thinking && !capabilities(&model).thinking {
            return Err(EngineError::Unsupported { what: "thinking".to_owned() });
        }
        if turn.drops_oldest { prepare_fitting(&model, turn, request) } else { prepare_chat(&model, turn, request) }
    }

    /// Refuses more replies than an idle model takes: to try again later would never help.
    fn check_fits_queue(&self, replies: usize, prompts: usize) -> Result<(), EngineError> {
        let config = self.model.config();
        let most = config.queue_limit.saturating_add(config.context.n_seq_max as usize);
        if replies <= most {
            return Ok(());
        }
        let field = if replies > prompts { "n" } else { "prompt" };
        let reason = format!(
            "the request asks for {replies} replies at once and this model takes {most}; send fewer in one request, or \
             raise the server's --queue-limit"
        );
        Err(EngineError::input(field, reason))
    }

    fn start(&self, prompts: Vec<Generate>, places: Vec<QueuePlace>) -> Result<Vec<ReplyStream>, EngineError> {
        let mut places = places.into_iter();
        let mut replies = Vec::new();
        for Generate { prompt, request, replies: count, in_pieces, call_prefix } in prompts {
            let mut prepared = self.prepare(&prompt, &request)?;
            if client_left() {
                return Err(EngineError::Cancelled);
            }
            prepared.form.in_pieces = in_pieces;
            prepared.form.call_prefix = call_prefix;
            for stream in submit(&self.model, &prepared, count, &mut places)? {
                let reply = Reply::new(self.model.clone(), stream, prepared.form.clone());
                replies.push(Box::pin(reply) as ReplyStream);
            }
        }
        Ok(replies)
    }

    fn rendered(&self, prompt: &Generate) -> Result<Rendered, EngineError> {
        let namespace = self.model.namespace_for(prompt.request.exact, prompt.request.tenant);
        let namespace = follow::digest(&namespace);
        match &prompt.prompt {
            Prompt::Chat(turn) => {
                let model = self.for_call(turn.template.clone(), prompt.request.tenant);
                let turn::Rendered { prompt, tokens, boundaries } = turn::render(&model, turn, &prompt.request)?;
                Ok(Rendered { text: prompt.text, tokens, boundaries, namespace })
            }
            other => {
                let tokens = prompt_tokens(&self.model, other, prompt.request.mode, most_counted(&self.model))?;
                Ok(Rendered { text: String::new(), tokens, boundaries: Vec::new(), namespace })
            }
        }
    }
}

#[async_trait]
impl NodeModel for Hosted {
    fn report(&self) -> &ModelReport {
        self.model.report()
    }

    fn status(&self) -> StatusReport {
        self.model.status()
    }

    fn requests(&self) -> Vec<RequestReport> {
        self.model.requests()
    }

    fn sessions(&self) -> Vec<SessionInfo> {
        self.model.sessions()
    }

    fn adapters(&self) -> Vec<AdapterInfo> {
        self.model.adapters()
    }

    fn is_file_changed(&self) -> bool {
        self.model.is_file_changed()
    }

    async fn look_at_file(&self) -> bool {
        if !self.model.is_file_look_due() {
            return self.model.is_file_changed();
        }
        self.call("looked at a file", |model| Ok(model.look_at_file())).await.unwrap_or(false)
    }

    async fn files(&self) -> ModelFiles {
        self.call("looked at a file", |model| Ok(reports::files(&model.config().model))).await.unwrap_or_default()
    }

    async fn footprint(&self) -> Footprint {
        self.call("looked at a model", |model| Ok(footprint(model.config()))).await.unwrap_or_default()
    }

    async fn generate(&self, prompts: Vec<Generate>) -> Result<Vec<ReplyStream>, EngineError> {
        // A full queue refuses before anything is done for the request.
        let count = prompts.iter().map(|prompt| usize::try_from(prompt.replies).unwrap_or(usize::MAX));
        let count = count.fold(0, usize::saturating_add);
        self.check_fits_queue(count, prompts.len())?;
        let places = (0..count).map(|_| self.model.reserve()).collect::<Result<Vec<_>, _>>()?;
        let prompts = prompts.into_iter().map(|prompt| self.as_configured(prompt)).collect();
        let hosted = self.clone();
        preparing("prepared the prompt", move || hosted.start(prompts, places)).await
    }

    async fn render(&self, prompt: Generate) -> Result<Rendered, EngineError> {
        let (prompt, hosted) = (self.as_configured(prompt), self.clone());
        preparing("rendered a prompt", move || hosted.rendered(&prompt)).await
    }

    async fn explain(&self, prompt: Generate, past: Option<PastLookup>) -> Result<Explained, EngineError> {
        let (prompt, hosted) = (self.as_configured(prompt), self.clone());
        preparing("explained a prompt", move || {
            let Rendered { tokens, boundaries, .. } = hosted.rendered(&prompt)?;
            let mut request = Request { tokens, boundary_hints: boundaries, ..prompt.request.clone() };
            if !prompt.request.tokens.is_empty() {
                go_on(&hosted.model, &prompt.request.tokens, &mut request);
            }
            let template = match &prompt.prompt {
                Prompt::Chat(turn) => turn.template.clone(),
                _ => None,
            };
            let model = hosted.for_call(template, request.tenant);
            let asked = Asked { prompt: &prompt.prompt, request: &request, tokens: &request.tokens, past };
            Ok(explain(&model, &asked))
        })
        .await
    }

    async fn tokenize(&self, text: String, mode: TokenizeMode) -> Result<Vec<u32>, EngineError> {
        let model = self.model.clone();
        preparing("tokenized", move || model.tokenize_within(&text, mode, most_counted(&model))).await
    }

    async fn detokenize(&self, tokens: Vec<u32>, special: SpecialText) -> Result<String, EngineError> {
        let model = self.model.clone();
        preparing("detokenized", move || Ok(model.detokenize(&tokens, special))).await
    }

    async fn token_bytes(&self, tokens: Vec<u32>) -> Result<Vec<Vec<u8>>, EngineError> {
        let model = self.model.clone();
        preparing("detokenized", move || Ok(tokens.iter().map(|token| model.token_bytes(*token)).collect())).await
    }

    async fn embedding_inputs(&self, inputs: Vec<Input>, truncates: bool) -> Result<Vec<Vec<u32>>, EngineError> {
        self.call("tokenized the inputs", move |model| {
            let tokens = |(at, input): (usize, &Input)| {
                // Nobody reads what comes of it.
                if client_left() {
                    return Err(EngineError::Cancelled);
                }
                embedding_input(model, input, truncates).map_err(|error| error.in_field(format!("[{at}]")))
            };
            inputs.iter().enumerate().map(tokens).collect()
        })
        .await
    }

    async fn embedding_bytes(&self, longest: usize) -> u64 {
        self.call("looked at a model", move |model| Ok(model.embedding_bytes(longest))).await.unwrap_or(0)
    }

    async fn embed(&self, inputs: Vec<Vec<u32>>, normalises: bool) -> Result<Vec<Vec<f32>>, EngineError> {
        self.model.start_embedding(inputs, normalises)?.ready().await
    }

    async fn capabilities(&self, template: Option<String>) -> Capabilities {
        let model = self.for_call(template, None);
        let none = Capabilities { embedding: false, tools: false, thinking: false, insert: false };
        blocking("described a model", move || Ok(capabilities(&model))).await.unwrap_or(none)
    }

    async fn chat_template(&self) -> Option<String> {
        self.call("described a model", |model| Ok(model.chat_template())).await.ok().flatten()
    }

    async fn end_session(&self, name: &str) -> Result<bool, EngineError> {
        let name = name.to_owned();
        self.call("ended a session", move |model| model.end_session(&name)).await
    }

    async fn verify(&self, prefix: Vec<u32>, draft: Vec<u32>) -> Result<Verified, EngineError> {
        self.call("verified a draft", move |model| model.verify(prefix, draft)).await
    }

    async fn draft(&self, prefix: Vec<u32>, count: usize) -> Result<Vec<u32>, EngineError> {
        self.call("drafted", move |model| model.draft(prefix, count)).await
    }

    async fn load_adapter(&self, path: &Path, scale: f32) -> Result<AdapterId, EngineError> {
        let path = path.to_owned();
        self.call("loaded an adapter", move |model| model.load_adapter_scaled(&path, scale)).await
    }

    async fn unload_adapter(&self, id: AdapterId) -> Result<(), EngineError> {
        self.call("unloaded an adapter", move |model| model.unload_adapter(id)).await
    }

    async fn set_adapter_scale(&self, id: AdapterId, scale: f32) -> Result<(), EngineError> {
        self.call("scaled an adapter", move |model| model.set_adapter_scale(id, scale)).await
    }

    async fn evict(&self) -> Result<usize, EngineError> {
        self.call("saved the sessions", Model::evict).await
    }
}

/// Puts the tokens of an earlier reply before a prompt.
fn go_on(model: &Model, before: &[u32], request: &mut Request) {
    let bos = model.info().special.bos;
    // Only the start of a text has the mark for it.
    let skipped = usize::from(bos.is_some() && request.tokens.first().copied() == bos);
    let new = request.tokens.get(skipped..).unwrap_or_default();
    request.tokens = [before, new].concat();
    for hint in &mut request.boundary_hints {
        *hint = (*hint + before.len()).saturating_sub(skipped);
    }
}
