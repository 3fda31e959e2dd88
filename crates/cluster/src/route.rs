//! Where a request goes: costs in seconds, the choice of a node, cold starts, admission, and what follows a failure.
//!
//! Called by routers and by the simulator with what they know at that moment. Pure: the same facts give the same answer,
//! and time is an argument. A choice is advice to a node, which looks into its own cache and decides.

mod admission;
mod choice;
mod cost;
mod dispatch;
mod live;
mod starts;

pub use admission::{Refusal, retry_after};
pub use choice::{Candidate, Considered, Decision, Sample, choose};
pub use cost::{Ask, Cost, Expected, Held, Prefixes, Source, cost};
pub use dispatch::{Attempt, Dispatch, Step};
pub use live::{Live, PromptEnd};
pub use starts::{StartId, Starts};
