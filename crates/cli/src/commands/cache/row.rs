//! A row as JSON: the fields that `ls` and `show` share.
//!
//! Scripts rely on the names: fields may be added, but must never change their meaning.

use poncho_cache::{Namespace, RowFile, Tier, to_hex};
use poncho_terminal::clipped;
use serde::Serialize;

/// Characters of prompt text in a list.
const LISTED_TEXT: usize = 200;

/// A row in `ls --json`.
#[derive(Debug, Serialize)]
pub(crate) struct RowJson<'a> {
    key: String,
    tier: &'static str,
    /// Of the whole file.
    bytes: u64,
    tokens: u32,
    /// The first token that the file itself holds.
    start: u32,
    parent: Option<String>,
    hits: u32,
    reason: &'static str,
    version: u8,
    /// Unix seconds.
    created: u64,
    /// Unix seconds.
    last_used: u64,
    parts: Vec<PartJson>,
    namespace: NamespaceJson,
    /// The name of the model, if it is known.
    model: Option<&'a str>,
    /// The beginning of the prompt.
    text: &'a str,
}

#[derive(Debug, Serialize)]
pub(crate) struct PartJson {
    kind: &'static str,
    bytes: u64,
}

/// Rows are interchangeable only within one namespace.
#[derive(Debug, Serialize)]
pub(crate) struct NamespaceJson {
    fingerprint: String,
    quant: &'static str,
    context_hash: String,
}

impl<'a> RowJson<'a> {
    pub(crate) fn new(row: &'a RowFile, tier: Tier) -> Self {
        let prefix = &row.prefix;
        Self {
            key: row.key.to_hex(),
            tier: tier.as_str(),
            bytes: row.bytes,
            tokens: prefix.meta.token_count,
            start: prefix.meta.start,
            parent: prefix.meta.parent.map(|parent| parent.to_hex()),
            hits: prefix.meta.hits,
            reason: prefix.meta.reason.as_str(),
            version: prefix.meta.version,
            created: prefix.meta.created,
            last_used: prefix.meta.last_used,
            parts: prefix.parts.iter().map(|part| PartJson { kind: part.kind.as_str(), bytes: part.length }).collect(),
            namespace: (&prefix.meta.namespace).into(),
            model: None,
            text: clipped(&prefix.text, LISTED_TEXT),
        }
    }

    /// The row with the name of its model.
    pub(crate) fn with_model(self, model: Option<&'a str>) -> Self {
        Self { model, ..self }
    }

    /// The row with its whole text.
    pub(crate) fn whole(row: &'a RowFile, tier: Tier) -> Self {
        Self { text: &row.prefix.text, ..Self::new(row, tier) }
    }
}

impl From<&Namespace> for NamespaceJson {
    fn from(namespace: &Namespace) -> Self {
        Self {
            fingerprint: to_hex(&namespace.fingerprint),
            quant: namespace.quant.as_str(),
            context_hash: to_hex(&namespace.context_hash),
        }
    }
}
