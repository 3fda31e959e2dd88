//! A loaded model: loading, facts, vocabulary, metadata.
//!
//! Shared between the worker, which makes contexts from it, and callers that tokenize on their own threads. The
//! handle is freed when the last context, adapter, grammar and template that use it are gone. Everything here is
//! read-only after the load; llama.cpp's vocabulary functions are called from many threads at once.

pub(super) mod measure;
mod placement;

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use llama_cpp_sys_4 as sys;

use super::adapter::LlamaAdapter;
use super::context::LlamaContext;
use super::gguf_check::{self, GgufFacts};
use super::handle::{ModelHandle, fill_text};
use super::log;
use crate::backend::llama::chat::matcher::LlamaGrammar;
use crate::backend::llama::chat::schema;
use crate::backend::llama::chat::template::Templates;
use crate::backend::llama::text::deep::on_deep_stack;
use crate::backend::llama::text::tokenizer::Tokenizer;
use crate::backend::{
    Adapter, AdapterError, ChatError, ChatPrompt, ChatRequest, Context, ContextError, ContextOptions, FillTokens,
    Grammar, GrammarError, GrammarOptions, LoadError, MemoryKind, Model, ModelInfo, ModelOptions, SpecialText,
    SpecialTokens, SplitMode, Token, TokenizeError, TokenizeMode,
};

/// A loaded model.
pub(super) struct LlamaModel {
    pub(super) handle: Arc<ModelHandle>,
    info: ModelInfo,
    pub(super) tokenizer: Tokenizer,
    templates: Templates,
}

impl LlamaModel {
    /// Checks the file, then loads it on this thread.
    pub(super) fn load(options: &ModelOptions) -> Result<Self, LoadError> {
        options.check()?;
        let mut facts = gguf_check::check_file(&options.path)?;
        for path in &options.split_paths {
            let part = gguf_check::check_file(path)?;
            if part.has_long_rope {
                facts.rope_switch_at = facts.rope_original_context;
            }
            facts.position_rows = facts.position_rows.or(part.position_rows);
        }
        Self::load_checked(options, &facts)
    }

    /// Loads a file on this thread, which must have been checked: what it holds may end the process else.
    pub(super) fn load_checked(options: &ModelOptions, facts: &GgufFacts) -> Result<Self, LoadError> {
        let (handle, reason) = log::collect(|| load_handle(options, facts, Weights::Loaded));
        let handle = handle?.ok_or(LoadError::Refused { path: options.path.clone(), reason })?;
        let info = read_info(&handle, facts, options.vocab_only);
        let handle = Arc::new(handle);
        let (model, pre) = (handle.metadata("tokenizer.ggml.model"), handle.metadata("tokenizer.ggml.pre"));
        if (model.as_deref(), pre.as_deref()) == (Some("gpt2"), Some("whitespace")) {
            // Words of this pre-tokenizer keep their spaces, and merging them would fail an assertion.
            let reason = "its tokenizer gpt2 cannot be used with the pre-tokenizer whitespace".to_owned();
            return Err(LoadError::Malformed { path: options.path.clone(), reason });
        }
        let tokenizer = Tokenizer::new(Arc::clone(&handle), model.as_deref(), pre.as_deref());
        Ok(Self { templates: Templates::new(Arc::clone(&handle)), tokenizer, handle, info })
    }
}

/// Whether the weights are loaded, or only their places are worked out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weights {
    Loaded,
    Measured,
}

/// Loads a file that was checked; `None` if the library refuses, and its log says why.
pub(super) fn load_handle(
    options: &ModelOptions,
    facts: &GgufFacts,
    weights: Weights,
) -> Result<Option<ModelHandle>, LoadError> {
    placement::set_numa(options.numa);
    // SAFETY: plain values.
    let mut params = unsafe { sys::llama_model_default_params() };
    // A negative count means all layers.
    params.n_gpu_layers = options.gpu_layers.map_or(-1, |layers| i32::try_from(layers).unwrap_or(i32::MAX));
    params.split_mode = match options.split_mode {
        SplitMode::None => sys::LLAMA_SPLIT_MODE_NONE,
        SplitMode::Layer => sys::LLAMA_SPLIT_MODE_LAYER,
        SplitMode::Row => sys::LLAMA_SPLIT_MODE_ROW,
    };
    params.load_mode = match (options.mmap, options.mlock) {
        (true, true) => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
        (true, false) => sys::LLAMA_LOAD_MODE_MMAP,
        (false, true) => sys::LLAMA_LOAD_MODE_MLOCK,
        (false, false) => sys::LLAMA_LOAD_MODE_NONE,
    };
    if weights == Weights::Measured {
        params.no_alloc = true;
        params.load_mode = sys::LLAMA_LOAD_MODE_NONE;
    }
    params.main_gpu = i32::try_from(options.main_gpu).unwrap_or(i32::MAX);
    params.vocab_only = options.vocab_only;
    params.check_tensors = options.check_tensors;
    let shares = padded_shares(&options.tensor_split)?;
    if let Some(shares) = &shares {
        params.tensor_split = shares.as_ptr();
    }
    let mut devices = placement::devices(&options.devices)?;
    if !options.devices.is_empty() {
        params.devices = devices.as_mut_ptr();
    }
    let overrides = placement::Overrides::experts(options.n_cpu_moe);
    params.tensor_buft_overrides = overrides.as_ptr();
    let paths = std::iter::once(&options.path).chain(&options.split_paths);
    let paths: Vec<CString> = paths.map(|path| c_path(path)).collect::<Result<_, _>>()?;
    let mut pointers: Vec<*const c_char> = paths.iter().map(|path| path.as_ptr()).collect();
    // SAFETY: the paths, shares, devices and overrides outlive the call; the function catches its own exceptions and returns null.
    let model = unsafe {
        match pointers.as_mut_slice() {
            [only] => sys::llama_model_load_from_file(*only, params),
            many => sys::llama_model_load_from_splits(many.as_mut_ptr(), many.len(), params),
        }
    };
    let Some(model) = NonNull::new(model) else { return Ok(None) };
    // SAFETY: the model is valid; its vocabulary lives inside it.
    let vocab = unsafe { sys::llama_model_get_vocab(model.as_ptr()) };
    let Some(vocab) = NonNull::new(vocab.cast_mut()) else {
        // SAFETY: the model was just loaded and nothing else knows it.
        unsafe { sys::llama_model_free(model.as_ptr()) };
        return Ok(None);
    };
    // SAFETY: the vocabulary is valid.
    let n_vocab = unsafe { sys::llama_vocab_n_tokens(vocab.as_ptr()) };
    let n_vocab = u32::try_from(n_vocab).unwrap_or(0);
    Ok(Some(ModelHandle::new(model, vocab, n_vocab, facts)))
}

/// llama.cpp reads as many shares as it knows devices.
fn padded_shares(shares: &[f32]) -> Result<Option<Vec<f32>>, LoadError> {
    if shares.is_empty() {
        return Ok(None);
    }
    // SAFETY: plain value.
    let devices = unsafe { sys::llama_max_devices() };
    if shares.len() > devices {
        return Err(LoadError::BadOption {
            option: "tensor_split",
            value: format!("{shares:?}"),
            reason: "there are more shares than GPUs this build can use",
        });
    }
    let mut padded = shares.to_vec();
    padded.resize(devices, 0.0);
    Ok(Some(padded))
}

fn c_path(path: &Path) -> Result<CString, LoadError> {
    CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| LoadError::NotAFile { path: path.to_path_buf() })
}

fn read_info(handle: &ModelHandle, facts: &GgufFacts, vocab_only: bool) -> ModelInfo {
    let model = handle.as_ptr();
    let vocab = handle.vocab();
    let positive = |value: i32| u32::try_from(value).unwrap_or(0);
    let optional = |token: sys::llama_token| u32::try_from(token).ok();
    let has_vocab = handle.n_vocab() > 0;
    // SAFETY: model and vocabulary are valid; the special-token getters need a vocabulary that has tokens.
    unsafe {
        let special = if has_vocab {
            SpecialTokens {
                bos: optional(sys::llama_vocab_bos(vocab)),
                eos: optional(sys::llama_vocab_eos(vocab)),
                eot: optional(sys::llama_vocab_eot(vocab)),
                sep: optional(sys::llama_vocab_sep(vocab)),
                nl: optional(sys::llama_vocab_nl(vocab)),
                pad: optional(sys::llama_vocab_pad(vocab)),
                fill: fill_tokens(vocab),
            }
        } else {
            SpecialTokens::default()
        };
        let window = positive(sys::llama_model_n_swa(model));
        let memory = if vocab_only {
            MemoryKind::None
        } else if sys::llama_model_is_recurrent(model) {
            MemoryKind::Recurrent
        } else if sys::llama_model_is_hybrid(model) {
            MemoryKind::Hybrid
        } else if window > 0 {
            MemoryKind::Window { size: window }
        } else {
            MemoryKind::Attention
        };
        ModelInfo {
            n_vocab: handle.n_vocab(),
            n_ctx_train: positive(sys::llama_model_n_ctx_train(model)),
            n_layers: positive(sys::llama_model_n_layer(model)),
            n_embd: positive(sys::llama_model_n_embd(model)),
            n_embd_out: positive(sys::llama_model_n_embd_out(model)),
            architecture: facts.architecture.clone(),
            description: fill_text(|buffer, len| sys::llama_model_desc(model, buffer, len)).unwrap_or_default(),
            size_bytes: sys::llama_model_size(model),
            n_params: sys::llama_model_n_params(model),
            memory,
            special,
            add_bos: has_vocab && sys::llama_vocab_get_add_bos(vocab),
            add_eos: has_vocab && sys::llama_vocab_get_add_eos(vocab),
            has_encoder: sys::llama_model_has_encoder(model),
            has_decoder: sys::llama_model_has_decoder(model),
            vocab_only,
            rope_switch_at: facts.rope_switch_at,
        }
    }
}

/// # Safety
/// The vocabulary must be valid.
unsafe fn fill_tokens(vocab: *const sys::llama_vocab) -> Option<FillTokens> {
    // SAFETY: as the caller promises.
    let [prefix, suffix, middle] =
        unsafe { [sys::llama_vocab_fim_pre(vocab), sys::llama_vocab_fim_suf(vocab), sys::llama_vocab_fim_mid(vocab)] };
    let token = |token: sys::llama_token| u32::try_from(token).ok();
    Some(FillTokens { prefix: token(prefix)?, suffix: token(suffix)?, middle: token(middle)? })
}

impl LlamaModel {
    pub(super) fn context(
        &self,
        options: &ContextOptions,
        abort: Arc<AtomicBool>,
    ) -> Result<LlamaContext, ContextError> {
        if self.info.vocab_only {
            return Err(ContextError::VocabOnly);
        }
        LlamaContext::new(Arc::clone(&self.handle), &self.info, options, abort)
    }
}

impl Model for LlamaModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn metadata(&self, key: &str) -> Option<String> {
        self.handle.metadata(key)
    }

    fn chat_template(&self, variant: Option<&str>) -> Option<String> {
        let variant = variant.map(CString::new).transpose().ok()?;
        let name = variant.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        // SAFETY: the result is null or a string inside the model, copied before the model can go.
        unsafe {
            let text = sys::llama_model_chat_template(self.handle.as_ptr(), name);
            if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
        }
    }

    fn tokenize(&self, text: &str, mode: TokenizeMode, out: &mut Vec<Token>) -> Result<(), TokenizeError> {
        out.extend(self.tokenizer.tokenize(text, mode, &self.info)?);
        Ok(())
    }

    fn least_tokens(&self, text: &str) -> usize {
        self.tokenizer.least_tokens(text)
    }

    fn token_bytes(&self, token: Token, special: SpecialText, out: &mut Vec<u8>) {
        self.handle.token_bytes(token, special == SpecialText::Render, out);
    }

    fn is_eog(&self, token: Token) -> bool {
        // SAFETY: the token is one of the vocabulary's.
        self.handle
            .checked_token(token)
            .is_some_and(|token| unsafe { sys::llama_vocab_is_eog(self.handle.vocab(), token) })
    }

    fn is_control(&self, token: Token) -> bool {
        let token = self.handle.checked_token(token);
        // SAFETY: the token is one of the vocabulary's.
        token.is_some_and(|token| unsafe { sys::llama_vocab_is_control(self.handle.vocab(), token) })
    }

    fn new_context(&self, options: &ContextOptions, abort: Arc<AtomicBool>) -> Result<Box<dyn Context>, ContextError> {
        Ok(Box::new(self.context(options, abort)?))
    }

    fn load_adapter(&self, path: &Path) -> Result<Arc<dyn Adapter>, AdapterError> {
        Ok(Arc::new(LlamaAdapter::load(Arc::clone(&self.handle), path)?))
    }

    fn new_grammar(&self, options: &GrammarOptions) -> Result<Box<dyn Grammar>, GrammarError> {
        Ok(Box::new(LlamaGrammar::new(&self.handle, options)?))
    }

    fn json_schema_to_grammar(&self, schema: &str) -> Result<String, GrammarError> {
        let converted = on_deep_stack(|| schema::json_schema_to_grammar(schema));
        converted.map_err(|error| GrammarError::BadSchema { reason: error.reason() })?
    }

    fn apply_chat_template(&self, request: &ChatRequest) -> Result<ChatPrompt, ChatError> {
        self.templates.apply(request)
    }
}
