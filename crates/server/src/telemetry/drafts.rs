//! What drafts did, as clients see it: for a reply, and for a model since it was loaded.
//!
//! Shown in the `poncho` object of an answer, with a request of the record, and with a model in `/api/system`. It must never
//! show anything of the tokens that were guessed.

use poncho_api::{DraftObstacle, DraftReport, DraftStatus};
use schemars::JsonSchema;
use serde::Serialize;

/// What drafts did for a reply.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct DraftFacts {
    /// Draft tokens that were computed.
    #[schemars(range(min = 1))]
    drafted: usize,
    /// Of these, the ones in the reply.
    accepted: usize,
    /// Tokens that a decode step drew on average, with at most two decimals.
    tokens_per_step: f64,
    /// Time that drafts saved, by measured times of decode calls; negative if the reply took longer. At most three decimals.
    saved_ms: f64,
}

impl DraftFacts {
    /// `None` if nothing was drafted.
    pub(crate) fn of(report: DraftReport) -> Option<Self> {
        let DraftReport { drafted, accepted, saved_micros, .. } = report;
        let tokens_per_step = (report.tokens_per_step()? * 100.0).round() / 100.0;
        (drafted > 0).then_some(Self { drafted, accepted, tokens_per_step, saved_ms: saved_micros as f64 / 1e3 })
    }
}

/// What drafts did for a model since it was loaded.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct DraftSums {
    /// Why there are none; `null` where they are on.
    off: Option<&'static str>,
    drafted: u64,
    accepted: u64,
    /// `null` before the first step.
    tokens_per_step: Option<f64>,
    /// Time that all replies together were spared; negative if they took longer.
    saved_seconds: f64,
    /// Tokens of stored conversations that drafts are found in.
    index_tokens: u64,
    index_bytes: u64,
}

impl From<DraftStatus> for DraftSums {
    fn from(status: DraftStatus) -> Self {
        let DraftStatus { drafted, accepted, steps, index_tokens, index_bytes, off, .. } = status;
        let per_step = (steps + accepted) as f64 / steps.max(1) as f64;
        Self {
            off: off.map(DraftObstacle::reason),
            drafted,
            accepted,
            tokens_per_step: (steps > 0).then(|| (per_step * 100.0).round() / 100.0),
            saved_seconds: saved_seconds(status),
            index_tokens,
            index_bytes,
        }
    }
}

/// The seconds that all replies of a model together were spared.
pub(crate) fn saved_seconds(status: DraftStatus) -> f64 {
    status.saved_micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reply_says_what_its_drafts_brought_or_cost() {
        let report = DraftReport { drafted: 9, accepted: 2, steps: 3, saved_micros: -1_500 };
        let shown = json!({"drafted": 9, "accepted": 2, "tokens_per_step": 1.67, "saved_ms": -1.5});
        assert_eq!(json!(DraftFacts::of(report)), shown);
        assert_eq!(
            DraftFacts::of(DraftReport { drafted: 0, accepted: 0, ..report }),
            None,
            "it waited for others at most"
        );
    }

    #[test]
    fn a_model_says_what_drafts_brought_or_why_there_are_none() {
        let status =
            DraftStatus { drafted: 10, accepted: 4, steps: 4, saved_micros: 2_500_000, ..DraftStatus::default() };
        let sums = json!(DraftSums::from(status));
        assert_eq!(
            (&sums["tokens_per_step"], &sums["saved_seconds"], &sums["off"]),
            (&json!(2.0), &json!(2.5), &json!(null))
        );
        let off = DraftStatus { off: Some(DraftObstacle::Memory), ..DraftStatus::default() };
        let sums = json!(DraftSums::from(off));
        assert_eq!(sums["tokens_per_step"], json!(null));
        assert!(sums["off"].as_str().unwrap().contains("running state"), "{sums}");
    }
}
