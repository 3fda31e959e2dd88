//! Identity: what makes two states interchangeable, and the names of rows and owners.
//!
//! Used by every other room of the crate and by the engine. It reads model files; it must never open a cache folder.

pub(crate) mod context_hash;
pub(crate) mod fingerprint;
pub(crate) mod key;
pub(crate) mod memo;
pub(crate) mod owner;
