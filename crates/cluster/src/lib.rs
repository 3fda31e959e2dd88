//! Many nodes that behave as one cache: which node holds which prefix, what a request would cost on each of them in
//! seconds, and where it goes.
//!
//! Routers call it, and so does the simulator in `examples/`. Everything that decides is a pure function or a plain state
//! machine: no clock, no socket and no task. All that is known about nodes is a hint; the node itself decides, and a wrong
//! hint must never cost more than time. Nothing here links llama.cpp, and nothing here may depend on the engine.

pub mod blocks;
pub mod bus;
pub mod hints;
pub mod index;
pub mod kv_events;
pub mod member;
pub mod route;
pub mod seal;
