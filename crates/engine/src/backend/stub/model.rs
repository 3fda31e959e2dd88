//! The stub's model: a vocabulary, a template, and contexts that all answer alike.
//!
//! Made by `StubBackend`. Its weights are a single number, taken from the content of the file at its path, or from the
//! path itself if there is no file; so two models differ and one model loaded twice does not. It must never need a file.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use poncho_cache::{Links, open_regular};

use crate::backend::{
    Adapter, AdapterError, ChatError, ChatPrompt, ChatRequest, Context, ContextError, ContextInfo, ContextOptions,
    FlashAttention, Grammar, GrammarError, GrammarOptions, KvLayout, MemoryKind, Model, ModelInfo, Pooling,
    SpecialText, Token, TokenizeError, TokenizeMode,
};

use super::chat::{self, StubTemplate};
use super::context::StubContext;
use super::digest::{mix_all, mix_bytes};
use super::echo::StubLine;
use super::faults::{StubCall, StubFaults};
use super::grammar::StubGrammar;
use super::memory::{Layers, Pool, Sequence};
use super::output::N_EMBD;
use super::vocab::{self, N_VOCAB};
use super::{schema, state};

/// Context length the stub claims to be trained with.
const N_CTX_TRAIN: u32 = 8192;
/// Enough of a file to tell it from others.
const READ_LIMIT: u64 = 1 << 20;
/// Models of a process are numbered, so that an adapter knows its own.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// What a model's contexts share.
#[derive(Debug)]
pub(super) struct ModelFacts {
    /// Distinguishes loaded models.
    pub(super) id: u64,
    /// What comes after a digest, where a test said so.
    pub(super) replies: HashMap<u64, Token>,
    /// The handle of the backend.
    pub(super) faults: StubFaults,
}

/// A model of the stub.
pub(super) struct StubModel {
    info: ModelInfo,
    layers: Layers,
    /// What a test put into the file beside what every stub has.
    metadata: BTreeMap<String, String>,
    facts: Arc<ModelFacts>,
    template: StubTemplate,
    echo: Option<Arc<[StubLine]>>,
    device_bytes: Option<u64>,
}

/// An adapter of the stub.
pub(super) struct StubAdapter {
    /// The model it was loaded for.
    pub(super) model: u64,
    /// What it adds.
    pub(super) weights: u64,
}

impl Adapter for StubAdapter {}

impl StubModel {
    pub(super) fn new(
        path: &Path,
        kind: MemoryKind,
        vocab_only: bool,
        replies: &[(Vec<Token>, Vec<Token>)],
        faults: StubFaults,
    ) -> Self {
        let layers = Layers { kind, keep_all: false, seed: identity(path) };
        let info = ModelInfo {
            n_vocab: N_VOCAB,
            n_ctx_train: N_CTX_TRAIN,
            n_layers: 2,
            n_embd: N_EMBD,
            n_embd_out: N_EMBD,
            architecture: "stub".to_owned(),
            description: format!("stub {kind:?}"),
            size_bytes: 8,
            n_params: 1,
            memory: if vocab_only { MemoryKind::None } else { kind },
            special: vocab::special_tokens(false),
            add_bos: true,
            add_eos: false,
            has_encoder: false,
            has_decoder: true,
            vocab_only,
            rope_switch_at: None,
        };
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let facts = ModelFacts { id, replies: learn_replies(replies, layers), faults };
        let template = StubTemplate::default();
        Self {
            info,
            layers,
            metadata: BTreeMap::new(),
            facts: Arc::new(facts),
            template,
            echo: None,
            device_bytes: None,
        }
    }

    /// The same model with more in its file.
    pub(super) fn with_metadata(self, metadata: BTreeMap<String, String>) -> Self {
        Self { metadata, ..self }
    }

    pub(super) fn with_fill_tokens(mut self) -> Self {
        self.info.special = vocab::special_tokens(true);
        self
    }

    pub(super) fn with_template(self, template: StubTemplate) -> Self {
        Self { template, ..self }
    }

    pub(super) fn with_echo(self, echo: Option<Arc<[StubLine]>>) -> Self {
        Self { echo, ..self }
    }

    pub(super) fn on_device(self, device_bytes: Option<u64>) -> Self {
        Self { device_bytes, ..self }
    }
}

/// The digest that each prompt ends in, with the token that shall follow.
fn learn_replies(replies: &[(Vec<Token>, Vec<Token>)], layers: Layers) -> HashMap<u64, Token> {
    let pool = Pool::default();
    let mut learnt = HashMap::new();
    for (prompt, reply) in replies {
        let mut sequence = Sequence::default();
        let mut digest = 0;
        for &token in prompt {
            digest = sequence.read(token, 0, layers, &pool);
        }
        for &token in reply {
            learnt.insert(digest, token);
            digest = sequence.read(token, 0, layers, &pool);
        }
    }
    learnt
}

/// A number for a file: its content's, or its name's if there is none to read.
fn identity(path: &Path) -> u64 {
    let mut content = Vec::new();
    let read = open_regular(path, Links::Follow).and_then(|file| file.take(READ_LIMIT).read_to_end(&mut content));
    match read {
        Ok(_) => mix_bytes(&content),
        Err(_) => mix_bytes(path.as_os_str().as_encoded_bytes()),
    }
}

impl Model for StubModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn metadata(&self, key: &str) -> Option<String> {
        match key {
            "general.name" | "general.architecture" => Some("stub".to_owned()),
            "tokenizer.chat_template" => Some(chat::TEMPLATE.to_owned()),
            other => self.metadata.get(other).cloned(),
        }
    }

    fn chat_template(&self, variant: Option<&str>) -> Option<String> {
        variant.is_none().then(|| chat::TEMPLATE.to_owned())
    }

    fn tokenize(&self, text: &str, mode: TokenizeMode, out: &mut Vec<Token>) -> Result<(), TokenizeError> {
        self.facts.faults.count(|counts| counts.tokenized_bytes += text.len() as u64);
        vocab::tokenize(text, mode, out);
        Ok(())
    }

    fn least_tokens(&self, text: &str) -> usize {
        vocab::least_tokens(text)
    }

    fn token_bytes(&self, token: Token, special: SpecialText, out: &mut Vec<u8>) {
        vocab::token_bytes(token, special, out);
    }

    fn is_eog(&self, token: Token) -> bool {
        vocab::is_eog(token)
    }

    fn is_control(&self, token: Token) -> bool {
        vocab::is_control(token)
    }

    fn new_context(&self, options: &ContextOptions, abort: Arc<AtomicBool>) -> Result<Box<dyn Context>, ContextError> {
        if self.info.vocab_only {
            return Err(ContextError::VocabOnly);
        }
        options.check()?;
        if self.facts.faults.fails(StubCall::NewContext) {
            return Err(ContextError::Refused { reason: "the stub was asked to fail".to_owned() });
        }
        // The llama.cpp backend reads a first token, which a flag that is already set would abort.
        if abort.load(Ordering::Relaxed) {
            return Err(ContextError::FirstDecode { code: 2, reason: "the abort flag was set".to_owned() });
        }
        let layers = Layers { keep_all: options.swa_full, ..self.layers };
        let n_ctx = if options.n_ctx == 0 { N_CTX_TRAIN } else { options.n_ctx };
        let kind = layers.kind;
        let info = ContextInfo {
            n_ctx,
            n_cells: match options.kv {
                KvLayout::Unified => options.n_cells.unwrap_or(n_ctx).max(n_ctx),
                KvLayout::Split => n_ctx.saturating_mul(options.n_seq_max),
            },
            n_seq_max: options.n_seq_max,
            n_batch: options.n_batch,
            n_ubatch: if options.embeddings { options.n_batch } else { options.n_ubatch },
            // It computes nothing, but reports the configured value.
            n_threads: options.threads.unwrap_or(1),
            n_threads_batch: options.threads_batch.or(options.threads).unwrap_or(1),
            kv: options.kv,
            memory: kind,
            flash_attention: kind.has_segments().then_some(options.flash_attention != FlashAttention::Off),
            segment_bytes_per_token: match self.device_bytes {
                Some(bytes) if kind.has_segments() => bytes,
                None if kind.has_segments() => state::CELL as u64,
                _ => 0,
            },
            on_device: self.device_bytes.is_some(),
            state_layout: format!("stub-state 1 {kind:?}").into_bytes(),
        };
        let pooling = match options.pooling {
            Pooling::FromModel => Pooling::Mean,
            other => other,
        };
        let pooling = options.embeddings.then_some(pooling);
        let mut context = StubContext::new(info, layers, Arc::clone(&self.facts), abort, pooling);
        context.echo = self.echo.clone();
        Ok(Box::new(context))
    }

    fn load_adapter(&self, path: &Path) -> Result<Arc<dyn Adapter>, AdapterError> {
        if self.facts.faults.fails(StubCall::LoadAdapter) {
            let reason = "the stub was asked to fail".to_owned();
            return Err(AdapterError::Refused { path: path.to_path_buf(), reason });
        }
        Ok(Arc::new(StubAdapter { model: self.facts.id, weights: mix_all(&[2, identity(path)]) }))
    }

    fn new_grammar(&self, options: &GrammarOptions) -> Result<Box<dyn Grammar>, GrammarError> {
        Ok(Box::new(StubGrammar::new(options)?))
    }

    fn json_schema_to_grammar(&self, schema: &str) -> Result<String, GrammarError> {
        schema::to_grammar(schema)
    }

    fn apply_chat_template(&self, request: &ChatRequest) -> Result<ChatPrompt, ChatError> {
        self.facts.faults.count(|counts| counts.renders += 1);
        chat::render(request, self.template)
    }
}
