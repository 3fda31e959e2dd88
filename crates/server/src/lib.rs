//! Poncho's HTTP server: OpenAI-compatible endpoints, health, metrics and a few of its own over [`poncho_engine`].
//!
//! [`serve`] runs it on a listener until it is told to stop; [`check_bind`] says whether an address may be used.
//! Request text becomes engine requests here and engine events become JSON here; no inference state lives in this
//! crate, and nothing that a client sends ever becomes a path.

mod app;
mod auth;
mod body;
mod boundary;
mod chat;
mod config;
mod error;
mod ids;
mod metrics;
mod models;
mod openai;
mod poncho;
mod reply;
mod routes;
mod serve;
mod sse;

pub use config::{ConfigError, ServerConfig, check_bind};
pub use serve::serve;
