//! The commands, one module each. Called by `main` with the flags that the user typed and the writer of standard output.
//!
//! A command prints data to that writer and everything else to standard error. It must never end the process.

pub(crate) mod agents;
pub(crate) mod cache;
pub(crate) mod cluster;
pub(crate) mod machine;
pub(crate) mod models;
pub(crate) mod rpc_worker;
pub(crate) mod run;
pub(crate) mod running;
pub(crate) mod serve;
pub(crate) mod texts;
