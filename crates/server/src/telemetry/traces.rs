//! Traces of requests for OpenTelemetry: which trace a request belongs to, and the spans of its steps.
//!
//! The outermost layer begins a trace, replies add the steps receive, queue, restore, prefill and decode, and the whole
//! request ends when the last byte left. A caller's `traceparent` is continued, and its wish not to be recorded is
//! respected. Spans go into a bounded queue (`traces/export.rs`); making one must never wait for anything.

mod collector;
pub(crate) mod export;
pub(crate) mod scope;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use axum::http::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};
use tokio::time::Instant;

use self::export::Exporter;

/// The parts of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// From the head of the request until the engine got it: body, template, tokens.
    Receive,
    /// Until a sequence was free.
    Queue,
    /// Until what was stored of the prompt was put back.
    Restore,
    /// Until the rest of the prompt was computed.
    Prefill,
    /// Until the last token.
    Decode,
}

impl Step {
    /// The one spelling.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Queue => "queue",
            Self::Restore => "restore",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// The trace of a request that is being answered.
pub(crate) struct Trace {
    exporter: Arc<Exporter>,
    trace: TraceId,
    /// Of the whole request.
    span: SpanId,
    /// The caller's.
    parent: Option<SpanId>,
    began: Instant,
    /// The same moment on the wall.
    wall: SystemTime,
}

impl Trace {
    /// Begins a trace, or goes on with the caller's; `None` if the caller does not want it recorded.
    pub(crate) fn begin(exporter: &Arc<Exporter>, headers: &HeaderMap) -> Option<Self> {
        let caller = headers.get("traceparent").and_then(|value| caller(value.as_bytes()));
        if caller.as_ref().is_some_and(|caller| !caller.is_sampled()) {
            return None;
        }
        let ids = RandomIdGenerator::default();
        Some(Self {
            exporter: Arc::clone(exporter),
            trace: caller.as_ref().map_or_else(|| ids.new_trace_id(), SpanContext::trace_id),
            span: ids.new_span_id(),
            parent: caller.as_ref().map(SpanContext::span_id),
            began: Instant::now(),
            wall: SystemTime::now(),
        })
    }

    /// When the request came.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// A step of the request is over.
    pub(crate) fn step(&self, step: Step, from: Instant, until: Instant, attributes: Vec<KeyValue>) {
        let id = RandomIdGenerator::default().new_span_id();
        let from_and_until = (self.at(from), self.at(until));
        self.exporter.send(self.inner_span(id, step.as_str().into(), from_and_until, attributes));
    }

    /// The request is over.
    fn end(&self, name: String, attributes: Vec<KeyValue>, is_error: bool) {
        let from_and_until = (self.wall, self.at(Instant::now()));
        self.exporter.send(SpanData {
            parent_span_id: self.parent.unwrap_or(SpanId::INVALID),
            parent_span_is_remote: self.parent.is_some(),
            span_kind: SpanKind::Server,
            status: if is_error { Status::error("") } else { Status::Unset },
            ..self.inner_span(self.span, name.into(), from_and_until, attributes)
        });
    }

    /// A span within that of the whole request.
    fn inner_span(
        &self,
        id: SpanId,
        name: Cow<'static, str>,
        (start_time, end_time): (SystemTime, SystemTime),
        attributes: Vec<KeyValue>,
    ) -> SpanData {
        let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME")).with_version(env!("CARGO_PKG_VERSION"));
        SpanData {
            span_context: SpanContext::new(self.trace, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: self.span,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name,
            start_time,
            end_time,
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: scope.build(),
        }
    }

    fn at(&self, moment: Instant) -> SystemTime {
        self.wall + moment.saturating_duration_since(self.began)
    }
}

/// Ends the trace of a request when it is dropped: with the last byte of the answer, or when the client left.
pub(crate) struct RequestSpan {
    pub(crate) scope: Arc<scope::Scope>,
    /// The method and the route.
    pub(crate) name: String,
    pub(crate) attributes: Vec<KeyValue>,
    pub(crate) is_error: bool,
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        if let Some(trace) = &self.scope.trace {
            trace.end(std::mem::take(&mut self.name), std::mem::take(&mut self.attributes), self.is_error);
        }
    }
}

/// Reads the `traceparent` header `00-(32 digits)-(16 digits)-(2 digits)`; anything else is none, as W3C wants it.
///
/// The propagator of the SDK is not used: it takes ids with too few digits.
fn caller(value: &[u8]) -> Option<SpanContext> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let mut parts = text.split('-');
    let version = digits(parts.next()?, 2)?;
    let trace = TraceId::from_hex(digits(parts.next()?, 32)?).ok()?;
    let span = SpanId::from_hex(digits(parts.next()?, 16)?).ok()?;
    let flags = u8::from_str_radix(digits(parts.next()?, 2)?, 16).ok()?;
    // Later versions may append something; the first may not, and 255 is not a version.
    let is_known = version != "ff" && (version != "00" || parts.next().is_none());
    let caller = SpanContext::new(trace, span, TraceFlags::new(flags), true, TraceState::NONE);
    (is_known && caller.is_valid()).then_some(caller)
}

/// The text, if it is `count` lower-case hexadecimal digits.
fn digits(text: &str, count: usize) -> Option<&str> {
    let is_lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (text.len() == count && is_lower).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_callers_trace_is_read() {
        let read = caller(format!("00-{TRACE}-{SPAN}-01").as_bytes()).unwrap();
        assert_eq!((read.trace_id().to_string(), read.span_id().to_string()), (TRACE.to_owned(), SPAN.to_owned()));
        assert!(read.is_sampled());
        assert!(!caller(format!("00-{TRACE}-{SPAN}-00").as_bytes()).unwrap().is_sampled());
        assert!(caller(format!("cc-{TRACE}-{SPAN}-01-what-comes").as_bytes()).is_some(), "a later version");
    }

    #[test]
    fn a_header_that_is_wrong_counts_as_none() {
        let zeros = |count: usize| "0".repeat(count);
        for wrong in [
            String::new(),
            "00".into(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", zeros(32)),
            format!("00-{TRACE}-{}-01", zeros(16)),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{}é-{SPAN}-01", &TRACE[2..]),
        ] {
            assert_eq!(caller(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(caller(b"\xff\xfe"), None);
    }
}
