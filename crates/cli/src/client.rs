//! Which server a command talks to: one that was named, one that already answers, or one started in this process.
//!
//! Used by `run`, `ps`, `stop`, `embed`, `tokenize` and `top`. All of them speak HTTP, also to a server of their own, so
//! there is one way to do everything. Nothing here decides what is asked of the server.

pub(crate) mod args;
mod connection;
pub(crate) mod http;
pub(crate) mod local;
mod own;
pub(crate) mod prometheus;

pub(crate) use connection::{Connection, listed_models, named_or_default, unknown_path};
pub(crate) use own::Purpose;
