//! Spans as OTLP over HTTP wants them in JSON.
//!
//! Used by `export.rs`. Ids are hexadecimal and 64-bit numbers are texts, as the protocol's JSON form has it.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::span::{Attribute, AttributeValue, Span, SpanKind};

/// The body of an export.
pub(super) fn body(spans: &[Span]) -> Value {
    let service = Attribute::text("service.name", "poncho");
    let version = Attribute::text("service.version", env!("CARGO_PKG_VERSION"));
    json!({"resourceSpans": [{
        "resource": {"attributes": [attribute(&service), attribute(&version)]},
        "scopeSpans": [{
            "scope": {"name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")},
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
        }],
    }]})
}

fn span(span: &Span) -> Value {
    let mut out = json!({
        "traceId": poncho_api::to_hex(&span.trace),
        "spanId": poncho_api::to_hex(&span.id),
        "name": span.name,
        "kind": match span.kind { SpanKind::Internal => 1, SpanKind::Server => 2 },
        "startTimeUnixNano": nanos(span.from),
        "endTimeUnixNano": nanos(span.until),
        "attributes": span.attributes.iter().map(attribute).collect::<Vec<_>>(),
        "status": if span.is_error { json!({"code": 2}) } else { json!({}) },
    });
    if let (Some(parent), Some(fields)) = (span.parent, out.as_object_mut()) {
        fields.insert("parentSpanId".to_owned(), poncho_api::to_hex(&parent).into());
    }
    out
}

fn attribute(attribute: &Attribute) -> Value {
    let value = match &attribute.value {
        AttributeValue::Text(text) => json!({"stringValue": text}),
        AttributeValue::Number(number) => json!({"intValue": number.to_string()}),
    };
    json!({"key": attribute.key, "value": value})
}

fn nanos(moment: SystemTime) -> String {
    moment.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos()).to_string()
}
