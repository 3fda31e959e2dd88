//! JSON in and out: the extractor that reads a request's body, and the answer of a handler.
//!
//! Every way in which a body can be wrong has its own error here: type, length, speed, UTF-8, JSON, field. It must
//! never hold more than the limit in memory.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::error::{ApiError, Family};
use crate::http::app::SharedApp;
use crate::http::origin::is_from_page;
use crate::http::unknown_fields::{self, UnknownField};

/// A struct that must come as an object; by itself serde would also take a list with its fields in order.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub(crate) struct Object<T>(pub(crate) T);

impl<T> Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: JsonSchema> JsonSchema for Object<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        unknown_fields::read(map)
    }
}

/// A value that came or goes as JSON.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<SharedApp> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &SharedApp) -> Result<Self, ApiError> {
        let JsonBytes(bytes) = JsonBytes::from_request(request, app).await?;
        parse(&bytes).map(Self)
    }
}

/// A body that came as JSON, and the fields in it that its type does not know.
pub(crate) struct Checked<T> {
    pub(crate) body: T,
    pub(crate) unknown: Vec<UnknownField>,
}

impl<T: DeserializeOwned> FromRequest<SharedApp> for Checked<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &SharedApp) -> Result<Self, ApiError> {
        let in_query = unknown_fields::of_query(request.uri().query());
        let JsonBytes(bytes) = JsonBytes::from_request(request, app).await?;
        let (body, mut unknown) = parse_checked(&bytes)?;
        unknown.extend(in_query);
        Ok(Self { body, unknown })
    }
}

/// A body that was announced as JSON, not yet read as such: for endpoints that look at it twice.
pub(crate) struct JsonBytes(pub(crate) Bytes);

impl FromRequest<SharedApp> for JsonBytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &SharedApp) -> Result<Self, ApiError> {
        check_content_type(request.headers(), Family::of_path(request.uri().path()))?;
        let limit = app.config.max_body;
        if announced_length(request.headers()).is_some_and(|length| length > limit) {
            return Err(ApiError::BodyTooLarge { limit });
        }
        let wait = app.config.body_timeout;
        let read = tokio::time::timeout(wait, read_body(request.into_body(), limit)).await;
        read.map_err(|_| ApiError::SlowBody { limit: wait })?.map(Self)
    }
}

async fn read_body(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::BodyTooLarge { limit }),
        Err(error) => Err(ApiError::BodyBroken { reason: error.to_string() }),
    }
}

fn announced_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A page in a browser can send other types to a local server without asking first; JSON it cannot. Clients of Ollama's
/// endpoints often say nothing, or what curl says by itself; from them that is taken as long as no page sent it.
fn check_content_type(headers: &HeaderMap, family: Family) -> Result<(), ApiError> {
    let got = headers.get(header::CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let got = got.unwrap_or_else(|| "missing".to_owned());
    let essence = got.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    let is_careless = got == "missing" || essence == "application/x-www-form-urlencoded";
    let is_tolerated = is_careless && family == Family::Ollama && !is_from_page(headers);
    if is_json || is_tolerated { Ok(()) } else { Err(ApiError::ContentType { got }) }
}

/// Reads a value and lists the fields that its type does not know.
pub(crate) fn parse_checked<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, Vec<UnknownField>), ApiError> {
    let (value, unknown) = unknown_fields::collected(|| parse(bytes));
    value.map(|value| (value, unknown))
}

/// Reads a value and names the field that does not fit.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| ApiError::NotUtf8 { at: error.valid_up_to() })?;
    let mut json = serde_json::Deserializer::from_str(text);
    let Object(value) = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        let reason = inner.to_string();
        // serde_json also blames the syntax where a number is too large, and where a word was expected and another value came.
        let is_deep = reason.starts_with("recursion limit");
        if !inner.is_data() && (is_deep || serde_json::from_str::<IgnoredAny>(text).is_err()) {
            return ApiError::Json { reason };
        }
        let reason = if reason.starts_with("expected value at") { "it must be a string".to_owned() } else { reason };
        // serde puts a field that is missing or comes twice into the sentence, not into the path.
        let named = ["missing field `", "duplicate field `"].into_iter().find_map(|start| reason.strip_prefix(start));
        let named = named.and_then(|rest| rest.split('`').next());
        let field = match (path.as_str(), named) {
            (".", Some(name)) => name.to_owned(),
            (path, Some(name)) => format!("{path}.{name}"),
            (".", None) => "body".to_owned(),
            (path, None) => path.to_owned(),
        };
        ApiError::Field { field, reason }
    })?;
    json.end().map_err(|error| ApiError::Json { reason: error.to_string() })?;
    Ok(value)
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(bytes) => {
                let json = HeaderValue::from_static("application/json");
                ([(header::CONTENT_TYPE, json)], bytes).into_response()
            }
            Err(_) => ApiError::Internal { doing: "wrote the answer" }.into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[expect(dead_code, reason = "only its type matters")]
        inner: Vec<Object<Inner>>,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[expect(dead_code, reason = "only its type matters")]
        number: u32,
        #[expect(dead_code, reason = "only its type matters")]
        word: Option<Word>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Word {
        One,
    }

    fn said(text: &[u8]) -> String {
        parse::<Outer>(text).unwrap_err().to_string()
    }

    #[test]
    fn the_field_that_does_not_fit_is_named() {
        assert!(said(br#"{"inner": [{"number": 1}, {"number": "x"}]}"#).starts_with("inner[1].number: "));
        assert!(said(br#"{"inner": [{"number": -1}]}"#).contains("-1"));
        assert!(said(br#"{"inner": [{}]}"#).starts_with("inner[0].number: missing field"));
        assert!(said(b"{}").starts_with("inner: missing field"));
        assert!(said(br#"{"inner": [], "inner": []}"#).starts_with("inner: duplicate field"));
        assert!(said(br#"{"inner": [{"number": 1, "number": 2}]}"#).starts_with("inner[0].number: duplicate field"));
        assert!(said(b"[[]]").starts_with("body: invalid type: sequence, expected an object"), "{}", said(b"[[]]"));
        assert!(said(br#"{"inner": [[1]]}"#).starts_with("inner[0]: "), "a list of fields is not an object");
    }

    /// serde_json reports both as wrong syntax, and the client was told to send JSON.
    #[test]
    fn a_word_of_another_type_and_a_number_too_large_name_their_fields() {
        for other in ["true", "[]", "7"] {
            let refused = said(format!(r#"{{"inner": [{{"number": 1, "word": {other}}}]}}"#).as_bytes());
            assert_eq!(refused, "inner[0].word: it must be a string", "{other}");
        }
        assert!(said(br#"{"inner": [{"number": 1, "word": "two"}]}"#).contains("unknown variant"));
        assert!(said(br#"{"inner": [{"number": 1e400}]}"#).starts_with("inner[0].number: number out of range"));
    }

    #[test]
    fn what_is_no_json_is_told_apart() {
        assert!(matches!(parse::<Outer>(b"{\"inner\": [\xff]}"), Err(ApiError::NotUtf8 { at: 11 })));
        for broken in ["", "{", "{\"inner\": [NaN]}", "{\"inner\": []} x"] {
            assert!(matches!(parse::<Outer>(broken.as_bytes()), Err(ApiError::Json { .. })), "{broken}");
        }
        let deep = format!("{{\"x\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse::<serde_json::Value>(deep.as_bytes()).is_err());
    }

    #[test]
    fn only_json_is_taken() {
        let with = |value: &str| HeaderMap::from_iter([(header::CONTENT_TYPE, value.parse().unwrap())]);
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"] {
            assert!(check_content_type(&with(good), Family::OpenAi).is_ok(), "{good}");
        }
        for wrong in ["text/plain", "application/x-www-form-urlencoded", "text/json+json", "json"] {
            assert!(check_content_type(&with(wrong), Family::OpenAi).is_err(), "{wrong}");
        }
        assert!(check_content_type(&HeaderMap::new(), Family::OpenAi).is_err());
        assert!(check_content_type(&HeaderMap::new(), Family::Anthropic).is_err());
    }

    #[test]
    fn ollamas_clients_may_be_careless_and_pages_may_not() {
        let form = (header::CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        let check = |headers: &[(header::HeaderName, HeaderValue)]| {
            check_content_type(&HeaderMap::from_iter(headers.to_vec()), Family::Ollama).is_ok()
        };
        assert!(check(&[]) && check(std::slice::from_ref(&form)));
        assert!(!check(&[(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"))]));
        for value in ["null", "http://evil.example"] {
            let origin = (header::ORIGIN, HeaderValue::from_static(value));
            assert!(!check(std::slice::from_ref(&origin)) && !check(&[form.clone(), origin]), "{value}");
        }
        let site = |value| (header::HeaderName::from_static("sec-fetch-site"), HeaderValue::from_static(value));
        assert!(!check(&[form.clone(), site("cross-site")]) && check(&[form, site("none")]));
    }
}
