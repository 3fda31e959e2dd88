//! The commands for coding agents: starting one with its settings, and tools for one.

pub(crate) mod launch;
pub(crate) mod mcp;
