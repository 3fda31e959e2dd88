//! What tests need in place of the real world: a file system in memory and one that fails on command.
//!
//! Used by this crate's tests and by those of its users, behind the feature `testing`. Never part of a release.

mod fault_fs;
mod memory_fs;

pub use fault_fs::{Fault, FaultFs, Operation};
pub use memory_fs::MemoryFs;
