//! Settings that fit: which context, how many requests at once, which KV type and which placement a machine can hold.
//!
//! Called by the command line before a model is loaded. `planner.rs` is pure: it asks a [`Measure`] how much memory a
//! choice needs and compares that with a [`Machine`]. `arithmetic.rs` answers from the head of the file; llama.cpp
//! answers exactly, in a child process (`exact.rs`). Nothing here may allocate what it measures.

mod arithmetic;
mod choice;
#[cfg(feature = "llama")]
mod exact;
mod keeping;
mod machine;
mod planner;
#[cfg(test)]
mod tests;

pub use arithmetic::Arithmetic;
pub use choice::{Choice, Given, ModelFacts};
#[cfg(feature = "llama")]
pub use exact::Exact;
pub use keeping::{KeptPlan, ModelKey, Origin, decide};
pub use machine::{DeviceMemory, Machine, Needs, Use};
pub use planner::{Measure, Plan, Step, fits, plan};

/// The most tokens of one request that are chosen without being asked for.
pub const MOST_CONTEXT: u32 = 131_072;
/// Fewer tokens are chosen only with a warning: the first prompt of a coding agent has 15,000 to 20,000.
pub const GOOD_CONTEXT: u32 = 32_768;
/// Requests at once that are chosen without being asked for.
pub const WANTED_PARALLEL: u32 = 4;
