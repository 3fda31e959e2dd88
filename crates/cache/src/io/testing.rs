//! What tests need in place of the real world: a file system in memory, one that fails on command
//! and one that is watched.
//!
//! Used by this crate's tests and by those of its users, behind the feature `testing`. Never part of a release.

mod fault_fs;
mod memory_fs;
mod watched_fs;

pub use fault_fs::{Fault, FaultFs, Operation};
pub use memory_fs::MemoryFs;
pub use watched_fs::{WatchedFs, Watcher};

/// What the broken invariant in `provoke` complains about.
///
/// # Panics
/// Nothing was broken, or the panic has no text.
#[cfg(test)]
pub(crate) fn broken_invariant(provoke: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(provoke)).expect_err("nothing panicked");
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a panic with a text")
}
