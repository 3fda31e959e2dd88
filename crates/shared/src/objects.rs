//! The object store: opened from its address, asked with deadlines, measured, and left alone while it fails.
//!
//! Used by transfers and by collection. Nothing in this folder knows what the objects contain.

pub(crate) mod access;
pub(crate) mod breaker;
pub(crate) mod cas;
pub(crate) mod location;
pub(crate) mod meter;
