//! Which server a command uses: one that the user named, one that already answers, or one in this process.
//!
//! Used by `run`, `ps`, `stop`, `embed`, `tokenize` and `top`. All of them use HTTP, even for a server of their own, so
//! that there is one way to do everything. Nothing here decides what the server is asked.

pub(crate) mod address;
pub(crate) mod args;
mod choice;
mod connection;
pub(crate) mod last_model;
mod loaded;
mod local;
mod own_server;
pub(crate) mod prometheus;

pub(crate) use connection::{Connection, administered, listed_models, named_or_default, unknown_path};
pub(crate) use loaded::Loaded;
pub(crate) use own_server::Purpose;
