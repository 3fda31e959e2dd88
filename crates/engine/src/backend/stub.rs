//! A backend that computes nothing and forgets nothing it should remember: for tests of everything above the backend.
//!
//! Used by the tests of the engine and the server in place of llama.cpp; it needs no file and answers in microseconds.
//! Its logits are a digest of the whole history of a sequence, of its positions and of the adapters in use, so a mix-up
//! of sequences, a wrong cut or a state restored to the wrong place changes the very next token. It must never be kinder
//! than llama.cpp: what a memory kind cannot do, it refuses or gets wrong in the same way.
//!
//! ```
//! use std::sync::Arc;
//! use poncho_engine::backend::stub::{StubBackend, vocab};
//! use poncho_engine::backend::{Backend, Batch, BatchRow, ContextOptions, DecodeOutcome, MemoryKind, ModelOptions};
//!
//! let prompt = vocab::tokens("Hello");
//! let backend = StubBackend::new(MemoryKind::Attention).with_reply(&prompt, &vocab::tokens(" world</s>"));
//! let model = backend.load_model(&ModelOptions::new("stub")).unwrap();
//! let mut context = model.new_context(&ContextOptions::default(), Arc::default()).unwrap();
//! let rows = (0..).zip(prompt).map(|(pos, token)| BatchRow { token, pos, seq: 0, want_logits: pos == 4 }).collect();
//! assert_eq!(context.decode(&Batch { rows }), DecodeOutcome::Done);
//! let logits = context.logits(4).unwrap();
//! assert_eq!(poncho_engine::reply::sampler::argmax(logits), Ok(u32::from(b' ')));
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Backend, HostBuffer, LoadError, MemoryKind, Model, ModelOptions, Token};

mod chat;
mod context;
mod digest;
mod echo;
mod faults;
mod gbnf;
mod grammar;
mod memory;
mod model;
mod output;
mod restore;
mod schema;
mod state;
pub mod vocab;

pub use chat::StubTemplate;
pub use echo::{PLAIN_REPLY, StubLine};
pub use faults::{DecodeFault, StubCall, StubCounts, StubFaults};

/// The stub. Every model it loads has the same memory kind; the path distinguishes models.
#[derive(Clone, Debug)]
pub struct StubBackend {
    memory: MemoryKind,
    replies: Vec<(Vec<Token>, Vec<Token>)>,
    metadata: BTreeMap<String, String>,
    faults: StubFaults,
    fills_gaps: bool,
    template: StubTemplate,
    /// What the models answer beside the scripts in their prompts; `None` for models that follow no script.
    echo: Option<Arc<[StubLine]>>,
    build: String,
    /// Bytes of a token, for models that pass for ones on a device.
    device_bytes: Option<u64>,
}

impl StubBackend {
    /// A stub for models of this memory kind.
    #[must_use]
    pub fn new(memory: MemoryKind) -> Self {
        let (replies, metadata, template) = (Vec::new(), BTreeMap::new(), StubTemplate::default());
        let (faults, build) = (StubFaults::new(), "stub 1".to_owned());
        Self { memory, replies, metadata, faults, fills_gaps: false, template, echo: None, build, device_bytes: None }
    }

    /// Makes `reply` what the models most likely say after `prompt`, one token after the other, as long as no adapter
    /// is in use and the history is exactly this. For tests of markers, stops and tool calls.
    #[must_use]
    pub fn with_reply(mut self, prompt: &[Token], reply: &[Token]) -> Self {
        self.replies.push((prompt.to_vec(), reply.to_vec()));
        self
    }

    /// Adds a metadata value to the models' files, such as the token ids of marks.
    #[must_use]
    pub fn with_metadata(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Gives the models the marks of [`vocab::FILL`].
    #[must_use]
    pub fn with_fill_tokens(mut self) -> Self {
        self.fills_gaps = true;
        self
    }

    /// Lets the models say what the newest message has between `[say:` and `:say]`, or [`PLAIN_REPLY`]. For clients that
    /// choose their own prompts. Only models with a cell for every token can.
    #[must_use]
    pub fn with_echo(self) -> Self {
        self.with_lines(Vec::new())
    }

    /// The same with replies to messages that have no script.
    #[must_use]
    pub fn with_lines(mut self, lines: Vec<StubLine>) -> Self {
        self.echo = Some(lines.into());
        self
    }

    /// Gives the models another template.
    #[must_use]
    pub fn with_template(mut self, template: StubTemplate) -> Self {
        self.template = template;
        self
    }

    /// Passes for a device, with tokens of this size.
    #[must_use]
    pub fn on_device(mut self, bytes_per_token: u64) -> Self {
        self.device_bytes = Some(bytes_per_token);
        self
    }

    /// Passes for another build of the library.
    #[must_use]
    pub fn with_build(mut self, build: &str) -> Self {
        build.clone_into(&mut self.build);
        self
    }

    /// Uses a handle that the test already has.
    #[must_use]
    pub fn with_faults(mut self, faults: StubFaults) -> Self {
        self.faults = faults;
        self
    }

    /// The handle that injects faults and counts.
    #[must_use]
    pub fn faults(&self) -> StubFaults {
        self.faults.clone()
    }
}

impl Backend for StubBackend {
    fn name(&self) -> &'static str {
        "stub"
    }

    fn build(&self) -> String {
        self.build.clone()
    }

    fn load_model(&self, options: &ModelOptions) -> Result<Arc<dyn Model>, LoadError> {
        options.check()?;
        if self.faults.fails(StubCall::LoadModel) {
            let reason = "the stub was asked to fail".to_owned();
            return Err(LoadError::Refused { path: options.path.clone(), reason });
        }
        let faults = self.faults.clone();
        let model = model::StubModel::new(&options.path, self.memory, options.vocab_only, &self.replies, faults);
        let model =
            model.with_metadata(self.metadata.clone()).with_template(self.template).with_echo(self.echo.clone());
        let model = model.on_device(self.device_bytes);
        Ok(Arc::new(if self.fills_gaps { model.with_fill_tokens() } else { model }))
    }

    fn host_buffer(&self, len: usize) -> HostBuffer {
        HostBuffer::plain(len)
    }
}

#[cfg(test)]
mod tests;
