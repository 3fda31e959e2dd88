//! When states are saved: the settings of a model, as they are written and not yet checked.
//!
//! Part of a model's configuration. `Policy::new` of the cache checks them; nothing here decides anything.

use serde::{Deserialize, Serialize};

/// The gates of one model, as configured and not yet checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gates {
    /// Shorter states are not saved, whatever the reason.
    pub min_tokens: u32,
    /// No cold save for shorter prompts.
    pub cold_min_tokens: u32,
    /// Cap of one cold save; a chain of segments may go on past it.
    pub cold_max_tokens: u32,
    /// A continued save after each run of this number of generated tokens.
    pub continued_interval: u32,
    /// Dropped from the tail before a cold save: the last tokens may be split differently once text follows them.
    pub boundary_trim_tokens: u32,
    /// Cold boundaries are rounded down to a multiple of it.
    pub boundary_align_tokens: u32,
    /// How long a request with a parent key waits for that row to be published. 0: it does not wait.
    pub session_resume_wait_ms: u64,
    /// Bound of the saves that a caller waits for.
    pub evict_save_timeout_ms: u64,
}

impl Gates {
    const USUAL: Self = Self {
        min_tokens: 512,
        cold_min_tokens: 512,
        cold_max_tokens: 30_000,
        continued_interval: 2048,
        boundary_trim_tokens: 32,
        boundary_align_tokens: 2048,
        session_resume_wait_ms: 500,
        evict_save_timeout_ms: 30_000,
    };

    /// Gates that no state passes, for measurements of everything but saves.
    pub const CLOSED: Self = Self {
        min_tokens: u32::MAX,
        cold_min_tokens: u32::MAX,
        cold_max_tokens: u32::MAX,
        continued_interval: u32::MAX,
        boundary_trim_tokens: 0,
        boundary_align_tokens: u32::MAX,
        ..Self::USUAL
    };
}

impl Default for Gates {
    fn default() -> Self {
        Self::USUAL
    }
}
