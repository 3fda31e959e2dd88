//! Thinking and tool-call markers that a model declares, as token sequences.
//!
//! Part of a model's configuration and of a request; they show the engine which part of a reply a token belongs to.

use serde::{Deserialize, Serialize};

/// The markers that a model declares, as token sequences. Empty sequences count as absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkerSet {
    /// What encloses a thinking block.
    pub thinking: Option<ThinkingMarkers>,
    /// What encloses a tool call.
    pub tool_call: Option<ToolMarkers>,
}

/// What encloses a thinking block.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinkingMarkers {
    /// Opens it.
    pub open: Vec<u32>,
    /// Each of these closes it; the first is the one that is forced when the budget is used up.
    pub close: Vec<Vec<u32>>,
}

/// What encloses a tool call and, inside it, the free text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolMarkers {
    /// Opens the call.
    pub open: Vec<u32>,
    /// Closes the call, also from inside a payload.
    pub close: Vec<u32>,
    /// Open and close a payload.
    pub payload: Option<(Vec<u32>, Vec<u32>)>,
}
