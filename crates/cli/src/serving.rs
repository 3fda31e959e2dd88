//! A server in this process: its models and their settings, the machine it runs on, and its end.
//!
//! Used by `poncho serve`, by `doctor`, and by the commands that start a server of their own. It must never print.

pub(crate) mod devices;
pub(crate) mod disk;
pub(crate) mod draining;
pub(crate) mod engine_process;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod model_file;
pub(crate) mod models;
pub(crate) mod names;
pub(crate) mod port;
pub(crate) mod probing;
pub(crate) mod shape;
pub(crate) mod shared_tier;
pub(crate) mod templates;
pub(crate) mod tiers;
