//! Poncho's HTTP server: OpenAI-compatible endpoints, health, metrics and a few of its own over [`poncho_engine`].
//!
//! [`serve`] runs it on a listener until it is told to stop; [`check_bind`] says whether an address may be used.
//! Request text becomes engine requests here and engine events become JSON here; no inference state lives in this
//! crate, and nothing that a client sends ever becomes a path.
//!
//! | Path | What it does |
//! | --- | --- |
//! | `GET /health`, `GET /health/ready` | the process is up; a model takes requests (503 before, and once shutdown began) |
//! | `GET /metrics` | Prometheus text: cache counters, tiers, models, times by model and hit kind |
//! | `GET /v1/models`, `GET /v1/models/{id}` | loaded models and the aliases of loaded models |
//! | `POST /v1/chat/completions` | chat: tools, structured output, thinking, logprobs, `n`, streams |
//! | `POST /v1/completions` | prompts as text or tokens, `echo`, logprobs, `n`, streams |
//! | `POST /tokenize`, `/detokenize`, `/apply-template` | tokens, texts, and a conversation as the model reads it |
//! | `POST /api/cache/explain` | where a prompt or a chat request leaves the best cached prompt, and the likely cause |
//! | `GET /api/cache/rows`, `POST /api/cache/evict`, `/api/cache/gc` | the rows page by page; giving bytes back |
//! | `GET /api/sessions`, `DELETE /api/sessions/{id}` | idle sessions, and the end of one |
//! | `GET /api/hygiene` | the rules that keep prompts alike from request to request, and which are on |
//! | `GET /api/cache`, `GET /api/version` | the cache's counters and tiers; the version |
//!
//! Beside OpenAI's fields both completions take `top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `exact`,
//! `session_id` (or the header `x-session-id`), and `poncho: true` (or `x-poncho: 1`), which adds an object with the hit
//! kind, the tokens read and created, the prefill time and the key of the saved row, of the first reply if there are
//! several. Chat also takes `chat_template_kwargs` and `reasoning_effort`. Sampling that is left out has the engine's
//! defaults, not OpenAI's.

mod app;
mod auth;
mod body;
mod boundary;
mod cache_api;
mod chat;
mod config;
mod error;
mod explain;
mod growing;
mod hygiene;
mod ids;
mod metrics;
mod models;
mod openai;
mod poncho;
mod replay;
mod reply;
mod routes;
mod serve;
mod served;
mod sessions;
mod sse;
mod tools;

pub use config::{ConfigError, ServerConfig, check_bind};
pub use hygiene::HygieneRule;
pub use serve::serve;
