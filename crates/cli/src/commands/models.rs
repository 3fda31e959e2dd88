//! The commands for models: `pull`, `list`, `show`, `rm`, `cp` and `create`, one file each.
//!
//! Wiring and printing only; the registry is `poncho-models`. Data goes to the writer they are given, progress and remarks
//! to standard error.

pub(crate) mod args;
pub(crate) mod cp;
pub(crate) mod create;
pub(crate) mod list;
mod model_json;
mod progress;
pub(crate) mod pull;
pub(crate) mod rm;
pub(crate) mod show;
