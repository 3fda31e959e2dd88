//! What the fuzz targets share: an edit script read from raw bytes, JSON made of raw bytes, tiny models, a server.
//!
//! Called by the targets in `fuzz_targets`, each of which is one process of libFuzzer. A panic anywhere in it is a
//! finding, so nothing here may panic because of the input; it may panic when the harness itself cannot start.

pub mod edits;
pub mod json;
pub mod models;
pub mod server;
