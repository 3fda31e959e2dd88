//! Tests of the server over real llama.cpp live in `tests/`; the crate has no code of its own.
//!
//! The server's own tests run on the engine's stub, so they build without llama.cpp. It must never be a dependency.
