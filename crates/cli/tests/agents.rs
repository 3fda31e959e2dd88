//! The commands for coding agents.

mod launching;
mod tools;
