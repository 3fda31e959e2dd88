//! Poncho's engine: llama.cpp behind one worker thread per model, requests batched continuously, and every prompt
//! prefix that was read once found again in the cache.
//!
//! [`Model::load`] loads a GGUF file, [`Model::submit`] streams a reply, [`Model::complete`] waits for it; [`Engine`]
//! keeps several models by name. Only [`backend::llama`] knows llama.cpp; [`backend::stub`] is a deterministic stand-in.

pub mod admission;
pub mod backend;
pub mod batch;
pub mod detokenize;
pub mod error;
pub mod estimate;
pub mod event;
pub mod identity;
pub mod logprobs;
pub mod markers;
pub mod pattern;
pub mod request;
pub mod sample;
pub mod signature;
pub mod stop;
pub mod thinning;

mod adapters;
mod command;
mod config;
mod engine;
mod extras;
mod inbox;
mod live;
mod model;
mod output;
mod restore;
mod save;
mod settle;
mod shared;
mod status;
mod stream;
mod supervisor;
mod task;
mod tick;
mod worker;

pub use adapters::{AdapterId, AdapterInfo};
pub use command::{SessionInfo, Verified};
pub use config::{FingerprintSource, ModelConfig, PrefillChunk};
pub use engine::Engine;
pub use error::{EngineError, RequestError};
pub use event::{CacheDelta, Completion, FinishReason, StreamEvent, TokenLogprob, TokenProbability};
pub use model::Model;
pub use request::{Grammar, GrammarSource, Mode, ModelLimits, Request, RequestId, Sampling, Thinking, Trigger};
pub use status::{LastHit, Phase, StatusReport};
pub use stream::Stream;
