//! The commands, one module each. Called by `main` with the flags that the user typed and the writer of standard output.
//!
//! A command prints data to that writer and everything else to standard error. It must never end the process.

pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod explain;
pub(crate) mod input;
pub(crate) mod manual;
pub(crate) mod models;
pub(crate) mod ps;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod stop;
pub(crate) mod tokenize;
pub(crate) mod top;
