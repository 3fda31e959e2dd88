//! A span as data: what a step of a request was, when it began and ended, and its attributes.
//!
//! Made by `traces.rs`, queued by `export.rs` and written by `otlp.rs`. It never holds text of a prompt or a reply.

use std::time::SystemTime;

/// A fact about a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(super) key: &'static str,
    pub(super) value: AttributeValue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AttributeValue {
    Text(String),
    Number(i64),
}

impl Attribute {
    pub(crate) fn text(key: &'static str, value: &str) -> Self {
        Self { key, value: AttributeValue::Text(value.to_owned()) }
    }

    pub(crate) fn number(key: &'static str, value: i64) -> Self {
        Self { key, value: AttributeValue::Number(value) }
    }
}

/// What a span covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpanKind {
    /// A step inside.
    Internal,
    /// The whole request.
    Server,
}

/// A span that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(super) trace: [u8; 16],
    pub(super) id: [u8; 8],
    pub(super) parent: Option<[u8; 8]>,
    pub(super) name: String,
    pub(super) kind: SpanKind,
    pub(super) from: SystemTime,
    pub(super) until: SystemTime,
    pub(super) attributes: Vec<Attribute>,
    pub(super) is_error: bool,
}
