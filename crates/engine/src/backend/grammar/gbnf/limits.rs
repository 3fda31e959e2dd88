//! The bounds of grammars, in one place: read by the files beside it and by docs.
//!
//! They were chosen by measuring: the largest grammar that they let through compiles in well below 200 ms on a slow
//! core, and the work that one token may cause takes about as long as a decode call of a small model.

/// Bytes of a grammar's text.
pub(crate) const MOST_TEXT: usize = 4 << 20;
/// Rules, with those that groups and repetitions stand for.
pub(crate) const MOST_RULES: usize = 100_000;
/// Steps of all rules together, after repetitions were written out.
pub(crate) const MOST_ELEMENTS: usize = 500_000;
/// Groups inside of groups. A property name of a schema takes one for each of its characters.
pub(crate) const DEEPEST_GROUP: usize = 256;
/// How often something may have to be repeated; more than this at most means without an end, as in llama.cpp.
pub(crate) const MOST_REPETITIONS: u64 = 2_000;
/// Ways to go on that are followed at once.
pub(crate) const MOST_WAYS: usize = 20_000;
/// Work that may be saved up for one token. A unit is one way looked at or one rule opened.
pub(crate) const MOST_WORK: u64 = 1_000_000;
/// Work that each token adds to what is saved up.
pub(crate) const WORK_PER_TOKEN: u64 = 50_000;
/// Remembered states before the memory is cleared.
pub(crate) const MOST_STATES: usize = 8_192;
/// Remembered pieces of ways before the memory is cleared.
pub(crate) const MOST_NODES: usize = 500_000;
