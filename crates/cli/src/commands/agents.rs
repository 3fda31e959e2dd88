//! The commands for coding agents: starting one with its settings.

pub(crate) mod launch;
