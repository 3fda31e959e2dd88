//! The kinds of things in a cache: save reasons, tiers, payload parts, fingerprint modes, hit kinds.
//!
//! Defined in `poncho-kinds`, because the api names them too. Used by every module of this crate.

pub use poncho_kinds::{FingerprintMode, HitKind, PartKind, SaveReason, Tier};
