//! A model of a child process, by its name: the process behind it may change.
//!
//! Given to the server. A call that is lost with a process is made again on the next one if that changes nothing; a
//! reply continues.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use poncho_api::{
    AdapterId, AdapterInfo, Capabilities, EngineError, Explained, Footprint, Generate, Input, ModelFiles, ModelReport,
    NodeModel, Phase, Rendered, ReplyStream, RequestReport, SessionInfo, SpecialText, StatusReport, TokenizeMode,
    Verified,
};

use super::supervised::{Supervised, lock};
use super::surviving::{Probation, one_by_one, surviving};
use crate::remote::{NO_CAPABILITIES, RemoteModel, RemoteNode};

/// See the module.
pub(super) struct ChildModel {
    supervised: Arc<Supervised>,
    report: ModelReport,
    last: RwLock<StatusReport>,
}

impl ChildModel {
    pub(super) fn new(supervised: Arc<Supervised>, report: ModelReport) -> Self {
        let nothing = StatusReport {
            phase: Phase::Starting,
            pending: 0,
            queue_depth: 0,
            active: 0,
            sessions: 0,
            last_hit: None,
            ticks: 0,
            prefilled_tokens: 0,
            generated_tokens: 0,
            decode_nanos: 0,
            overhead_nanos: 0,
            starts: 0,
        };
        Self { supervised, report, last: RwLock::new(nothing) }
    }

    async fn up(&self) -> Result<Arc<RemoteModel>, EngineError> {
        Ok(self.supervised.up_model(&self.report.id).await?.1)
    }

    /// The model in the process that runs now.
    fn now(&self) -> Option<Arc<RemoteModel>> {
        self.supervised.now()?.remote_model(&self.report.id)
    }

    /// Makes a call that changes nothing; once more if it was lost with its process.
    async fn repeat<T, F>(&self, call: impl Fn(Arc<RemoteModel>) -> F + Send + Sync) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, EngineError>> + Send,
    {
        let (node, model) = self.supervised.up_model(&self.report.id).await?;
        match call(model).await {
            Err(EngineError::NodeLost { .. }) => {
                self.supervised.is_lost(&node);
                call(self.up().await?).await
            }
            answered => answered,
        }
    }

    /// Starts replies. Says where, and whether they are alone there.
    async fn start(
        &self,
        prompts: &[Generate],
    ) -> Result<(RemoteNode, Vec<ReplyStream>, Option<Probation>), EngineError> {
        let mut alone: Option<Probation> = None;
        let mut tries = 0;
        loop {
            let (node, model) = self.supervised.up_model(&self.report.id).await?;
            match model.generate(prompts.to_vec()).await {
                Err(EngineError::NodeLost { .. }) => self.supervised.is_lost(&node),
                started => return Ok((node, started?, alone)),
            }
            // Alone, so that one that ends the process is known.
            if alone.is_none() {
                alone = Some(Arc::new(Arc::clone(&self.supervised.probation).lock_owned().await));
            } else if self.supervised.is_to_blame(tries).await? {
                prompts.iter().for_each(|prompt| self.supervised.set_aside(prompt));
                return Err(EngineError::Poison);
            } else {
                tries += 1;
            }
        }
    }
}

#[async_trait]
impl NodeModel for ChildModel {
    fn report(&self) -> &ModelReport {
        &self.report
    }

    fn status(&self) -> StatusReport {
        if let Some(model) = self.now() {
            let status = model.status();
            *self.last.write().unwrap_or_else(PoisonError::into_inner) = status;
            return status;
        }
        let last = *self.last.read().unwrap_or_else(PoisonError::into_inner);
        StatusReport { phase: Phase::Starting, ..last }
    }

    fn requests(&self) -> Vec<RequestReport> {
        self.now().map(|model| model.requests()).unwrap_or_default()
    }

    fn sessions(&self) -> Vec<SessionInfo> {
        self.now().map(|model| model.sessions()).unwrap_or_default()
    }

    fn adapters(&self) -> Vec<AdapterInfo> {
        self.now().map(|model| model.adapters()).unwrap_or_default()
    }

    fn is_file_changed(&self) -> bool {
        self.now().is_some_and(|model| model.is_file_changed())
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
        if prompts.iter().any(|prompt| self.supervised.is_set_aside(prompt)) {
            return Err(EngineError::Poison);
        }
        for prompt in &mut prompts {
            // A reply that is gone on with draws the same numbers.
            if prompt.request.sampling.seed.is_none() {
                prompt.request.sampling.seed = Some(getrandom::u64().unwrap_or_default());
            }
        }
        let (node, replies, alone) = self.start(&prompts).await?;
        let asked = one_by_one(&prompts).into_iter();
        let surviving = asked.zip(replies).map(|(asked, reply)| {
            surviving(Arc::clone(&self.supervised), self.report.id.clone(), asked, (node.clone(), reply), alone.clone())
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

    async fn explain(&self, prompt: Generate) -> Result<Explained, EngineError> {
        self.repeat(|model| {
            let prompt = prompt.clone();
            async move { model.explain(prompt).await }
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
        self.up().await?.end_session(name).await
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
        let id = self.up().await?.load_adapter(path, scale).await?;
        if let Some(wanted) = lock(&self.supervised.wanted).get_mut(&self.report.id) {
            wanted.adapters.push((id, path.to_owned(), scale));
        }
        Ok(id)
    }

    async fn unload_adapter(&self, id: AdapterId) -> Result<(), EngineError> {
        self.up().await?.unload_adapter(id).await?;
        if let Some(wanted) = lock(&self.supervised.wanted).get_mut(&self.report.id) {
            wanted.adapters.retain(|(known, ..)| *known != id);
        }
        Ok(())
    }

    async fn set_adapter_scale(&self, id: AdapterId, scale: f32) -> Result<(), EngineError> {
        self.up().await?.set_adapter_scale(id, scale).await?;
        if let Some(wanted) = lock(&self.supervised.wanted).get_mut(&self.report.id) {
            let changed = wanted.adapters.iter_mut().filter(|(known, ..)| *known == id);
            changed.for_each(|(_, _, kept)| *kept = scale);
        }
        Ok(())
    }

    async fn evict(&self) -> Result<usize, EngineError> {
        self.up().await?.evict().await
    }
}
