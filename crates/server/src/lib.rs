//! Poncho's HTTP server: the endpoints of OpenAI, Anthropic and Ollama, health, metrics and a few of its own over
//! [`poncho_api`].
//!
//! [`serve`] runs it on a listener until shutdown is requested; [`check_bind`] says whether an address may be used.
//! Request text becomes plain data for the engine here and its events become JSON here; no inference state and no C++
//! live in this crate, and nothing that a client sends ever becomes a path.
//!
//! | Path | What it does |
//! | --- | --- |
//! | `GET /health`, `GET /health/ready` | the process is up; a model takes requests (503 before, and once shutdown began) |
//! | `GET /metrics` | Prometheus text: cache counters, tiers, models, times by model and hit kind |
//! | `GET /`, `HEAD /` | a line of text that says that the server runs, for clients that look first |
//! | `GET /v1/models`, `GET /v1/models/{id}` | loaded and installed models, and their aliases |
//! | `POST /v1/chat/completions` | chat: tools, structured output, thinking, logprobs, `n`, streams |
//! | `POST /v1/completions` | prompts as text or tokens, `suffix`, `echo`, logprobs, `n`, streams |
//! | `POST /v1/responses` | the same as chat in items and typed events; `previous_response_id`, `store` |
//! | `GET`, `DELETE /v1/responses/{id}`, `GET /v1/responses/{id}/input_items` | stored responses, kept in memory |
//! | `POST /v1/responses/{id}/cancel` | refused: no response is made in the background |
//! | `POST /v1/embeddings` | texts or tokens to vectors of length 1 |
//! | `POST /v1/messages`, `POST /v1/messages/count_tokens` | Anthropic's chat: tools, thinking, streams; and its tokens |
//! | `POST /api/generate`, `POST /api/chat` | Ollama's: templates, `raw`, `suffix`, `context`, tools, `format`, `think`; lines of JSON |
//! | `POST /api/embed`, `POST /api/embeddings` | vectors of texts, pooled as the model says or else the mean |
//! | `GET /api/tags`, `GET /api/ps`, `POST /api/show` | Ollama's view of the models; `name` and `name:latest` are the same |
//! | `POST /api/pull`, `/api/copy`, `/api/create`, `DELETE /api/delete` | the models on disk, with progress as lines of JSON |
//! | `HEAD`, `POST /api/blobs/{digest}` | files that clients bring for `/api/create` |
//! | `POST /api/models/load`, `/api/models/unload` | a model into memory and out of it, by hand |
//! | `POST /tokenize`, `/detokenize`, `/apply-template` | tokens, texts, and a conversation as the model reads it |
//! | `POST /api/verify`, `/api/draft`, `/api/speculate` | greedy tokens for programs that speculate, and a reply that another model drafts |
//! | `POST /api/cache/explain` | what differs between a prompt and the most similar cached one, and what to do about it |
//! | `GET /api/cache/rows`, `POST /api/cache/evict`, `/api/cache/clear`, `/api/cache/gc` | the rows page by page; giving bytes back |
//! | `GET /api/sessions`, `DELETE /api/sessions/{id}` | idle sessions and unfinished requests with their progress; the end of a session |
//! | `GET /api/hygiene` | the rules that keep prompts alike from request to request, and which are on |
//! | `GET /api/cache`, `GET /api/version` | the cache's counters and tiers; the version |
//!
//! Beside OpenAI's fields completions and responses take `top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `exact`,
//! `session_id` (or the header `x-poncho-session`), and `poncho: true` (or `x-poncho: 1`), which adds an object with the hit
//! kind, the tokens read and created, the prefill time and the key of the saved row, of the first reply if there are
//! several. Chat and responses also take `chat_template_kwargs`, chat `reasoning_effort`. Sampling that is left out has the engine's
//! defaults, not OpenAI's.
//!
//! Anthropic's messages take the same fields beside Anthropic's own. The three input figures of their `usage` add up to
//! the tokens of the prompt: `cache_read_input_tokens` had their state already, `cache_creation_input_tokens` were
//! computed and stored, `input_tokens` were computed and not stored, because the prompt is too short to be worth a row.
//! A stream's `message_start` already reports what was read and expects all of the rest to be stored; `message_delta` has
//! the final figures. Where `thinking` is not asked for, the prompt asks the model not to think, and any thinking is
//! hidden, so that the first block is the text.
//!
//! Ollama's generate and chat take `session_id` and `poncho` too; the object comes with the last line. Their options
//! have the model's defaults as well. Two things differ from Ollama: `num_ctx` of a request is ignored, because a context
//! is as large as it was loaded and a prompt that does not fit is refused; and pages in a
//! browser may not use the server unless their origin was allowed.
//!
//! A request that names a model of the library ([`ModelLibrary`]) which is not loaded loads it, within a memory budget;
//! models that were loaded so go when nobody used them for [`ServerConfig::keep_alive`], with their state saved.

mod blocking;
mod config;
mod dialects;
mod error;
mod forms;
mod http;
mod library;
mod models;
mod owner;
mod request_id;
mod responses;
mod router;
mod serve;
mod telemetry;

pub use config::{
    ConfigError, KeepAlive, MemoryBudget, PlanLine, PlannedMemory, Plans, RecentLines, ServerConfig, ShownDevice,
    ShownMachine, ShownPlan, ShownSetting, UnusedDevice, UploadRules, check_bind,
};
pub use dialects::poncho::endpoints::CacheTier;
pub use library::{
    LibraryError, LibraryFacts, LibraryModel, LoadingParameters, ModelDefaults, ModelLibrary, PullStep, Recipe,
    UploadLimits,
};
pub use models::registry_library::{ModelSettings, PlannedSettings, RegistryLibrary, TemplateCheck, check_modelfile};
pub use responses::tool_server::{RemoteResult, RemoteTool, ToolServer, ToolServerError, ToolSession};
pub use serve::{Draining, Ending, serve, serve_until};
pub use telemetry::reply_line::REPLY_TARGET;
