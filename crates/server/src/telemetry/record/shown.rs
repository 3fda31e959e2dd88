//! A request of the record as clients see it.
//!
//! Filled by `entry.rs`, which decides what the caller may see; written by `dialects/poncho/requests.rs`.

use poncho_api::{HitKind, HitTier, Normalised, RequestStage};
use schemars::JsonSchema;
use serde::Serialize;

use crate::telemetry::drafts::DraftFacts;

/// Without the stage `ended` it has its progress; with it, its outcome and times.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RecordedRequest")]
pub(crate) struct ShownRequest {
    pub(super) id: u64,
    pub(super) request_id: Option<String>,
    pub(super) model: String,
    /// The place of its API key in the settings.
    pub(super) key: Option<u64>,
    /// The same for all turns of a conversation.
    pub(super) conversation: String,
    /// Its first words; only for the key that sent it.
    pub(super) title: Option<String>,
    pub(super) arrived_ms: u64,
    #[serde(flatten)]
    pub(super) state: ShownState,
}

/// How far it is.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum ShownState {
    UnderWay(UnderWay),
    Ended(ShownEnd),
}

/// A request that has not ended.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RequestUnderWay", inline)]
pub(super) struct UnderWay {
    #[schemars(extend("enum" = RequestStage::ALL.map(RequestStage::as_str)))]
    pub(super) stage: &'static str,
    pub(super) prompt_tokens: Option<usize>,
    pub(super) cached_tokens: Option<usize>,
    pub(super) new_tokens: Option<usize>,
    /// Prompt tokens that need no more work: cached or computed.
    pub(super) processed_tokens: Option<usize>,
    pub(super) generated_tokens: usize,
    /// Prompt tokens computed or tokens generated.
    #[schemars(range(min = 0))]
    pub(super) tokens_per_second: Option<f64>,
    /// The time that the rest of the prompt takes at this speed.
    #[schemars(range(min = 0))]
    pub(super) left_ms: Option<f64>,
    #[schemars(range(min = 0))]
    pub(super) age_ms: f64,
}

/// A request that ended.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EndedRequest", inline)]
pub(super) struct ShownEnd {
    #[schemars(extend("enum" = ["ended"]))]
    pub(super) stage: &'static str,
    #[schemars(extend("enum" = ["stop", "length", "cancelled", "failed", "abandoned"]))]
    pub(super) outcome: &'static str,
    /// The code of its error.
    pub(super) error: Option<String>,
    pub(super) prompt_tokens: Option<usize>,
    pub(super) cached_tokens: Option<usize>,
    pub(super) new_tokens: Option<usize>,
    pub(super) generated_tokens: usize,
    /// How its prompt was found.
    #[schemars(extend("enum" = or_null(HitKind::ALL.map(HitKind::as_str))))]
    pub(super) hit: Option<&'static str>,
    /// Where it was found.
    #[schemars(extend("enum" = or_null(HitTier::ALL.map(HitTier::as_str))))]
    pub(super) source: Option<&'static str>,
    #[schemars(range(min = 0))]
    pub(super) queue_ms: Option<f64>,
    #[schemars(range(min = 0))]
    pub(super) restore_ms: Option<f64>,
    #[schemars(range(min = 0))]
    pub(super) prefill_ms: Option<f64>,
    #[schemars(range(min = 0))]
    pub(super) decode_ms: Option<f64>,
    #[schemars(range(min = 0))]
    pub(super) total_ms: f64,
    /// What drafts did for its reply; `null` if nothing was drafted.
    pub(super) drafts: Option<DraftFacts>,
    /// What was made equal in its prompt.
    pub(super) hygiene: Option<Vec<Normalised>>,
}

/// The words of a field that may be `null`.
fn or_null<const N: usize>(words: [&'static str; N]) -> Vec<Option<&'static str>> {
    words.into_iter().map(Some).chain([None]).collect()
}
