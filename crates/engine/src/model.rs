//! A loaded model as its callers see it.
//!
//! Tokenizing, templates and grammars run on the caller's thread; requests and the other commands go to the worker. The
//! handle is cheap to clone; the model is unloaded when the registry and all handles are gone, or by `shut_down`.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use poncho_cache::{Cache, Key, Namespace};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::adapters::{AdapterId, AdapterInfo};
use crate::backend::{
    Backend, ChatPrompt, ChatRequest, Grammar as CompiledGrammar, GrammarOptions, GrammarTrigger, ModelInfo,
    SpecialText, TokenizeMode,
};
use crate::command::{Command, Reply, SessionInfo, Verified};
use crate::config::{Exactness, ModelConfig};
use crate::detokenize::Utf8Stream;
use crate::error::EngineError;
use crate::event::Completion;
use crate::identity::FileIdentity;
use crate::request::{Grammar, GrammarSource, Mode, ModelLimits, Request, RequestId, Trigger};
use crate::shared::Shared;
use crate::status::{Phase, Status, StatusReport};
use crate::stream::{Stream, Streams};
use crate::supervisor::Supervisor;

/// Names of adapters are unique in the process.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A handle of a loaded model.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    namespace: Namespace,
    supervisor: Supervisor,
}

impl fmt::Debug for Model {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Model").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Model {
    /// Loads a model and starts its worker.
    ///
    /// # Errors
    /// The files cannot be loaded, a setting is wrong, or the context does not fit into memory.
    pub fn load(config: ModelConfig, backend: Arc<dyn Backend>, cache: Arc<Cache>) -> Result<Self, EngineError> {
        Self::load_with_progress(config, backend, cache, &mut |_, _| {})
    }

    /// The same; `progress` hears how many bytes of how many the fingerprint has read.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_with_progress(
        mut config: ModelConfig,
        backend: Arc<dyn Backend>,
        cache: Arc<Cache>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        config.policy()?;
        config.settle_exactness(&*backend)?;
        config
            .context
            .check()
            .map_err(|error| EngineError::Config { setting: "context".to_owned(), reason: error.to_string() })?;
        if let Some(prober) = &config.prober {
            prober.try_model(&config)?;
        }
        let path = config.model.path.clone();
        let model =
            backend.load_model(&config.model).map_err(|error| EngineError::Load { path, reason: error.to_string() })?;
        let file = FileIdentity::of(&config.model, &config.fingerprint, progress)?;
        let probe = model.info();
        // The worker creates the context; what one request may use is known from the settings.
        let context = if config.context.n_ctx == 0 { probe.n_ctx_train } else { config.context.n_ctx } as usize;
        let limits = ModelLimits { context, vocab: probe.n_vocab, exact: config.exactness != Exactness::Off };
        let shared = Arc::new(Shared {
            config,
            backend,
            model,
            cache,
            file,
            limits,
            status: Status::default(),
            streams: Arc::new(Streams::default()),
            abort: Arc::default(),
            alone: AtomicU64::new(0),
            overdue: AtomicBool::new(false),
            context_hash: OnceLock::new(),
            adapters: Mutex::default(),
        });
        let supervisor = Supervisor::start(Arc::clone(&shared))?;
        let namespace = shared.namespace()?;
        Ok(Self { inner: Arc::new(Inner { shared, namespace, supervisor }) })
    }

    fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    /// The name under which it was loaded.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.shared().config.id
    }

    /// Facts about the model.
    #[must_use]
    pub fn info(&self) -> &ModelInfo {
        self.shared().model.info()
    }

    /// The settings it was loaded with.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.shared().config
    }

    /// What one request may use.
    #[must_use]
    pub fn limits(&self) -> ModelLimits {
        self.shared().limits
    }

    /// Identity of its files.
    #[must_use]
    pub fn file(&self) -> FileIdentity {
        self.shared().file
    }

    /// The namespace of its rows without adapters.
    #[must_use]
    pub fn namespace(&self) -> Namespace {
        self.inner.namespace
    }

    /// The namespace of the rows of requests that come now, with the adapters that are attached.
    #[must_use]
    pub fn current_namespace(&self) -> Namespace {
        self.shared().adapters().map_or(self.inner.namespace, |set| set.namespace)
    }

    /// The cache behind it.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.shared().cache
    }

    /// What it is doing, without asking the worker.
    #[must_use]
    pub fn status(&self) -> StatusReport {
        self.shared().status.report()
    }

    /// The tokens of a text. Set `parse_special` only for text that you wrote yourself.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    pub fn tokenize(&self, text: &str, mode: TokenizeMode) -> Result<Vec<u32>, EngineError> {
        let mut tokens = Vec::new();
        self.shared()
            .model
            .tokenize(text, mode, &mut tokens)
            .map_err(|error| EngineError::Backend { call: "tokenizing".to_owned(), reason: error.to_string() })?;
        Ok(tokens)
    }

    /// The text of some tokens; bytes that are no UTF-8 become U+FFFD.
    #[must_use]
    pub fn detokenize(&self, tokens: &[u32], special: SpecialText) -> String {
        let mut bytes = Vec::new();
        for token in tokens {
            self.shared().model.token_bytes(*token, special, &mut bytes);
        }
        let mut stream = Utf8Stream::new();
        let mut text = stream.push(&bytes).to_owned();
        text.push_str(stream.flush());
        text
    }

    /// The exact bytes of one token.
    #[must_use]
    pub fn token_bytes(&self, token: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.shared().model.token_bytes(token, SpecialText::Render, &mut bytes);
        bytes
    }

    /// Whether a token ends a reply.
    #[must_use]
    pub fn is_end_of_generation(&self, token: u32) -> bool {
        self.shared().model.is_eog(token)
    }

    /// The model's chat template.
    #[must_use]
    pub fn chat_template(&self) -> Option<String> {
        self.shared().model.chat_template(None)
    }

    /// A metadata value of the model file.
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<String> {
        self.shared().model.metadata(key)
    }

    /// Renders messages with the model's template.
    ///
    /// # Errors
    /// The request is malformed or the template refuses it.
    pub fn apply_chat_template(&self, request: &ChatRequest) -> Result<ChatPrompt, EngineError> {
        let rendered = self.shared().model.apply_chat_template(request);
        rendered.map_err(|error| EngineError::Template { reason: error.to_string() })
    }

    /// The tokens of a rendered prompt: what came from the request never becomes a special token.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    pub fn tokenize_prompt(&self, prompt: &ChatPrompt) -> Result<Vec<u32>, EngineError> {
        let mut tokens = Vec::new();
        let mut first = true;
        for part in &prompt.parts {
            let mode = TokenizeMode { add_special: first, parse_special: !part.is_input };
            tokens.extend(self.tokenize(&part.text, mode)?);
            first = false;
        }
        Ok(tokens)
    }

    /// The rules of a JSON schema in llama.cpp's notation, starting from `root`; for building larger grammars.
    ///
    /// # Errors
    /// It is no schema, or one that cannot be turned into rules.
    pub fn json_schema_to_grammar(&self, schema: &str) -> Result<String, EngineError> {
        let rules = self.shared().model.json_schema_to_grammar(schema);
        rules.map_err(|error| EngineError::GrammarInvalid { reason: error.to_string() })
    }

    /// Hands a request to the worker. The stream yields its events; dropping it cancels the request.
    ///
    /// # Errors
    /// The request is wrong in itself, its grammar does not compile, or too many wait already.
    pub fn submit(&self, mut request: Request) -> Result<Stream, EngineError> {
        let shared = self.shared();
        request.exact |= self.config().exactness == Exactness::Always;
        request.validate(&shared.limits)?;
        let grammar = request.grammar.as_ref().map(|grammar| self.compile(grammar)).transpose()?;
        // As many as there are sequences run; the others wait.
        let running = self.config().context.n_seq_max as usize;
        let queued = shared.status.depth.load(Ordering::Relaxed).checked_sub(running);
        let limit = self.config().queue_limit;
        if let Some(queued) = queued.filter(|queued| *queued >= limit) {
            return Err(EngineError::Overloaded { queued, limit });
        }
        let id = RequestId::next();
        shared.status.depth.fetch_add(1, Ordering::Relaxed);
        let (events, stream) = shared.streams.open(id);
        let command = Command::Submit { id, request: Box::new(request), grammar, events, submitted: Instant::now() };
        if let Err(error) = self.inner.supervisor.send(command) {
            shared.end(id, crate::event::StreamEvent::Error(error.clone()));
            return Err(error);
        }
        Ok(stream)
    }

    /// Runs a request to its end.
    ///
    /// # Errors
    /// As [`Model::submit`], and whatever ends the request.
    pub fn complete(&self, request: Request) -> Result<Completion, EngineError> {
        self.submit(request)?.wait()
    }

    /// Reads a prompt and saves its state, without a reply. The answer's `finish_key` names the row.
    ///
    /// # Errors
    /// As [`Model::complete`].
    pub fn prefill_only(&self, tokens: Vec<u32>) -> Result<Completion, EngineError> {
        self.complete(Request { mode: Mode::PrefillOnly, tokens, ..Request::default() })
    }

    /// Cancels a request. Harmless if it has ended; its stream always gets a last event.
    pub fn cancel(&self, id: RequestId) {
        self.shared().cancel(id);
    }

    fn compile(&self, grammar: &Grammar) -> Result<Box<dyn CompiledGrammar>, EngineError> {
        let invalid = |reason: String| EngineError::GrammarInvalid { reason };
        let model = &self.shared().model;
        let (text, root) = match &grammar.source {
            GrammarSource::Gbnf { text, root } => (text.clone(), root.clone()),
            GrammarSource::JsonSchema(schema) => {
                let text = model.json_schema_to_grammar(schema).map_err(|error| invalid(error.to_string()))?;
                (text, "root".to_owned())
            }
        };
        let triggers: Vec<GrammarTrigger> = grammar.triggers.iter().map(backend_trigger).collect();
        let options = GrammarOptions { text, root, lazy: !triggers.is_empty(), triggers };
        let mut compiled = model.new_grammar(&options).map_err(|error| invalid(error.to_string()))?;
        for token in &grammar.accepted {
            compiled.accept(*token).map_err(|error| invalid(error.to_string()))?;
        }
        Ok(compiled)
    }

    fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.inner.supervisor.send(command(reply))?;
        answer.blocking_recv().unwrap_or_else(|_| {
            let model = self.id().to_owned();
            if self.status().phase == Phase::Stopped {
                return Err(EngineError::ShuttingDown { model });
            }
            Err(EngineError::WorkerDied { model, reason: "it ended before it answered".to_owned() })
        })
    }

    /// Forgets a session and frees its sequence. Says whether it was known.
    ///
    /// # Errors
    /// The worker is gone.
    pub fn end_session(&self, name: &str) -> Result<bool, EngineError> {
        self.ask(|reply| Command::EndSession { name: name.to_owned(), reply })
    }

    /// Sessions that hold a sequence and are idle.
    ///
    /// # Errors
    /// The worker is gone.
    pub fn sessions(&self) -> Result<Vec<SessionInfo>, EngineError> {
        self.ask(|reply| Command::Sessions { reply })
    }

    /// One vector for each input; of length 1 if `normalise`.
    ///
    /// # Errors
    /// An input is too long, or the model cannot embed.
    pub fn embed(&self, inputs: Vec<Vec<u32>>, normalise: bool) -> Result<Vec<Vec<f32>>, EngineError> {
        for input in &inputs {
            Request::new(input.clone()).validate(&self.limits())?;
        }
        let mut vectors = self.ask(|reply| Command::Embed { inputs, reply })?;
        if normalise {
            vectors.iter_mut().for_each(|vector| to_unit_length(vector));
        }
        Ok(vectors)
    }

    /// How many of the draft tokens the model would have drawn itself after the prefix, greedily.
    ///
    /// # Errors
    /// The tokens are wrong or do not fit, or every sequence is busy.
    pub fn verify(&self, prefix: Vec<u32>, draft: Vec<u32>) -> Result<Verified, EngineError> {
        let mut all = prefix.clone();
        all.extend(&draft);
        Request::new(all).validate(&self.limits())?;
        self.ask(|reply| Command::Verify { prefix, draft, reply })
    }

    /// The model's own next tokens after the prefix, greedily.
    ///
    /// # Errors
    /// As [`Model::verify`].
    pub fn draft(&self, prefix: Vec<u32>, count: usize) -> Result<Vec<u32>, EngineError> {
        Request::new(prefix.clone()).validate(&self.limits())?;
        self.ask(|reply| Command::Draft { prefix, count, reply })
    }

    /// Loads a LoRA adapter and attaches it at full strength.
    ///
    /// # Errors
    /// The file cannot be read or was made for another model.
    pub fn load_adapter(&self, path: &Path) -> Result<AdapterId, EngineError> {
        let failed = |reason: String| EngineError::AdapterLoad { path: path.to_path_buf(), reason };
        let adapter = self.shared().model.load_adapter(path).map_err(|error| failed(error.to_string()))?;
        let sha256 = file_hash(path).map_err(|error| failed(error.to_string()))?;
        let id = AdapterId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let info = AdapterInfo { id, path: path.to_path_buf(), sha256, scale: 1.0 };
        self.ask(|reply| Command::LoadAdapter { info, adapter, reply })
    }

    /// Detaches an adapter; one that is not attached is fine.
    ///
    /// # Errors
    /// The worker is gone.
    pub fn unload_adapter(&self, id: AdapterId) -> Result<(), EngineError> {
        self.ask(|reply| Command::UnloadAdapter { id, reply })
    }

    /// Changes an adapter's strength for requests that come after.
    ///
    /// # Errors
    /// No such adapter, or the scale is not a number.
    pub fn set_adapter_scale(&self, id: AdapterId, scale: f32) -> Result<(), EngineError> {
        self.ask(|reply| Command::ScaleAdapter { id, scale, reply })
    }

    /// The attached adapters.
    ///
    /// # Errors
    /// The worker is gone.
    pub fn adapters(&self) -> Result<Vec<AdapterInfo>, EngineError> {
        self.ask(|reply| Command::Adapters { reply })
    }

    /// Saves every idle session and frees its sequence. Returns how many there were.
    ///
    /// # Errors
    /// The worker is gone.
    pub fn evict(&self) -> Result<usize, EngineError> {
        self.ask(|reply| Command::Evict { reply })
    }

    /// Saves what there is, ends every request and stops the worker.
    ///
    /// # Errors
    /// It has stopped already.
    pub fn shut_down(&self) -> Result<(), EngineError> {
        self.ask(|reply| Command::Shutdown { reply })
    }

    /// The row of these tokens, whether or not it is stored.
    #[must_use]
    pub fn key_of(&self, tokens: &[u32]) -> Key {
        self.inner.namespace.key(tokens)
    }
}

impl Shared {
    /// The namespace without adapters.
    fn namespace(&self) -> Result<Namespace, EngineError> {
        let hash = self.context_hash.get().copied();
        let hash = hash.ok_or_else(|| EngineError::WorkerDied {
            model: self.config.id.clone(),
            reason: "it started without a context".to_owned(),
        })?;
        self.file.namespace(hash, &[])
    }
}

fn backend_trigger(trigger: &Trigger) -> GrammarTrigger {
    match trigger {
        Trigger::Token(token) => GrammarTrigger::Token(*token),
        // Searched for anywhere in the reply after every token. A pattern that also describes the text around the word
        // would be tried at each place and cost the cube of the reply's length.
        Trigger::Word(word) => GrammarTrigger::Pattern(escape(word)),
        Trigger::Pattern(pattern) => GrammarTrigger::Pattern(pattern.clone()),
        Trigger::PatternFull(pattern) => GrammarTrigger::Pattern(format!("^{pattern}$")),
    }
}

/// A regular expression that matches this text and nothing else.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() * 2);
    for character in text.chars() {
        if r"\^$.|?*+()[]{}".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

fn to_unit_length(vector: &mut [f32]) {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        #[expect(clippy::cast_possible_truncation, reason = "the quotient is at most 1")]
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}

fn file_hash(path: &Path) -> std::io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut file = std::fs::File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = std::io::Read::read(&mut file, &mut buffer)?;
        match buffer.get(..count) {
            Some([]) | None => break,
            Some(bytes) => hash.update(bytes),
        }
    }
    Ok(hash.finalize().into())
}
