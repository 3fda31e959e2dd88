//! A loaded model as its callers see it.
//!
//! Tokenizing, templates and grammars run while the caller waits; requests and the other commands go to the worker. The
//! handle is cheap to clone; the model is unloaded when the registry and all handles are gone, or by `shut_down`.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use poncho_api::{Drafts, ModelReport, RequestReport};
use poncho_cache::{Cache, FileStamp, Key, Namespace, QuantType};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::backend::grammar::schema;
use crate::backend::{
    Backend, ChatError, ChatPrompt, ChatRequest, Grammar as CompiledGrammar, GrammarOptions, GrammarTrigger,
    MemoryKind, ModelInfo, SpecialText, TokenizeError, TokenizeMode,
};
use crate::calls::event::Completion;
use crate::calls::open_request::OpenRequest;
use crate::calls::request::{Grammar, GrammarSource, Mode, ModelLimits, Request, RequestId, Trigger};
use crate::calls::stream::{Stream, Streams};
use crate::calls::tenant::{Tenant, TenantNamespace as _};
use crate::config::{Checked as _, Exactness, ModelConfig};
use crate::draft::library::Library;
use crate::error::EngineError;
use crate::files::file_watch::FileWatch;
use crate::files::footprint::{EmbeddingCost, sizing};
use crate::files::parts;
use crate::files::probe::try_model;
use crate::reply::detokenize::Utf8Stream;
use crate::shared::adapters::{AdapterId, AdapterInfo};
use crate::shared::embedding::{Embedding, OpenEmbeddings, Reply};
use crate::shared::queue_place::QueuePlace;
use crate::shared::running::Running;
use crate::shared::session_list::SessionList;
use crate::shared::status::{Phase, Status, StatusReport};
use crate::shared::{Shared, drafts_wanted};
use crate::state::identity::FileIdentity;
use crate::worker::command::{Command, SessionInfo, Verified};
use crate::worker::embed::embedding_rows;
use crate::worker::supervisor::Supervisor;

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
    report: ModelReport,
    /// Worked out when it is first asked for.
    embedding_cost: OnceLock<EmbeddingCost>,
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
        config.settle_exactness();
        let given = config.model.path.clone();
        parts::settle(&mut config.model)
            .map_err(|error| EngineError::Load { path: given, reason: error.to_string() })?;
        config
            .context
            .check()
            .map_err(|error| EngineError::Config { setting: "context".to_owned(), reason: error.to_string() })?;
        if let Some(prober) = &config.prober {
            try_model(prober, &config)?;
        }
        let path = config.model.path.clone();
        // Before the backend opens them: what it maps and what is hashed must be the same bytes.
        let watch = FileWatch::new(&config.model);
        let model =
            backend.load_model(&config.model).map_err(|error| EngineError::Load { path, reason: error.to_string() })?;
        let file = FileIdentity::of(&config.model, &config.fingerprint, progress)?;
        if let Some(path) = watch.look() {
            let reason = "it was changed while it was being loaded; wait until it is complete and load it again";
            return Err(EngineError::Load { path, reason: reason.to_owned() });
        }
        let probe = model.info();
        // The worker creates the context; what one request may use is known from the settings.
        let context = if config.context.n_ctx == 0 { probe.n_ctx_train } else { config.context.n_ctx } as usize;
        let sequences = usize::try_from(config.context.n_seq_max).unwrap_or(1).max(1);
        let exact = config.exactness != Exactness::Off;
        let limits = ModelLimits { context, vocab: probe.n_vocab, sequences, exact, queue: config.queue_limit };
        let offers_stored = Drafts::Auto.within(config.drafts) == Drafts::Stored;
        let can_draft = matches!(probe.memory, MemoryKind::Attention | MemoryKind::Window { .. });
        let drafts = drafts_wanted(&config, &*backend);
        let library = (offers_stored && can_draft && drafts).then(|| Library::new(&cache));
        let status = Status::default();
        status.speeds.set_bytes_per_token(sizing(&config).bytes_per_token);
        let shared = Arc::new(Shared {
            library,
            config,
            backend,
            model,
            cache,
            file,
            watch: Arc::new(watch),
            limits,
            status,
            streams: Arc::new(Streams::default()),
            sessions: SessionList::default(),
            embeddings: OpenEmbeddings::default(),
            running: Arc::new(Running::default()),
            readers: Arc::default(),
            context_hash: OnceLock::new(),
            adapters: Mutex::default(),
        });
        let supervisor = Supervisor::start(Arc::clone(&shared))?;
        let namespace = shared.namespace()?;
        let report = shared.report(namespace);
        let embedding_cost = OnceLock::new();
        Ok(Self { inner: Arc::new(Inner { shared, namespace, supervisor, report, embedding_cost }) })
    }

    fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    /// The name under which it was loaded.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.shared().config.id
    }

    /// What never changes while it is loaded.
    #[must_use]
    pub fn report(&self) -> &ModelReport {
        &self.inner.report
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

    /// Whether its file was changed since it was loaded, as far as anybody looked. It takes no requests then: unload it
    /// and load it again.
    #[must_use]
    pub fn is_file_changed(&self) -> bool {
        self.shared().watch.is_changed()
    }

    /// Whether nobody looked at its file for a second.
    #[must_use]
    pub fn is_file_look_due(&self) -> bool {
        self.shared().watch.is_due()
    }

    /// Looks whether its file was changed since it was loaded. May block as long as the disk does.
    #[must_use]
    pub fn look_at_file(&self) -> bool {
        self.shared().watch.look().is_some()
    }

    /// Refuses work that would compute with other weights.
    fn check_file(&self) -> Result<(), EngineError> {
        let watch = &self.shared().watch;
        if watch.is_changed() || (watch.is_due() && watch.look().is_some()) {
            return Err(EngineError::FileChanged { model: self.id().to_owned() });
        }
        Ok(())
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

    /// The namespace of the rows of such requests that come now.
    #[must_use]
    pub fn namespace_for(&self, exact: bool, tenant: Option<Tenant>) -> Namespace {
        let exact = exact || self.config().exactness == Exactness::Always;
        let shared = self.inner.namespace;
        let of_tenant = || tenant.map_or(shared, |tenant| tenant.namespace(shared));
        self.shared().adapters().map_or_else(of_tenant, |set| set.namespace_for(exact, tenant))
    }

    /// The cache behind it.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.shared().cache
    }

    /// What it is doing, without asking the worker.
    #[must_use]
    pub fn status(&self) -> StatusReport {
        let library = self.shared().library.as_ref();
        self.shared().status.report(library.map_or((0, 0), Library::size))
    }

    /// Its unfinished requests, oldest first, as far as the worker has reported them. Does not wait for the worker.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestReport> {
        self.shared().streams.requests()
    }

    /// Sessions that hold a sequence and are idle. Does not wait for the worker.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.shared().sessions.get().iter().map(|resting| resting.info.clone()).collect()
    }

    /// The attached adapters. Does not wait for the worker.
    #[must_use]
    pub fn adapters(&self) -> Vec<AdapterInfo> {
        self.shared().adapters().map_or_else(Vec::new, |set| set.infos())
    }

    /// The tokens of a text. Set `parse_special` only for text that you wrote yourself.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    pub fn tokenize(&self, text: &str, mode: TokenizeMode) -> Result<Vec<u32>, EngineError> {
        let mut tokens = Vec::new();
        self.shared().model.tokenize(text, mode, &mut tokens).map_err(|error| match error {
            TokenizeError::RunTooLong { chars, limit } => EngineError::RunTooLong { chars, limit },
            other => EngineError::Backend { call: "tokenizing".to_owned(), reason: other.to_string() },
        })?;
        Ok(tokens)
    }

    /// Refuses texts that have more tokens together than `limit`, if their size alone says so. Costs next to nothing.
    ///
    /// # Errors
    /// They have more tokens.
    pub fn check_size<'t>(&self, texts: impl IntoIterator<Item = &'t str>, limit: usize) -> Result<(), EngineError> {
        let texts: Vec<&str> = texts.into_iter().collect();
        // A token has at least one byte, so most texts need no closer look.
        if texts.iter().map(|text| text.len()).sum::<usize>() <= limit {
            return Ok(());
        }
        let least = texts.iter().map(|text| self.shared().model.least_tokens(text)).sum();
        if least > limit { Err(EngineError::PromptTooLarge { least, limit }) } else { Ok(()) }
    }

    /// The tokens of a text that must not have more than `limit`; one that cannot fit is refused before it is tokenized.
    ///
    /// # Errors
    /// The text is too long or cannot be tokenized.
    pub fn tokenize_within(&self, text: &str, mode: TokenizeMode, limit: usize) -> Result<Vec<u32>, EngineError> {
        self.check_size([text], limit)?;
        self.tokenize(text, mode)
    }

    /// The beginning of a text that has more than `limit` tokens, where its size says so; else all of it. For callers that
    /// cut the tokens afterwards.
    #[must_use]
    pub fn beginning<'t>(&self, text: &'t str, limit: usize) -> &'t str {
        // The last word of the beginning may be cut; its tokens must lie beyond the limit.
        let enough = limit.saturating_add(64);
        let mut end = enough;
        while end < text.len() {
            while !text.is_char_boundary(end) {
                end += 1;
            }
            let Some(head) = text.get(..end) else { break };
            if self.shared().model.least_tokens(head) > enough {
                return head;
            }
            end = end.saturating_mul(2);
        }
        text
    }

    /// The text of some tokens; bytes that are not UTF-8 become U+FFFD.
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
        self.template_named(None)
    }

    /// One of the model's chat templates: some files have another one for tools.
    pub(crate) fn template_named(&self, variant: Option<&str>) -> Option<String> {
        self.shared().model.chat_template(variant)
    }

    /// A metadata value of the model file.
    #[must_use]
    pub fn metadata(&self, key: &str) -> Option<String> {
        self.shared().model.metadata(key)
    }

    /// Renders messages with the model's template.
    ///
    /// # Errors
    /// The request is malformed, a schema in it is too large, or the template refuses it.
    pub fn apply_chat_template(&self, request: &ChatRequest) -> Result<ChatPrompt, EngineError> {
        check_schemas(request)?;
        let rendered = self.shared().model.apply_chat_template(request);
        rendered.map_err(|error| match error {
            ChatError::Busy { running } => EngineError::Overloaded { queued: running, limit: running },
            // The schema is converted while the template is rendered; where it is to blame, it is named.
            error => {
                self.bad_reply_schema(request).unwrap_or_else(|| EngineError::Template { reason: error.to_string() })
            }
        })
    }

    /// What is wrong with the schema of the reply, if it has one that cannot be used.
    fn bad_reply_schema(&self, request: &ChatRequest) -> Option<EngineError> {
        let schema = Some(&request.json_schema).filter(|schema| !schema.is_empty())?;
        self.json_schema_to_grammar(schema).err()
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
    /// It is not a schema, or it cannot be turned into rules.
    pub fn json_schema_to_grammar(&self, schema: &str) -> Result<String, EngineError> {
        schema::check_text(schema, &mut schema::Used::default()).map_err(|error| bad_schema(&error))?;
        let rules = self.shared().model.json_schema_to_grammar(schema);
        rules.map_err(|error| EngineError::GrammarInvalid { reason: error.to_string() })
    }

    /// Whether the parameters of all tools of a request, in OpenAI's shape, can be turned into rules in good time.
    ///
    /// # Errors
    /// One of their schemas is too large, or all together are.
    pub fn check_tools(&self, tools_json: &str) -> Result<(), EngineError> {
        check_tools(tools_json, &mut schema::Used::default())
    }

    /// Takes a place in the queue, before anything is done for a request. Given back when it is dropped unused.
    ///
    /// # Errors
    /// Too many wait already.
    pub fn reserve(&self) -> Result<QueuePlace, EngineError> {
        QueuePlace::take(&self.inner.shared)
    }

    /// Hands a request to the worker. The stream yields its events; dropping it cancels the request.
    ///
    /// # Errors
    /// The request is wrong in itself, its grammar does not compile, or too many wait already.
    pub fn submit(&self, request: Request) -> Result<Stream, EngineError> {
        let (request, grammar) = self.checked(request)?;
        self.enter(self.reserve()?, request, grammar)
    }

    /// Hands a request to the worker and uses up the reserved place. A request that is refused leaves the place reserved.
    ///
    /// # Errors
    /// The request is wrong in itself or its grammar does not compile.
    pub fn submit_at(&self, place: &mut Option<QueuePlace>, request: Request) -> Result<Stream, EngineError> {
        let (request, grammar) = self.checked(request)?;
        // A place of another model is none here.
        let place = place.take().filter(|place| place.is_of(&self.inner.shared));
        self.enter(place.map_or_else(|| self.reserve(), Ok)?, request, grammar)
    }

    fn enter(
        &self,
        place: QueuePlace,
        request: Request,
        grammar: Option<Box<dyn CompiledGrammar>>,
    ) -> Result<Stream, EngineError> {
        let id = RequestId::next();
        let submitted = Instant::now();
        let (events, stream) = place.open(id, OpenRequest::new(&request, submitted));
        let command = Command::Submit { id, request: Box::new(request), grammar, events, submitted };
        if let Err(error) = self.inner.supervisor.send(command) {
            self.shared().end(id, crate::calls::event::StreamEvent::Error(error.clone()));
            return Err(error);
        }
        Ok(stream)
    }

    fn checked(&self, mut request: Request) -> Result<(Request, Option<Box<dyn CompiledGrammar>>), EngineError> {
        self.check_file()?;
        request.exact |= self.config().exactness == Exactness::Always;
        request.validate(&self.shared().limits)?;
        let grammar = request.grammar.as_ref().map(|grammar| self.compile(grammar)).transpose()?;
        Ok((request, grammar))
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
            GrammarSource::JsonSchema(schema) => (self.json_schema_to_grammar(schema)?, "root".to_owned()),
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

    /// One vector for each input; of length 1 if `normalise`.
    ///
    /// # Errors
    /// As [`Model::start_embedding`], and whatever ends the call.
    pub fn embed(&self, inputs: Vec<Vec<u32>>, normalise: bool) -> Result<Vec<Vec<f32>>, EngineError> {
        self.start_embedding(inputs, normalise)?.wait()
    }

    /// Hands inputs to the worker, which computes them one by one between the decode calls of requests. The answer has
    /// one vector for each input, of length 1 if `normalise`; dropping it cancels what is not computed yet.
    ///
    /// # Errors
    /// An input is wrong or too long, or as many calls are open as requests may wait.
    pub fn start_embedding(&self, inputs: Vec<Vec<u32>>, normalise: bool) -> Result<Embedding, EngineError> {
        self.check_file()?;
        for input in &inputs {
            Request::new(input.clone()).validate(&self.limits())?;
        }
        let shared = &self.inner.shared;
        let id = RequestId::next();
        let (reply, answer) = oneshot::channel();
        // One is computed while the others wait.
        shared.embeddings.open(id, reply, self.config().queue_limit.saturating_add(1))?;
        let embedding = Embedding::new(id, shared, answer, normalise);
        self.inner.supervisor.send(Command::Embed { id, inputs })?;
        Ok(embedding)
    }

    /// Rows of the context in which inputs of up to `longest` tokens are embedded, for [`EmbeddingCost::bytes`].
    ///
    /// [`EmbeddingCost::bytes`]: crate::EmbeddingCost::bytes
    #[must_use]
    pub fn embedding_rows(&self, longest: usize) -> u32 {
        embedding_rows(longest, self.limits().context)
    }

    /// Bytes of that context. Reads the head of the model's file the first time.
    #[must_use]
    pub fn embedding_bytes(&self, longest: usize) -> u64 {
        let cost = self.inner.embedding_cost.get_or_init(|| EmbeddingCost::of(self.config()));
        cost.bytes(self.embedding_rows(longest))
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
        self.load_adapter_scaled(path, 1.0)
    }

    /// Loads a LoRA adapter and attaches it at this strength: no request sees it at another one.
    ///
    /// # Errors
    /// As [`Model::load_adapter`].
    pub fn load_adapter_scaled(&self, path: &Path, scale: f32) -> Result<AdapterId, EngineError> {
        let failed = |reason: String| EngineError::AdapterLoad { path: path.to_path_buf(), reason };
        let before = FileStamp::of(path).map_err(|error| failed(error.to_string()))?;
        let adapter = self.shared().model.load_adapter(path).map_err(|error| failed(error.to_string()))?;
        let sha256 = file_hash(path).map_err(|error| failed(error.to_string()))?;
        if FileStamp::of(path).map_err(|error| failed(error.to_string()))? != before {
            let reason = "it was changed while it was being loaded; wait until it is complete and load it again";
            return Err(failed(reason.to_owned()));
        }
        let id = AdapterId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let info = AdapterInfo { id, path: path.to_path_buf(), sha256, scale };
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
    fn report(&self, namespace: Namespace) -> ModelReport {
        let quantisation = Some(self.file.quant).filter(|quant| *quant != QuantType::Other);
        ModelReport {
            id: self.config.id.clone(),
            info: self.model.info().clone(),
            limits: self.limits,
            path: self.config.model.path.clone(),
            fingerprint: self.file.fingerprint,
            context_hash: namespace.context_hash,
            quantisation: quantisation.map(|quant| quant.as_str().to_owned()),
            license: self.model.metadata("general.license"),
            signing_key: self.config.signing_key.clone(),
        }
    }

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

/// llama.cpp converts these while it renders.
fn check_schemas(request: &ChatRequest) -> Result<(), EngineError> {
    let mut used = schema::Used::default();
    if !request.json_schema.is_empty() {
        schema::check_text(&request.json_schema, &mut used).map_err(|error| bad_schema(&error))?;
    }
    if request.tools_json.is_empty() {
        return Ok(());
    }
    check_tools(&request.tools_json, &mut used)
}

fn check_tools(tools_json: &str, used: &mut schema::Used) -> Result<(), EngineError> {
    schema::check_tools(tools_json, used).map_err(|(tool, error)| EngineError::GrammarInvalid {
        reason: format!("the schema of the tool {tool:?} cannot be used: {error}"),
    })
}

fn bad_schema(error: &schema::SchemaError) -> EngineError {
    EngineError::GrammarInvalid { reason: format!("the JSON schema cannot be used: {error}") }
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

fn file_hash(path: &Path) -> std::io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut file = poncho_cache::open_regular(path, poncho_cache::Links::Follow)?;
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
