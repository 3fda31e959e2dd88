//! Traces of requests for OpenTelemetry: which trace a request belongs to, and the spans of its steps.
//!
//! The outermost layer begins a trace, replies add the steps receive, queue, restore, prefill and decode, and the whole
//! request ends when the last byte left. A caller's `traceparent` is continued, and its wish not to be recorded is
//! respected. Spans go into a bounded queue (`trace/export.rs`); making one must never wait for anything.

pub(crate) mod export;
mod otlp;
pub(crate) mod scope;
mod span;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::HeaderMap;
use tokio::time::Instant;

use self::export::Exporter;
pub(crate) use self::span::Attribute;
use self::span::{Span, SpanKind};

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
    trace: [u8; 16],
    /// Of the whole request.
    span: [u8; 8],
    /// The caller's.
    parent: Option<[u8; 8]>,
    began: Instant,
    /// The same moment on the wall.
    wall: SystemTime,
}

impl Trace {
    /// Begins a trace, or goes on with the caller's; `None` if the caller does not want it recorded.
    pub(crate) fn begin(exporter: &Arc<Exporter>, headers: &HeaderMap) -> Option<Self> {
        let caller = headers.get("traceparent").and_then(|value| Caller::read(value.as_bytes()));
        if caller.as_ref().is_some_and(|caller| !caller.is_recorded) {
            return None;
        }
        Some(Self {
            exporter: Arc::clone(exporter),
            trace: caller.as_ref().map_or_else(random, |caller| caller.trace),
            span: random(),
            parent: caller.map(|caller| caller.span),
            began: Instant::now(),
            wall: SystemTime::now(),
        })
    }

    /// When the request came.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// A step of the request is over.
    pub(crate) fn step(&self, step: Step, from: Instant, until: Instant, attributes: Vec<Attribute>) {
        self.exporter.send(Span {
            trace: self.trace,
            id: random(),
            parent: Some(self.span),
            name: step.as_str().to_owned(),
            kind: SpanKind::Internal,
            from: self.at(from),
            until: self.at(until),
            attributes,
            is_error: false,
        });
    }

    /// The request is over.
    fn end(&self, name: &str, attributes: Vec<Attribute>, is_error: bool) {
        self.exporter.send(Span {
            trace: self.trace,
            id: self.span,
            parent: self.parent,
            name: name.to_owned(),
            kind: SpanKind::Server,
            from: self.wall,
            until: self.at(Instant::now()),
            attributes,
            is_error,
        });
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
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) is_error: bool,
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        if let Some(trace) = &self.scope.trace {
            trace.end(&self.name, std::mem::take(&mut self.attributes), self.is_error);
        }
    }
}

/// What a `traceparent` header says.
#[derive(Debug, PartialEq, Eq)]
struct Caller {
    trace: [u8; 16],
    span: [u8; 8],
    is_recorded: bool,
}

impl Caller {
    /// Reads `00-(32 digits)-(16 digits)-(2 digits)`; anything else counts as no header at all, as W3C wants it.
    fn read(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?.trim();
        let mut parts = text.split('-');
        let version: [u8; 1] = digits(parts.next()?)?;
        let trace: [u8; 16] = digits(parts.next()?)?;
        let span: [u8; 8] = digits(parts.next()?)?;
        let [flags] = digits::<1>(parts.next()?)?;
        // Later versions may append something; the first may not, and 255 is not a version.
        let is_known = version != [255] && (version != [0] || parts.next().is_none());
        let is_named = trace != [0; 16] && span != [0; 8];
        (is_known && is_named).then_some(Self { trace, span, is_recorded: flags & 1 == 1 })
    }
}

/// Exactly `N` bytes in lower-case hexadecimal digits.
fn digits<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if text.len() != 2 * N || !is_lower {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// A random name. Never all zeros, which means "none".
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if getrandom::fill(&mut bytes).is_err() || bytes == [0; N] {
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos();
        bytes.iter_mut().zip(nanos.to_le_bytes()).for_each(|(byte, fresh)| *byte = fresh | 1);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_callers_trace_is_read() {
        let read = Caller::read(format!("00-{TRACE}-{SPAN}-01").as_bytes()).unwrap();
        assert_eq!((read.trace[0], read.trace[15], read.span[7], read.is_recorded), (0x4b, 0x36, 0xb7, true));
        assert!(!Caller::read(format!("00-{TRACE}-{SPAN}-00").as_bytes()).unwrap().is_recorded);
        assert!(Caller::read(format!("cc-{TRACE}-{SPAN}-01-what-comes").as_bytes()).is_some(), "a later version");
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
            assert_eq!(Caller::read(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(Caller::read(b"\xff\xfe"), None);
    }
}
