//! A model by its name: the process behind it may change.
//!
//! Given to the server. A call that is lost with a process is made again on the next one if that changes nothing; a
//! reply continues.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use poncho_api::{
    AdapterId, AdapterInfo, Capabilities, DraftStatus, EngineError, Explained, Footprint, Generate, Input, ModelFiles,
    ModelReport, NodeModel, PastLookup, Phase, Rendered, ReplyStream, RequestReport, SessionInfo, SpecialText,
    StatusReport, TokenizeMode, Verified,
};

use super::surviving::{Given, one_by_one, surviving};
use super::{AdapterChange, Keeper, Trial, Up, Verdict};
use crate::remote::{Mark, NO_CAPABILITIES, RemoteModel, RemoteNode};

/// See the module.
pub(crate) struct LastingModel {
    keeper: Arc<dyn Keeper>,
    report: Arc<ModelReport>,
    last: RwLock<StatusReport>,
}

/// Replies that were started: where, and what they went through.
struct Started {
    node: RemoteNode,
    replies: Vec<ReplyStream>,
    mark: Mark,
    trial: Trial,
}

impl LastingModel {
    pub(crate) fn new(keeper: Arc<dyn Keeper>, report: ModelReport) -> Self {
        Self { keeper, report: Arc::new(report), last: RwLock::default() }
    }

    async fn up(&self) -> Result<Arc<RemoteModel>, EngineError> {
        Ok(self.keeper.up_model(&self.report, None).await?.model)
    }

    /// The model wherever it is at this moment.
    fn now(&self) -> Vec<Arc<RemoteModel>> {
        self.keeper.models_now(&self.report)
    }

    /// Makes a call that changes nothing; once more if it was lost with its process.
    async fn repeat<T, F>(&self, call: impl Fn(Arc<RemoteModel>) -> F + Send + Sync) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, EngineError>> + Send,
    {
        let mut is_second = false;
        loop {
            let Up { node, model, .. } = self.keeper.up_model(&self.report, None).await?;
            let mut mark = node.mark(&self.report.id);
            match call(model).await {
                Err(error @ EngineError::NodeLost { .. }) => {
                    mark.lost();
                    self.keeper.is_lost(&node);
                    if std::mem::replace(&mut is_second, true) {
                        return Err(error);
                    }
                }
                answered => return answered,
            }
        }
    }

    /// Starts replies.
    async fn start(&self, prompts: &[Generate]) -> Result<Started, EngineError> {
        let mut trial = self.keeper.admit(&self.report).await;
        loop {
            let asked = prompts.first().map(|prompt| (prompt, &mut trial));
            let Up { node, model, note } = self.keeper.up_model(&self.report, asked).await?;
            let mut mark = node.mark(&self.report.id).with(note);
            match model.generate(prompts.to_vec()).await {
                Err(EngineError::NodeLost { .. }) => {
                    mark.lost();
                    self.keeper.is_lost(&node);
                }
                Err(error) if self.keeper.may_go_elsewhere(&mut trial, &error) => continue,
                started => return Ok(Started { node, replies: started?, mark, trial }),
            }
            if self.keeper.judge(&mut trial, &node, false).await? == Verdict::Blamed {
                prompts.iter().for_each(|prompt| self.keeper.poison().add(prompt));
                return Err(EngineError::Poison);
            }
        }
    }
}

/// What several nodes do with one model, together.
fn together(statuses: impl Iterator<Item = StatusReport>) -> Option<StatusReport> {
    statuses.reduce(|one, two| StatusReport {
        phase: busier(one.phase, two.phase),
        pending: one.pending + two.pending,
        queue_depth: one.queue_depth + two.queue_depth,
        active: one.active + two.active,
        sessions: one.sessions + two.sessions,
        last_hit: one.last_hit.or(two.last_hit),
        ticks: one.ticks + two.ticks,
        prefilled_tokens: one.prefilled_tokens + two.prefilled_tokens,
        generated_tokens: one.generated_tokens + two.generated_tokens,
        decode_nanos: one.decode_nanos + two.decode_nanos,
        overhead_nanos: one.overhead_nanos + two.overhead_nanos,
        starts: one.starts + two.starts,
        ended: one.ended + two.ended,
        // Machines differ; each node announces its own.
        speeds: one.speeds,
        drafts: DraftStatus {
            drafted: one.drafts.drafted + two.drafts.drafted,
            accepted: one.drafts.accepted + two.drafts.accepted,
            steps: one.drafts.steps + two.drafts.steps,
            saved_micros: one.drafts.saved_micros + two.drafts.saved_micros,
            index_tokens: one.drafts.index_tokens + two.drafts.index_tokens,
            index_bytes: one.drafts.index_bytes + two.drafts.index_bytes,
            off: one.drafts.off.and(two.drafts.off),
        },
    })
}

fn busier(one: Phase, two: Phase) -> Phase {
    let order = [Phase::Generating, Phase::Prefilling, Phase::Idle, Phase::Starting, Phase::Stopped];
    order.into_iter().find(|phase| [one, two].contains(phase)).unwrap_or(one)
}

#[async_trait]
impl NodeModel for LastingModel {
    fn report(&self) -> &ModelReport {
        &self.report
    }

    fn status(&self) -> StatusReport {
        if let Some(status) = together(self.now().iter().map(|model| model.status())) {
            *self.last.write().unwrap_or_else(PoisonError::into_inner) = status;
            return status;
        }
        let last = *self.last.read().unwrap_or_else(PoisonError::into_inner);
        StatusReport { phase: Phase::Starting, ..last }
    }

    fn requests(&self) -> Vec<RequestReport> {
        self.now().iter().flat_map(|model| model.requests()).collect()
    }

    fn sessions(&self) -> Vec<SessionInfo> {
        self.now().iter().flat_map(|model| model.sessions()).collect()
    }

    fn adapters(&self) -> Vec<AdapterInfo> {
        self.now().first().map(|model| model.adapters()).unwrap_or_default()
    }

    fn is_file_changed(&self) -> bool {
        self.now().iter().any(|model| model.is_file_changed())
    }

    async fn look_at_file(&self) -> bool {
        match self.up().await {
            Ok(model) => model.look_at_file().await,
            Err(_) => false,
        }
    }

    async fn files(&self) -> ModelFiles {
        match self.up().await {
            Ok(model) => model.files().await,
            Err(_) => ModelFiles::default(),
        }
    }

    async fn footprint(&self) -> Footprint {
        match self.up().await {
            Ok(model) => model.footprint().await,
            Err(_) => Footprint::default(),
        }
    }

    async fn generate(&self, mut prompts: Vec<Generate>) -> Result<Vec<ReplyStream>, EngineError> {
        if prompts.iter().any(|prompt| self.keeper.poison().has(prompt)) {
            return Err(EngineError::Poison);
        }
        for prompt in &mut prompts {
            // A reply that is gone on with draws the same numbers.
            if prompt.request.sampling.seed.is_none() {
                prompt.request.sampling.seed = Some(getrandom::u64().unwrap_or_default());
            }
        }
        let Started { node, replies, mark, trial } = self.start(&prompts).await?;
        let asked = one_by_one(&prompts).into_iter();
        let surviving = asked.zip(replies).map(|(asked, events)| {
            let given = Given { node: node.clone(), events, mark: mark.another() };
            surviving(Arc::clone(&self.keeper), Arc::clone(&self.report), asked, given, trial.clone())
        });
        Ok(surviving.collect())
    }

    async fn render(&self, prompt: Generate) -> Result<Rendered, EngineError> {
        self.repeat(|model| {
            let prompt = prompt.clone();
            async move { model.render(prompt).await }
        })
        .await
    }

    async fn explain(&self, prompt: Generate, past: Option<PastLookup>) -> Result<Explained, EngineError> {
        self.repeat(|model| {
            let prompt = prompt.clone();
            async move { model.explain(prompt, past).await }
        })
        .await
    }

    async fn tokenize(&self, text: String, mode: TokenizeMode) -> Result<Vec<u32>, EngineError> {
        self.repeat(|model| {
            let text = text.clone();
            async move { model.tokenize(text, mode).await }
        })
        .await
    }

    async fn detokenize(&self, tokens: Vec<u32>, special: SpecialText) -> Result<String, EngineError> {
        self.repeat(|model| {
            let tokens = tokens.clone();
            async move { model.detokenize(tokens, special).await }
        })
        .await
    }

    async fn token_bytes(&self, tokens: Vec<u32>) -> Result<Vec<Vec<u8>>, EngineError> {
        self.repeat(|model| {
            let tokens = tokens.clone();
            async move { model.token_bytes(tokens).await }
        })
        .await
    }

    async fn embedding_inputs(&self, inputs: Vec<Input>, truncates: bool) -> Result<Vec<Vec<u32>>, EngineError> {
        self.repeat(|model| {
            let inputs = inputs.clone();
            async move { model.embedding_inputs(inputs, truncates).await }
        })
        .await
    }

    async fn embedding_bytes(&self, longest: usize) -> u64 {
        match self.up().await {
            Ok(model) => model.embedding_bytes(longest).await,
            Err(_) => 0,
        }
    }

    async fn embed(&self, inputs: Vec<Vec<u32>>, normalises: bool) -> Result<Vec<Vec<f32>>, EngineError> {
        self.repeat(|model| {
            let inputs = inputs.clone();
            async move { model.embed(inputs, normalises).await }
        })
        .await
    }

    async fn capabilities(&self, template: Option<String>) -> Capabilities {
        match self.up().await {
            Ok(model) => model.capabilities(template).await,
            Err(_) => NO_CAPABILITIES,
        }
    }

    async fn chat_template(&self) -> Option<String> {
        self.up().await.ok()?.chat_template().await
    }

    async fn end_session(&self, name: &str) -> Result<bool, EngineError> {
        // A session may be on any of the nodes.
        let mut is_known = false;
        let models = self.now();
        if models.is_empty() {
            return self.up().await?.end_session(name).await;
        }
        for model in models {
            is_known |= model.end_session(name).await?;
        }
        Ok(is_known)
    }

    async fn verify(&self, prefix: Vec<u32>, draft: Vec<u32>) -> Result<Verified, EngineError> {
        self.repeat(|model| {
            let (prefix, draft) = (prefix.clone(), draft.clone());
            async move { model.verify(prefix, draft).await }
        })
        .await
    }

    async fn draft(&self, prefix: Vec<u32>, count: usize) -> Result<Vec<u32>, EngineError> {
        self.repeat(|model| {
            let prefix = prefix.clone();
            async move { model.draft(prefix, count).await }
        })
        .await
    }

    async fn load_adapter(&self, path: &Path, scale: f32) -> Result<AdapterId, EngineError> {
        self.keeper.check_adapters(&self.report)?;
        let id = self.up().await?.load_adapter(path, scale).await?;
        self.keeper.keep_adapter(&self.report.id, AdapterChange::Attached(id, path.to_owned(), scale));
        Ok(id)
    }

    async fn unload_adapter(&self, id: AdapterId) -> Result<(), EngineError> {
        self.keeper.check_adapters(&self.report)?;
        self.up().await?.unload_adapter(id).await?;
        self.keeper.keep_adapter(&self.report.id, AdapterChange::Detached(id));
        Ok(())
    }

    async fn set_adapter_scale(&self, id: AdapterId, scale: f32) -> Result<(), EngineError> {
        self.keeper.check_adapters(&self.report)?;
        self.up().await?.set_adapter_scale(id, scale).await?;
        self.keeper.keep_adapter(&self.report.id, AdapterChange::Scaled(id, scale));
        Ok(())
    }

    async fn evict(&self) -> Result<usize, EngineError> {
        let mut evicted = 0;
        let models = self.now();
        if models.is_empty() {
            return self.up().await?.evict().await;
        }
        for model in models {
            evicted += model.evict().await?;
        }
        Ok(evicted)
    }
}
