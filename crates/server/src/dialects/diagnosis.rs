//! Cache diagnostics of a call: how its request differs from an earlier one of the same client.
//!
//! Anthropic's dialect asks with `diagnostics.previous_message_id`, the others with `poncho.previous_id`; the answers have
//! the same words. The comparison is made when the request is taken, and its record is kept when the reply ends.

use std::sync::Arc;

use poncho_api::{Finished, Generate};
use schemars::JsonSchema;
use serde::Serialize;

use crate::forms::left_out;
use crate::http::app::SharedApp;
use crate::owner::Owner;
use crate::responses::fingerprint::{Change, Fingerprint};
use crate::responses::records::{Record, Records};

/// The `diagnostics` object of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Diagnostics {
    cache_miss_reason: Reason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "CacheMissReason", transform = left_out)]
struct Reason {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = [
        "model_changed", "system_changed", "tools_changed", "messages_changed", "previous_message_not_found", "unavailable",
    ]))]
    kind: &'static str,
    /// Tokens of the earlier prompt that had to be computed again.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_missed_input_tokens: Option<usize>,
}

/// What the comparison found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    /// There was nothing to compare with, or messages were appended and nothing else.
    Same,
    /// The part that changed, and the tokens of the earlier prompt.
    Changed(Change, usize),
    NotFound,
}

/// A call with diagnostics.
#[derive(Clone)]
pub(crate) struct Diagnosis {
    records: Arc<Records>,
    id: String,
    owner: Owner,
    fingerprint: Fingerprint,
    compared: Compared,
}

impl std::fmt::Debug for Diagnosis {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Diagnosis")
            .field("id", &self.id)
            .field("compared", &self.compared)
            .finish_non_exhaustive()
    }
}

impl Diagnosis {
    /// Compares a request with an earlier one. `id` is that of the reply; `None` if the prompt is not a conversation.
    pub(crate) fn of(
        app: &SharedApp,
        owner: Owner,
        id: &str,
        model: &str,
        generate: &Generate,
        previous: Option<&str>,
    ) -> Option<Self> {
        let fingerprint = Fingerprint::of(model, generate)?;
        let compared = match previous.map(|previous| app.records.get(owner.0, previous)) {
            None => Compared::Same,
            Some(None) => Compared::NotFound,
            Some(Some(record)) => match fingerprint.change_since(&record.fingerprint, generate) {
                None => Compared::Same,
                Some(change) => Compared::Changed(change, record.tokens),
            },
        };
        Some(Self { records: Arc::clone(&app.records), id: id.to_owned(), owner, fingerprint, compared })
    }

    /// The id under which the request is kept.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The object of an answer, with this many prompt tokens from the cache; `None` if nothing changed.
    pub(crate) fn told(&self, cached_tokens: usize) -> Option<Diagnostics> {
        let (kind, tokens) = match self.compared {
            Compared::Same => return None,
            Compared::NotFound => ("previous_message_not_found", None),
            Compared::Changed(Change::Other, _) => ("unavailable", None),
            Compared::Changed(Change::Model, tokens) => ("model_changed", Some(tokens)),
            Compared::Changed(Change::System, tokens) => ("system_changed", Some(tokens)),
            Compared::Changed(Change::Tools, tokens) => ("tools_changed", Some(tokens)),
            Compared::Changed(Change::Messages, tokens) => ("messages_changed", Some(tokens)),
        };
        let cache_missed_input_tokens = tokens.map(|tokens| tokens.saturating_sub(cached_tokens));
        Some(Diagnostics { cache_miss_reason: Reason { kind, cache_missed_input_tokens } })
    }

    /// Keeps the record of a request that was served.
    pub(crate) fn keep(&self, finished: &Finished) {
        self.records.put(Record {
            id: self.id.clone(),
            owner: self.owner.0,
            tokens: finished.completion.prompt_tokens,
            fingerprint: self.fingerprint.clone(),
        });
    }
}
