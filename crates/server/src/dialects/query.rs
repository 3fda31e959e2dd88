//! The parameters of addresses: which ones an endpoint has, and the answer to those that it does not have.
//!
//! The document of the API lists the parameters of every operation. A layer around all routes compares each request with
//! it, so that no handler can forget to. Poncho's own endpoints, and those that change the library, refuse an unknown
//! parameter; requests with a JSON body get a warning in their answer, from the handler that reads the body; all others
//! get a `warning` header. A parameter must never be dropped silently.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Map, Value};

use crate::dialects::openapi::{DOCUMENT, refuses_parameters};
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::unknown_fields::{UnknownField, of_query, short};
use crate::http::warnings::{Ignored, Warnings};

/// The header of answers without a place for warnings, as RFC 7234 wrote it.
const WARNING: HeaderName = HeaderName::from_static("warning");
/// The field that a warning names if a request has a body and the endpoint takes none.
const BODY: &str = "body";

/// Parameters that a dialect documents and that have no effect here, with the path that they belong to.
pub(crate) const IGNORED: [(&str, Ignored); 11] = [
    ("/v1/models", Ignored::new("?limit", ALL_MODELS)),
    ("/v1/models", Ignored::new("?before_id", ALL_MODELS)),
    ("/v1/models", Ignored::new("?after_id", ALL_MODELS)),
    ("/v1/responses/{id}", Ignored::new("?include", AS_IT_WAS)),
    ("/v1/responses/{id}", Ignored::new("?include[]", AS_IT_WAS)),
    ("/v1/responses/{id}", Ignored::new("?starting_after", NO_STREAM)),
    ("/v1/responses/{id}", Ignored::new("?include_obfuscation", NO_STREAM).but(&["false"])),
    ("/v1/responses/{id}/input_items", Ignored::new("?include", ITEMS_AS_SENT)),
    ("/v1/responses/{id}/input_items", Ignored::new("?include[]", ITEMS_AS_SENT)),
    ("/slots", Ignored::new("?fail_on_no_slot", "the answer lists every slot; look for one with is_processing false")),
    ("/props", Ignored::new("?autoload", "a model that the request names is loaded; leave it out").but(&["true"])),
];

const ALL_MODELS: &str = "one answer lists all models; leave it out";
const AS_IT_WAS: &str = "the response is sent as it was stored; ask for more when you create it";
const NO_STREAM: &str = "a stored response is not streamed; leave it out";
const ITEMS_AS_SENT: &str = "items are sent as they were received; leave it out";

/// How an endpoint answers to a parameter that it does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// With an error.
    Refusal,
    /// With a warning in the answer's `poncho` object. The handler adds it (`http/body.rs`).
    InBody,
    /// With a header.
    InHeader,
}

/// What the document says of an operation.
struct Operation {
    parameters: Vec<&'static str>,
    takes_body: bool,
    answer: Answer,
}

impl Operation {
    fn new(path: &str, operation: &'static Value) -> Self {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let parameters = parameters.filter(|parameter| parameter["in"] == "query");
        // Programs that try every parameter of the document would wait for the end of a stream.
        let of_streams = operation["x-stream-parameters"].as_array().into_iter().flatten();
        let answer = match operation.pointer("/requestBody/content/application~1json") {
            _ if refuses_parameters(path) => Answer::Refusal,
            None => Answer::InHeader,
            Some(_) => Answer::InBody,
        };
        Self {
            parameters: parameters
                .map(|parameter| &parameter["name"])
                .chain(of_streams)
                .filter_map(Value::as_str)
                .collect(),
            takes_body: !operation["requestBody"].is_null(),
            answer,
        }
    }
}

/// The operations by method and path, such as `get /v1/models`.
static OPERATIONS: LazyLock<HashMap<String, Operation>> = LazyLock::new(|| {
    let paths = DOCUMENT.get("paths").and_then(Value::as_object).into_iter().flatten();
    let operations = paths.flat_map(|(path, operations)| {
        let operations = operations.as_object().into_iter().flat_map(Map::iter);
        operations.map(move |(method, operation)| (format!("{method} {path}"), Operation::new(path, operation)))
    });
    operations.collect()
});

/// The operation of a request. Routes for GET also answer HEAD.
fn operation(method: &Method, path: &str) -> Option<&'static Operation> {
    let found = |method: &str| OPERATIONS.get(&format!("{method} {path}"));
    found(&method.as_str().to_ascii_lowercase()).or_else(|| found("get").filter(|_| method == Method::HEAD))
}

/// Refuses unknown parameters, or adds a header to the answer. A path that is not UTF-8 has nothing at its end: handlers
/// read its parts as texts, and the HTTP library would answer for them in its own words.
pub(crate) async fn check(
    State(app): State<SharedApp>,
    parts: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if matches!(parts, Err(RawPathParamsRejection::InvalidUtf8InPathParam(_))) {
        return Err(ApiError::Path { path: request.uri().path().to_owned() });
    }
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str).replace("{*", "{");
    let Some(operation) = operation(request.method(), &path) else { return Ok(next.run(request).await) };
    let query = request.uri().query();
    let mut warnings = Warnings::default();
    match operation.answer {
        Answer::Refusal => refuse(query, &operation.parameters)?,
        Answer::InBody => {}
        Answer::InHeader => {
            let ignored: Vec<Ignored> =
                IGNORED.into_iter().filter(|(of, _)| *of == path).map(|(_, ignored)| ignored).collect();
            warnings = Warnings::about(unknown(query, &operation.parameters), &ignored);
            for name in repeated(query, &operation.parameters) {
                warnings.ignored(&format!("?{name}"), "it is given more than once and one value is used; send one");
            }
        }
    }
    let has_body = !operation.takes_body && has_body(request.headers());
    warnings.ignored_if(has_body, BODY, "this endpoint takes no body; use the parameters that /openapi.json lists");
    let mut response = next.run(request).await;
    for text in warnings.texts(&app.warnings) {
        if let Ok(value) = HeaderValue::from_str(&format!("299 poncho \"{}\"", quotable(&text))) {
            response.headers_mut().append(WARNING, value);
        }
    }
    Ok(response)
}

fn refuse(query: Option<&str>, known: &[&'static str]) -> Result<(), ApiError> {
    if let Some(field) = names(query).find(|name| !known.contains(&&**name)) {
        let reason = match known {
            [] => "this endpoint has no parameters; remove it".to_owned(),
            known => format!("it is not a parameter; use {}", known.join(", ")),
        };
        return Err(ApiError::field(short(&field), reason));
    }
    match repeated(query, known).into_iter().next() {
        Some(name) => Err(ApiError::field(name, "it is given more than once; send one value")),
        None => Ok(()),
    }
}

/// The parameters that an endpoint does not have.
fn unknown(query: Option<&str>, known: &[&'static str]) -> Vec<UnknownField> {
    of_query(query).into_iter().filter(|field| !known.contains(&field.name.as_str())).collect()
}

/// The known parameters that a query has more than once.
fn repeated(query: Option<&str>, known: &[&'static str]) -> Vec<&'static str> {
    let mut seen = HashSet::new();
    let again: HashSet<String> =
        names(query).filter(|name| !seen.insert(name.clone().into_owned())).map(Cow::into_owned).collect();
    known.iter().copied().filter(|name| again.contains(*name)).collect()
}

fn names(query: Option<&str>) -> impl Iterator<Item = Cow<'_, str>> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes()).map(|(name, _)| name)
}

fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH);
    headers.contains_key(header::TRANSFER_ENCODING) || length.is_some_and(|length| length != "0")
}

/// A text that fits between the quotes of a header.
fn quotable(text: &str) -> String {
    text.chars().map(|c| if c == ' ' || (c.is_ascii_graphic() && c != '"' && c != '\\') { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_decides_what_is_a_parameter() {
        let rows = operation(&Method::GET, "/api/cache/rows").unwrap();
        assert_eq!((&rows.parameters[..], rows.answer), (&["offset", "limit"][..], Answer::Refusal));
        let head = operation(&Method::HEAD, "/v1/models").unwrap();
        assert_eq!((head.answer, head.takes_body), (Answer::InHeader, false));
        assert_eq!(operation(&Method::POST, "/v1/chat/completions").unwrap().answer, Answer::InBody);
        for (path, _) in IGNORED {
            assert_eq!(operation(&Method::GET, path).unwrap().answer, Answer::InHeader, "{path}");
        }
    }

    #[test]
    fn names_are_decoded() {
        assert_eq!(unknown(Some("include%5B%5D=x&beta=true&&limit=1"), &["limit"])[0].path, "?include[]");
        assert_eq!(repeated(Some("limit=1&b=2&limit=3&b=1"), &["limit"]), ["limit"]);
        assert_eq!(quotable("`a\"b\\c\u{e9}\n`"), "`a?b?c??`");
    }
}
