//! Thinking as the operator of a model wants it, for requests that leave it open.
//!
//! Part of a model's configuration. The engine fills it into each request (`Request::fill_reasoning`) before the prompt
//! is rendered.

use serde::{Deserialize, Serialize};

/// Whether and how long a model thinks if the request does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reasoning {
    /// Whether it is not to think; otherwise the template decides.
    pub is_off: bool,
    /// The most thinking tokens of a reply; `None` for no limit.
    pub budget: Option<u32>,
}
