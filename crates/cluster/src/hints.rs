//! Hints: what nodes announce, and how a router follows them over a network that loses, delays and repeats messages.
//!
//! `announcer` is the side of a node, `directory` that of a router. Both are state machines without a clock or a socket:
//! the `bus` drives them over NATS and TCP, tests over a simulated network. Sequence numbers show a gap, and a gap means
//! asking the node for everything since. A hint must never be more than that: the node decides what it has.

mod announcer;
mod directory;
mod message;

pub use announcer::Announcer;
pub use directory::{Action, Directory, Known, Timing};
pub use message::{Answer, Beat, Change, Changes, Drain, Incarnation, ModelBeat, Question, WireError, decode, encode};
