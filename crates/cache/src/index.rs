//! The index: every row in memory, by key, by tokens and by age.
//!
//! Used by the store under its lock, and by the inspection tools. Pure memory: it must never do I/O or wait.

pub(crate) mod chain;
pub(crate) mod eviction;
pub(crate) mod journal;
mod ledger;
pub(crate) mod owned;
pub(crate) mod reservation;
pub(crate) mod rows;
mod slots;
pub(crate) mod stored;
pub(crate) mod table;
pub(crate) mod trie;
pub(crate) mod user_pins;

pub use chain::{Cut, Needs};
pub(crate) use chain::{Found, Link, will_be_durable};
pub(crate) use eviction::Use;
pub(crate) use table::{DroppedFile, Index};
