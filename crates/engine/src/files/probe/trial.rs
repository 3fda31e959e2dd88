//! What the child does with a model, and with which settings.
//!
//! Made by the prober, handed to the child as arguments, carried out there by [`run_trial`]. It calls what a server
//! calls for a first request. The context is small: the weights are shared with the next load through the page cache,
//! and nothing else may take memory of note.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use poncho_cache::split_parts;
use serde::{Deserialize, Serialize};

use crate::backend::{
    Backend, Batch, BatchRow, ChatRequest, ContextOptions, DecodeOutcome, KvLayout, MemoryKind, Model, ModelOptions,
    Pooling, SpecialText, Token, TokenizeMode,
};
use crate::config::ModelConfig;

/// Cells of the child's contexts.
const CELLS: u32 = 256;
/// Rows that are computed at once.
const ROWS: u32 = 64;
/// Tokens of the prompt: each costs a large model a second on a small machine.
const PROMPT: usize = 8;
/// Letters, digits, signs, several bytes a character, white space.
const TEXT: &str = "Hello world, 1234 + 5.6! \u{e4}\u{f6}\u{fc} \u{4f60}\u{597d} \u{1f642}\n\n\tend";
/// A conversation that every template should know how to write.
const MESSAGES: &str =
    r#"[{"role":"user","content":"Hello"},{"role":"assistant","content":"Hi"},{"role":"user","content":"Bye"}]"#;

/// A model and the settings that it is tried with.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// Its files; the first part of a split one comes first.
    pub files: Vec<PathBuf>,
    settings: Settings,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Settings {
    model: ModelOptions,
    context: ContextOptions,
    /// Whether the files after the first are named to llama.cpp.
    names_parts: bool,
}

impl Trial {
    /// The model of a configuration, with settings as small as they can be without meaning something else.
    pub(crate) fn of(config: &ModelConfig) -> Self {
        let ModelConfig { model, context, .. } = config;
        let names_parts = !model.split_paths.is_empty();
        let files = if names_parts {
            std::iter::once(&model.path).chain(&model.split_paths).cloned().collect()
        } else {
            // The load itself reports missing parts.
            split_parts(&model.path).unwrap_or_else(|_| vec![model.path.clone()])
        };
        let n_seq_max = context.n_seq_max.min(2);
        let context =
            ContextOptions { n_ctx: CELLS, n_cells: None, n_batch: ROWS, n_ubatch: ROWS, n_seq_max, ..context.clone() };
        // The files follow the settings on the command line of the child.
        let (path, split_paths) = (PathBuf::new(), Vec::new());
        // The child loads no backend library, so it knows no device of one; libraries have a trial of their own.
        let (devices, tensor_split, main_gpu) = (Vec::new(), Vec::new(), 0);
        let (mmap, mlock) = (true, false);
        let model = ModelOptions { path, split_paths, devices, tensor_split, main_gpu, mmap, mlock, ..model.clone() };
        Self { files, settings: Settings { model, context, names_parts } }
    }

    /// The settings as text, for the command line of the child.
    #[must_use]
    pub fn settings_text(&self) -> String {
        serde_json::to_string(&self.settings).unwrap_or_default()
    }

    /// A trial as the child receives it.
    ///
    /// # Errors
    /// The settings are not what [`Trial::settings_text`] wrote.
    pub fn parse(settings: &str, files: Vec<PathBuf>) -> Result<Self, String> {
        let settings = serde_json::from_str(settings).map_err(|error| format!("the settings do not parse: {error}"))?;
        Ok(Self { files, settings })
    }

    /// The same files with default settings, on one thread: for tiny models, and many of them.
    #[must_use]
    pub fn with_defaults(files: Vec<PathBuf>) -> Self {
        let mut config = ModelConfig::new("trial", files.first().cloned().unwrap_or_default());
        config.context.threads = Some(1);
        Self { files, ..Self::of(&config) }
    }
}

/// Loads the model, tokenizes, renders, computes: in the child.
///
/// # Errors
/// The first refusal that a server would meet at the load, as text.
pub fn run_trial(backend: &dyn Backend, trial: &Trial) -> Result<(), String> {
    let mut files = trial.files.iter().cloned();
    let path = files.next().ok_or("no file is named")?;
    let split_paths = if trial.settings.names_parts { files.collect() } else { Vec::new() };
    let options = ModelOptions { path, split_paths, ..trial.settings.model.clone() };
    let model = backend.load_model(&options).map_err(|error| error.to_string())?;
    let tokens = read_texts(&*model)?;
    if options.vocab_only {
        return Ok(());
    }
    compute(&*model, &trial.settings.context, &tokens)?;
    embed(&*model, &trial.settings.context, &tokens);
    Ok(())
}

/// Tokens of a text and of a conversation; every token as text.
fn read_texts(model: &dyn Model) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    if model.info().n_vocab == 0 {
        return Ok(tokens);
    }
    let special = TokenizeMode { add_special: true, parse_special: true };
    model.tokenize(TEXT, special, &mut tokens).map_err(|error| error.to_string())?;
    // A model without a usable template can still complete texts.
    let request = ChatRequest { messages_json: MESSAGES.to_owned(), ..ChatRequest::default() };
    if let Ok(prompt) = model.apply_chat_template(&request) {
        for part in &prompt.parts {
            let mut rendered = Vec::new();
            let mode = TokenizeMode { add_special: false, parse_special: !part.is_input };
            model.tokenize(&part.text, mode, &mut rendered).map_err(|error| error.to_string())?;
        }
    }
    let mut piece = Vec::new();
    for token in 0..model.info().n_vocab {
        piece.clear();
        model.token_bytes(token, SpecialText::Render, &mut piece);
        let _ = (model.is_eog(token), model.is_control(token));
    }
    Ok(tokens)
}

fn rows(tokens: &[Token], from: u32) -> Batch {
    let rows = tokens.iter().zip(from..).map(|(token, pos)| BatchRow { token: *token, pos, seq: 0, want_logits: true });
    Batch { rows: rows.collect() }
}

/// A prompt of a few tokens, and one more.
fn compute(model: &dyn Model, options: &ContextOptions, tokens: &[Token]) -> Result<(), String> {
    let mut context = model.new_context(options, Arc::default()).map_err(|error| error.to_string())?;
    if context.info().memory == MemoryKind::None {
        return Ok(());
    }
    let prompt: Vec<Token> = tokens.iter().copied().take(PROMPT).collect();
    let Some(last) = prompt.last() else { return Ok(()) };
    let after = u32::try_from(prompt.len()).unwrap_or(ROWS);
    for batch in [rows(&prompt, 0), rows(&[*last], after)] {
        match context.decode(&batch) {
            DecodeOutcome::Done => {}
            other => return Err(format!("the first tokens could not be computed: {other:?}")),
        }
    }
    Ok(())
}

/// Vectors, as far as the model can; most chat models never do, so a refusal counts for nothing.
fn embed(model: &dyn Model, options: &ContextOptions, tokens: &[Token]) {
    for pooling in [Pooling::FromModel, Pooling::Mean] {
        let options =
            ContextOptions { embeddings: true, pooling, n_seq_max: 1, kv: KvLayout::Split, ..options.clone() };
        let abort: Arc<AtomicBool> = Arc::default();
        let Ok(mut context) = model.new_context(&options, abort) else { continue };
        let prompt: Vec<Token> = tokens.iter().copied().take(PROMPT).collect();
        if !prompt.is_empty() && context.decode(&rows(&prompt, 0)) == DecodeOutcome::Done {
            let _ = (context.sequence_embedding(0).map(<[f32]>::len), context.row_embedding(0).map(<[f32]>::len));
        }
    }
}

/// Ends this process as soon as the other end of its standard input is closed, which happens when its parent died or gave
/// it up.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let mut rest = [0; 64];
        while std::io::stdin().read(&mut rest).is_ok_and(|count| count > 0) {}
        std::process::exit(i32::from(u8::MAX));
    });
}
