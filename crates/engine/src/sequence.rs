//! Sequences and the requests that run on them, from admission to the last event.
//!
//! `slots.rs` owns the context and what each sequence holds, `tasks.rs` the requests. The other files are functions that are
//! handed both, with what the model shares; the worker calls them between two ticks.

pub(crate) mod exact;
pub(crate) mod followers;
pub(crate) mod held;
pub(crate) mod idle;
pub(crate) mod lifecycle;
pub(crate) mod pending_read;
pub(crate) mod reading;
pub(crate) mod remote;
pub(crate) mod rereads;
pub(crate) mod resolve;
pub(crate) mod saves;
pub(crate) mod slots;
pub(crate) mod start;
pub(crate) mod task;
pub(crate) mod tasks;
