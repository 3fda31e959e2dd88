//! Poncho's engine: llama.cpp behind one worker thread per model, requests batched continuously, and every prompt
//! prefix that was read once found again in the cache.
//!
//! [`Model::load`] loads a GGUF file, [`Model::submit`] streams a reply, [`Model::complete`] waits for it; [`Engine`]
//! keeps several models by name. Only [`backend::llama`] knows llama.cpp; [`backend::stub`] is a deterministic stand-in.
//!
//! With a model file, on disk, and a chat prompt:
//!
//! ```no_run
//! use std::sync::Arc;
//! use poncho_cache::{Cache, CacheConfig};
//! use poncho_engine::backend::ChatRequest;
//! use poncho_engine::backend::llama::LlamaBackend;
//! use poncho_engine::{Model, ModelConfig, Request, StreamEvent};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Arc::new(Cache::open(CacheConfig::on_disk("kv", 10 << 30))?);
//! let model = Model::load(ModelConfig::new("chat", "model.gguf"), Arc::new(LlamaBackend), cache)?;
//! let messages_json = r#"[{"role":"user","content":"What is a poncho?"}]"#.to_owned();
//! let prompt = model.apply_chat_template(&ChatRequest { messages_json, ..ChatRequest::default() })?;
//! for event in model.submit(Request::new(model.tokenize_prompt(&prompt)?))? {
//!     match event {
//!         StreamEvent::Text(text) => print!("{text}"),
//!         StreamEvent::Done(done) => println!("\n{} {}", done.hit, done.cached_tokens),
//!         StreamEvent::Error(error) => return Err(error.into()),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The same calls work on the stub, which needs no file. The second request finds what the first one left:
//!
//! ```
//! use std::sync::Arc;
//! use poncho_cache::{Cache, CacheConfig, HitKind};
//! use poncho_engine::backend::MemoryKind;
//! use poncho_engine::backend::stub::StubBackend;
//! use poncho_engine::{FingerprintSource, Model, ModelConfig, Request};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20))?);
//! let config = ModelConfig {
//!     fingerprint: FingerprintSource::FastUnsafe([1; 32]),
//!     ..ModelConfig::new("stub", "stub")
//! };
//! let model = Model::load(config, Arc::new(StubBackend::new(MemoryKind::Attention)), cache)?;
//! let prompt: Vec<u32> = b"Tell me a story about llamas".iter().map(|byte| u32::from(*byte)).collect();
//! let first = model.complete(Request { max_tokens: Some(8), ..Request::new(prompt) })?;
//! assert_eq!(first.hit, HitKind::Cold);
//!
//! let mut next_turn = first.context_tokens;
//! next_turn.extend(b" And then?".iter().map(|byte| u32::from(*byte)));
//! let second = model.complete(Request { max_tokens: Some(8), ..Request::new(next_turn) })?;
//! assert_eq!(second.hit, HitKind::Sticky, "the sequence still held the first turn");
//! assert_eq!(second.cached_tokens, first.committed_tokens);
//! # Ok(())
//! # }
//! ```

pub mod backend;
pub mod error {
    //! All errors of the engine, as the api defines them.

    pub use poncho_api::{EngineError, Field, RequestError};
}

pub mod calls;
mod chat;
mod config;
pub mod draft;
pub mod files;
mod host;
mod model;
pub mod reply;
pub mod schedule;
mod sequence;
mod shared;
pub mod state;
mod worker;

pub use files::fit;

pub use calls::event::{Completion, FinishReason, StreamEvent, TokenLogprob, TokenProbability};
pub use calls::request::{Grammar, GrammarSource, Mode, ModelLimits, Request, RequestId, Sampling, Thinking, Trigger};
pub use calls::stream::Stream;
pub use calls::tenant::{Privacy, Tenant};
#[cfg(feature = "testing")]
pub use chat::parse::cost::{ParseCost, ReplyShape, parse_cost};
pub use config::{Exactness, FingerprintSource, ModelConfig, PrefillChunk, RestoreRule};
pub use error::{EngineError, RequestError};
pub use files::footprint::{EmbeddingCost, Sizing, footprint, sizing};
pub use files::probe::{ProbeWhen, Prober};
pub use host::{Engine, Host};
pub use model::Model;
pub use poncho_api::{
    ChatSettings, DraftObstacle, DraftReport, DraftRule, DraftStatus, Drafts, Footprint, HygieneRule, LoadModel,
    Reasoning, ReplayScope, RequestProgress, RequestReport, RequestStage, SigningKey,
};
pub use shared::adapters::{AdapterId, AdapterInfo};
pub use shared::embedding::Embedding;
pub use shared::queue_place::QueuePlace;
pub use shared::status::{LastHit, Phase, StatusReport};
pub use worker::command::{SessionInfo, Verified};
