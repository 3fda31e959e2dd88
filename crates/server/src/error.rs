//! Every refusal of the server, and the one table that gives it a status, a type and a code.
//!
//! Handlers, middleware and streams all end here, so that an error reads the same wherever it happened. The body has
//! the shape of the API family that the path belongs to. It must never carry a key or the text of a prompt.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use poncho_api::{EngineError, Field, Key, RequestError};
use serde_json::{Value, json};

use crate::library::LibraryError;
use crate::owner::told;

/// Seconds after which a refused client may try again: a queue moves within about that time.
const RETRY_SECONDS: u64 = 1;

/// Anthropic's own status for "try again later".
const ANTHROPIC_OVERLOADED: u16 = 529;

/// Agents show it to their users, so it names no dialect's word.
pub(crate) const NO_IMAGES: &str = "this model cannot read images; send text";

/// Why a request was not answered.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ApiError {
    /// The engine said no.
    #[error(transparent)]
    Engine(EngineError),
    /// A field has a wrong type or value.
    #[error("{field}: {reason}")]
    Field { field: String, reason: String },
    /// The body is not JSON.
    #[error("the body is not valid JSON: {reason}; correct it and send it again")]
    Json { reason: String },
    /// The body is not text.
    #[error("the body is not UTF-8 from byte {at} on; send JSON as UTF-8")]
    NotUtf8 { at: usize },
    /// The body is announced as something else.
    #[error("the content type is {got} and must be application/json; set the header Content-Type: application/json")]
    ContentType { got: String },
    /// The body is too long.
    #[error("the body is longer than {limit} bytes; send less or raise the server's limit")]
    BodyTooLarge { limit: usize },
    /// The body came too slowly.
    #[error("the body did not arrive within {} s; send it again", limit.as_secs())]
    SlowBody { limit: Duration },
    /// The connection broke while the body was read.
    #[error("the body ended early: {reason}; send it again")]
    BodyBroken { reason: String },
    /// The path exists, the method does not.
    #[error("{path} does not support {method}; the Allow header lists the supported methods")]
    Method { method: String, path: String },
    /// No such path.
    #[error("there is nothing at {path}; check the path")]
    Path { path: String },
    /// A path of the family that this server does not answer yet.
    #[error("{path} is not part of this server yet; use /v1/chat/completions or /v1/responses")]
    NotBuilt { path: String },
    /// No stored response of that id.
    #[error("Response with id '{id}' not found; only stored responses can be retrieved, and the oldest are removed")]
    NoResponse { id: String },
    /// The response that a request goes on from is not there.
    #[error("Previous response with id '{id}' not found; send the conversation as input instead")]
    NoPrevious { id: String },
    /// An item that a request refers to is not there.
    #[error("Item with id '{id}' not found; only items of stored responses can be referenced; send the item itself")]
    NoItem { id: String },
    /// No key, or a wrong one.
    #[error("a valid API key is needed; send it as Authorization: Bearer KEY or as x-api-key: KEY")]
    Unauthorized,
    /// A request for data of all keys, sent with a key that may see its own only.
    #[error("this covers all keys; send an admin key (--admin-key), or start the server with --isolate-keys")]
    AdminOnly,
    /// A change that all keys would notice, asked for with a key that is neither alone nor an admin's.
    #[error("this changes the replies of all keys; use an admin key (--admin-key)")]
    AdminChange,
    /// The request was sent to a name that is not this server's.
    #[error(
        "{host:?} is not a name of this server; use localhost, or start the server with --allow-host or with an API key"
    )]
    Host { host: String },
    /// A page in a browser wants to change something, and nobody let it.
    #[error(
        "web pages from {origin:?} may not use this server; to allow them, start it with --cors ORIGIN, or with an API key"
    )]
    Page { origin: String },
    /// More files arrive than may at once.
    #[error("{limit} files are already being uploaded; try again when one of them is complete")]
    TooManyUploads { limit: usize },
    /// The request took longer than it may.
    #[error("the request took longer than {} s; ask for fewer tokens or raise the server's limit", limit.as_secs())]
    Timeout { limit: Duration },
    /// A model that is there could not be loaded.
    #[error("the model {model} was not loaded: {reason}")]
    Load { model: String, reason: String },
    /// Models in use leave no room for another one.
    #[error(
        "the model {model} needs {needed} bytes of memory and models in use take {used} of the {budget} that models may \
         take; try again when they are idle, unload one, or raise the limit with --memory"
    )]
    NoMemory { model: String, needed: u64, used: u64, budget: u64 },
    /// A model that can never be loaded here.
    #[error(
        "the model {model} needs {needed} bytes of memory and models may take {budget}; raise the limit with --memory, \
         make the context smaller with --ctx-size, or use a smaller model"
    )]
    ModelTooLarge { model: String, needed: u64, budget: u64 },
    /// An input that can never be embedded here.
    #[error(
        "embedding an input of {longest} tokens with the model {model} needs {needed} bytes of memory and models may take \
         {budget}; send shorter inputs, or raise the limit with --memory"
    )]
    EmbeddingTooLarge { model: String, longest: usize, needed: u64, budget: u64 },
    /// The library of models said no.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// No model is loaded yet.
    #[error("no model is loaded yet; try again soon")]
    NotReady,
    /// The server is going down.
    #[error("the server is shutting down; send the request to another one or try again later")]
    ShuttingDown,
    /// The request was cancelled on this side.
    #[error("the request was cancelled by the server; send it again")]
    Cancelled,
    /// Somebody cancelled it by its number.
    #[error("the request was cancelled with DELETE /api/requests or in the console")]
    CancelledByName,
    /// A number that no kept request of the caller has.
    #[error("there is no request {id} among the last ones; list them with GET /api/requests")]
    NoRequest { id: u64 },
    /// A request that is kept without its prompt.
    #[error("the prompt of request {id} is no longer kept; send it again and ask then, or use POST /api/cache/explain")]
    PromptForgotten { id: u64 },
    /// A look that must not load the model that it needs.
    #[error("the model {model} is not loaded; load it and ask again")]
    NotLoaded { model: String },
    /// A row that is not in the cache, or not the caller's.
    #[error("there is no row {key} in the cache; list the rows with GET /api/cache/rows")]
    NoRow { key: Key },
    /// Pinned rows take too much of a tier.
    #[error("pinned rows may take {limit} bytes of their tier, which is half of it; unpin others first")]
    PinsTooLarge { limit: u64 },
    /// Too many rows are pinned.
    #[error("{limit} rows are pinned, which is the most; unpin others first")]
    TooManyPins { limit: usize },
    /// A bug.
    #[error("the server failed while it {doing}; send the request again and report this")]
    Internal { doing: &'static str },
}

/// The classes of errors; each family has its own words for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    InvalidRequest,
    TooLarge,
    Authentication,
    Permission,
    NotFound,
    Conflict,
    Overloaded,
    Unavailable,
    Timeout,
    Server,
}

/// The dialect that decides the shape of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Family {
    /// The family of a path. Poncho's own endpoints speak as OpenAI does.
    pub(crate) fn of_path(path: &str) -> Self {
        const OLLAMA: [&str; 14] = [
            "generate",
            "chat",
            "chat/input_tokens",
            "embed",
            "embeddings",
            "tags",
            "show",
            "ps",
            "version",
            "pull",
            "push",
            "copy",
            "delete",
            "create",
        ];
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            return Self::Anthropic;
        }
        match path.strip_prefix("/api/") {
            Some(rest) if OLLAMA.contains(&rest) || rest.starts_with("blobs/") => Self::Ollama,
            _ => Self::OpenAi,
        }
    }

    /// The status that this family sends; only one differs.
    pub(crate) fn status(self, status: StatusCode) -> StatusCode {
        match (self, status) {
            (Self::Anthropic, StatusCode::SERVICE_UNAVAILABLE) => {
                StatusCode::from_u16(ANTHROPIC_OVERLOADED).unwrap_or(status)
            }
            _ => status,
        }
    }
}

/// The machine-readable parts of an error.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    status: StatusCode,
    kind: Kind,
    code: Option<&'static str>,
    param: Option<String>,
    /// Seconds after which a client may try again.
    retry: Option<u64>,
}

impl Facts {
    fn new(status: StatusCode, kind: Kind) -> Self {
        Self { status, kind, code: None, param: None, retry: None }
    }

    fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    fn param(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    fn retry(self) -> Self {
        self.retry_in(RETRY_SECONDS)
    }

    fn retry_in(self, seconds: u64) -> Self {
        Self { retry: Some(seconds), ..self }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        match told(error) {
            EngineError::Input { field, reason } => Self::Field { field, reason },
            EngineError::Cancelled => Self::Cancelled,
            error => Self::Engine(error),
        }
    }
}

impl ApiError {
    /// A field with a wrong value.
    pub(crate) fn field(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Field { field: field.into(), reason: reason.into() }
    }

    /// The same error with another name for a field.
    pub(crate) fn renamed(self, from: &str, to: &str) -> Self {
        match self {
            Self::Field { field, reason } if field == from => Self::field(to, reason),
            other => other,
        }
    }

    /// A load that failed, without the path of the file: clients know names.
    pub(crate) fn load_failed(model: &str, error: &EngineError) -> Self {
        let (path, reason) = match error {
            EngineError::Load { path, reason } => (path, reason.clone()),
            EngineError::AdapterLoad { path, reason } => (path, format!("its adapter cannot be used: {reason}")),
            other => return Self::Load { model: model.to_owned(), reason: other.to_string() },
        };
        let reason = reason.replace(&path.display().to_string(), model);
        Self::Load { model: model.to_owned(), reason }
    }

    /// The error's code, which has no word of the request.
    pub(crate) fn code(&self) -> Option<&'static str> {
        self.facts().code
    }

    /// The body in a family's shape.
    pub(crate) fn body(&self, family: Family) -> Value {
        let facts = self.facts();
        let message = self.message(family);
        match family {
            Family::OpenAi => json!({"error": {
                "message": message, "type": facts.kind.openai(), "param": facts.param, "code": facts.code,
            }}),
            Family::Anthropic => {
                json!({"type": "error", "error": {"type": facts.kind.anthropic(), "message": message}})
            }
            Family::Ollama => json!({"error": self.ollama_message().unwrap_or(message)}),
        }
    }

    /// Sentences that clients of Ollama compare with.
    fn ollama_message(&self) -> Option<String> {
        match self {
            Self::Engine(EngineError::UnknownModel { model }) => Some(format!("model '{model}' not found")),
            Self::Library(LibraryError::Unknown { name, .. }) => Some(format!("model '{name}' not found")),
            _ => None,
        }
    }

    fn message(&self, family: Family) -> String {
        let (Self::Engine(
            EngineError::PromptTooLong { tokens, limit } | EngineError::PromptTooLarge { least: tokens, limit },
        )
        | Self::Engine(EngineError::BadRequest(RequestError::PromptTooLong { tokens, limit }))) = self
        else {
            return match (family, self) {
                (Family::Anthropic, Self::Field { field, reason }) => {
                    // Anthropic writes `messages.0.content`.
                    format!("{}: {reason}", field.replace('[', ".").replace(']', ""))
                }
                _ => self.to_string(),
            };
        };
        // Clients look for the words of their family and then shorten the conversation by themselves.
        match family {
            Family::Anthropic => format!(
                "prompt is too long: {tokens} tokens > {limit} maximum; shorten the conversation or load the model with \
                 a larger context"
            ),
            Family::OpenAi | Family::Ollama => {
                format!("{self} (this model's maximum context length is {limit} tokens)")
            }
        }
    }

    /// The whole answer in a family's shape, with the request's id where the family has a place for it.
    pub(crate) fn respond(&self, family: Family, request: Option<&str>) -> Response {
        let facts = self.facts();
        let mut body = self.body(family);
        if family == Family::Anthropic
            && let (Some(body), Some(request)) = (body.as_object_mut(), request)
        {
            body.insert("request_id".to_owned(), request.into());
        }
        let mut response = (family.status(facts.status), body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = facts.retry {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if facts.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self.clone());
        response
    }

    fn facts(&self) -> Facts {
        use Kind::{Authentication, InvalidRequest, NotFound, Server, TooLarge, Unavailable};
        let bad = || Facts::new(StatusCode::BAD_REQUEST, InvalidRequest);
        match self {
            Self::Engine(error) => engine_facts(error),
            Self::Field { field, .. } => bad().code("invalid_value").param(field.as_str()),
            Self::Json { .. } | Self::NotUtf8 { .. } => bad().code("invalid_json"),
            Self::BodyBroken { .. } => bad().code("body_incomplete"),
            Self::ContentType { .. } => {
                Facts::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, InvalidRequest).code("unsupported_content_type")
            }
            Self::BodyTooLarge { .. } => Facts::new(StatusCode::PAYLOAD_TOO_LARGE, TooLarge).code("body_too_large"),
            Self::SlowBody { .. } => Facts::new(StatusCode::REQUEST_TIMEOUT, Kind::Timeout).code("body_timeout"),
            Self::Method { .. } => {
                Facts::new(StatusCode::METHOD_NOT_ALLOWED, InvalidRequest).code("method_not_allowed")
            }
            Self::Path { .. } => Facts::new(StatusCode::NOT_FOUND, NotFound).code("unknown_path"),
            Self::NoResponse { .. } => {
                Facts::new(StatusCode::NOT_FOUND, NotFound).code("response_not_found").param("id")
            }
            Self::NoPrevious { .. } => bad().code("previous_response_not_found").param("previous_response_id"),
            Self::NoItem { .. } => Facts::new(StatusCode::NOT_FOUND, NotFound).code("item_not_found").param("input"),
            Self::NotBuilt { .. } => Facts::new(StatusCode::NOT_IMPLEMENTED, Server).code("not_implemented"),
            Self::Unauthorized => Facts::new(StatusCode::UNAUTHORIZED, Authentication).code("invalid_api_key"),
            Self::AdminOnly | Self::AdminChange => {
                Facts::new(StatusCode::FORBIDDEN, Kind::Permission).code("admin_key_needed")
            }
            Self::Host { .. } => Facts::new(StatusCode::FORBIDDEN, Kind::Permission).code("host_not_allowed"),
            Self::Page { .. } => Facts::new(StatusCode::FORBIDDEN, Kind::Permission).code("origin_not_allowed"),
            Self::TooManyUploads { .. } => {
                Facts::new(StatusCode::TOO_MANY_REQUESTS, Kind::Overloaded).code("too_many_uploads").retry()
            }
            Self::Timeout { .. } => Facts::new(StatusCode::GATEWAY_TIMEOUT, Kind::Timeout).code("request_timeout"),
            Self::Load { .. } => Facts::new(StatusCode::INTERNAL_SERVER_ERROR, Server).code("load_failed"),
            Self::NoMemory { .. } => {
                Facts::new(StatusCode::SERVICE_UNAVAILABLE, Unavailable).code("insufficient_memory").retry()
            }
            Self::ModelTooLarge { .. } | Self::EmbeddingTooLarge { .. } => {
                Facts::new(StatusCode::SERVICE_UNAVAILABLE, Unavailable).code("model_too_large")
            }
            Self::Library(error) => match error {
                LibraryError::Unknown { .. } => {
                    Facts::new(StatusCode::NOT_FOUND, NotFound).code("model_not_found").param("model")
                }
                LibraryError::Refused { .. } => bad().code("invalid_value"),
                LibraryError::TooLarge { .. } => {
                    Facts::new(StatusCode::PAYLOAD_TOO_LARGE, TooLarge).code("upload_too_large")
                }
                LibraryError::NoRoom { .. } => Facts::new(StatusCode::INSUFFICIENT_STORAGE, Server).code("disk_full"),
                LibraryError::Interrupted { .. } => {
                    Facts::new(StatusCode::SERVICE_UNAVAILABLE, Unavailable).code("cancelled").retry()
                }
                LibraryError::Failed { .. } => {
                    Facts::new(StatusCode::INTERNAL_SERVER_ERROR, Server).code("library_failed")
                }
                LibraryError::ReadOnly { .. } => {
                    Facts::new(StatusCode::NOT_IMPLEMENTED, Server).code("not_implemented")
                }
            },
            Self::NotReady => Facts::new(StatusCode::SERVICE_UNAVAILABLE, Unavailable).code("not_ready").retry(),
            Self::ShuttingDown => {
                Facts::new(StatusCode::SERVICE_UNAVAILABLE, Unavailable).code("shutting_down").retry()
            }
            Self::Cancelled => Facts::new(StatusCode::SERVICE_UNAVAILABLE, Unavailable).code("cancelled").retry(),
            // No status that clients retry by themselves.
            Self::CancelledByName => Facts::new(StatusCode::GONE, InvalidRequest).code("cancelled"),
            Self::NoRequest { .. } => Facts::new(StatusCode::NOT_FOUND, InvalidRequest).code("request_not_found"),
            Self::PromptForgotten { .. } => Facts::new(StatusCode::NOT_FOUND, InvalidRequest).code("prompt_not_kept"),
            Self::NotLoaded { .. } => Facts::new(StatusCode::CONFLICT, InvalidRequest).code("model_not_loaded"),
            Self::NoRow { .. } => Facts::new(StatusCode::NOT_FOUND, InvalidRequest).code("row_not_found"),
            Self::PinsTooLarge { .. } | Self::TooManyPins { .. } => {
                Facts::new(StatusCode::CONFLICT, InvalidRequest).code("too_many_pins")
            }
            Self::Internal { .. } => Facts::new(StatusCode::INTERNAL_SERVER_ERROR, Server).code("internal_error"),
        }
    }
}

/// The one table from the engine's errors to HTTP.
fn engine_facts(error: &EngineError) -> Facts {
    let bad = || Facts::new(StatusCode::BAD_REQUEST, Kind::InvalidRequest);
    let failed = || Facts::new(StatusCode::INTERNAL_SERVER_ERROR, Kind::Server);
    let missing = || Facts::new(StatusCode::NOT_FOUND, Kind::NotFound);
    let busy = || Facts::new(StatusCode::TOO_MANY_REQUESTS, Kind::Overloaded).retry();
    match error {
        EngineError::BadRequest(error) => match request_param(error) {
            Some(field) => bad().code("invalid_value").param(field),
            None => bad().code("invalid_value"),
        },
        EngineError::PromptTooLong { .. } | EngineError::PromptTooLarge { .. } => bad().code("context_length_exceeded"),
        EngineError::RunTooLong { .. } => bad().code("invalid_value"),
        EngineError::Input { field, .. } => bad().code("invalid_value").param(field.as_str()),
        EngineError::Cancelled => ApiError::Cancelled.facts(),
        EngineError::Internal { .. } => failed().code("internal_error"),
        EngineError::GrammarInvalid { .. } => bad().code("invalid_grammar").param("response_format"),
        EngineError::GrammarTooCostly { .. } => bad().code("grammar_too_costly").param("response_format"),
        EngineError::Template { .. } => bad().code("template_error"),
        EngineError::Unsupported { .. } => bad().code("unsupported"),
        EngineError::UnknownModel { .. } => missing().code("model_not_found").param("model"),
        EngineError::UnknownAdapter { .. } => missing().code("adapter_not_found"),
        EngineError::NoSession { .. } => missing().code("session_not_found").param("session_id"),
        EngineError::StickyBusy { .. } => {
            Facts::new(StatusCode::CONFLICT, Kind::Conflict).code("session_busy").param("session_id").retry()
        }
        EngineError::Overloaded { .. } => busy().code("overloaded"),
        EngineError::NodesFull { seconds } => busy().code("overloaded").retry_in(*seconds),
        EngineError::NoRoom { .. } => busy().code("no_room"),
        EngineError::ShuttingDown { .. } => {
            Facts::new(StatusCode::SERVICE_UNAVAILABLE, Kind::Unavailable).code("shutting_down").retry()
        }
        // The next request loads it again.
        EngineError::FileChanged { .. } => {
            Facts::new(StatusCode::SERVICE_UNAVAILABLE, Kind::Unavailable).code("model_changed").retry()
        }
        EngineError::NodeLost { .. } => {
            Facts::new(StatusCode::SERVICE_UNAVAILABLE, Kind::Unavailable).code("engine_lost").retry()
        }
        EngineError::SetAside { .. } => {
            Facts::new(StatusCode::SERVICE_UNAVAILABLE, Kind::Unavailable).code("model_set_aside").retry()
        }
        EngineError::Poison => failed().code("poison_request"),
        EngineError::WorkerDied { .. } => failed().code("worker_died"),
        EngineError::Watchdog { .. } => failed().code("watchdog"),
        EngineError::Decode { .. } => failed().code("decode_failed"),
        EngineError::Backend { .. } => failed().code("backend_failed"),
        EngineError::Load { .. } | EngineError::AdapterLoad { .. } => failed().code("load_failed"),
        EngineError::Config { .. } => failed().code("bad_setting"),
    }
}

/// The request's field that the engine complains about.
fn request_param(error: &RequestError) -> Option<&'static str> {
    let field = match error {
        RequestError::OutOfRange { field, .. }
        | RequestError::Empty { field }
        | RequestError::TooMany { field, .. }
        | RequestError::TooLong { field, .. }
        | RequestError::ZeroByte { field }
        | RequestError::UnknownToken { field, .. } => *field,
        RequestError::PromptTooLong { .. } => Field::Tokens,
        RequestError::NothingToGenerate => Field::MaxTokens,
        RequestError::SessionMissing => Field::SessionId,
        RequestError::ExactUnavailable | RequestError::ExactContinue => Field::Exact,
        RequestError::ResumeMode => Field::Tokens,
    };
    match field {
        // Clients send texts, not these.
        Field::Tokens => None,
        Field::Grammar => Some("response_format"),
        named => Some(named.as_str()),
    }
}

impl Kind {
    const fn openai(self) -> &'static str {
        match self {
            Self::InvalidRequest | Self::TooLarge | Self::NotFound | Self::Conflict => "invalid_request_error",
            Self::Authentication => "authentication_error",
            Self::Permission => "permission_error",
            Self::Overloaded => "rate_limit_error",
            Self::Timeout => "timeout_error",
            Self::Unavailable | Self::Server => "server_error",
        }
    }

    const fn anthropic(self) -> &'static str {
        match self {
            Self::InvalidRequest | Self::Conflict => "invalid_request_error",
            Self::TooLarge => "request_too_large",
            Self::Authentication => "authentication_error",
            Self::Permission => "permission_error",
            Self::NotFound => "not_found_error",
            Self::Overloaded => "rate_limit_error",
            Self::Timeout => "timeout_error",
            Self::Unavailable => "overloaded_error",
            Self::Server => "api_error",
        }
    }
}

impl IntoResponse for ApiError {
    /// OpenAI's shape; the outer layer knows the path and gives it its family's.
    fn into_response(self) -> Response {
        self.respond(Family::OpenAi, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statuses_are_those_of_the_design() {
        let model = || "m".to_owned();
        let cases: [(ApiError, u16, &str); 15] = [
            (RequestError::NothingToGenerate.into(), 400, "invalid_value"),
            (EngineError::PromptTooLong { tokens: 9, limit: 8 }.into(), 400, "context_length_exceeded"),
            (EngineError::PromptTooLarge { least: 9, limit: 8 }.into(), 400, "context_length_exceeded"),
            (EngineError::RunTooLong { chars: 9, limit: 8 }.into(), 400, "invalid_value"),
            (EngineError::UnknownModel { model: model() }.into(), 404, "model_not_found"),
            (EngineError::StickyBusy { session: "s".into() }.into(), 409, "session_busy"),
            (EngineError::Overloaded { queued: 1, limit: 1 }.into(), 429, "overloaded"),
            (EngineError::WorkerDied { model: model(), reason: "x".into() }.into(), 500, "worker_died"),
            (EngineError::ShuttingDown { model: model() }.into(), 503, "shutting_down"),
            (ApiError::NotReady, 503, "not_ready"),
            (ApiError::Unauthorized, 401, "invalid_api_key"),
            (ApiError::AdminOnly, 403, "admin_key_needed"),
            (ApiError::BodyTooLarge { limit: 1 }, 413, "body_too_large"),
            (ApiError::ContentType { got: "x".into() }, 415, "unsupported_content_type"),
            (ApiError::NotBuilt { path: "/v1/embeddings".into() }, 501, "not_implemented"),
        ];
        for (error, status, code) in cases {
            let body = error.body(Family::OpenAi);
            assert_eq!(
                (error.facts().status.as_u16(), body["error"]["code"].as_str()),
                (status, Some(code)),
                "{error}"
            );
            let keys: Vec<&String> = body["error"].as_object().unwrap().keys().collect();
            assert_eq!(keys, ["code", "message", "param", "type"]);
            let wait = error.respond(Family::OpenAi, None).headers().contains_key(header::RETRY_AFTER);
            assert_eq!(wait, matches!(status, 409 | 429 | 503), "{error}");
        }
    }

    #[test]
    fn each_family_has_its_shape() {
        let error = ApiError::from(EngineError::UnknownModel { model: "m".into() });
        assert_eq!(error.body(Family::OpenAi)["error"]["param"], "model");
        assert_eq!(error.body(Family::Anthropic)["error"]["type"], "not_found_error");
        assert_eq!(error.body(Family::Anthropic)["type"], "error");
        assert!(error.body(Family::Ollama)["error"].is_string());
        let families =
            ["/v1/messages/count_tokens", "/api/chat", "/api/cache", "/v1/messagesx", "/"].map(Family::of_path);
        let expected = [Family::Anthropic, Family::Ollama, Family::OpenAi, Family::OpenAi, Family::OpenAi];
        assert_eq!(families, expected);
    }

    #[test]
    fn openais_clients_find_its_words() {
        for error in [
            EngineError::PromptTooLong { tokens: 9, limit: 8 }.into(),
            EngineError::PromptTooLarge { least: 9, limit: 8 }.into(),
            ApiError::from(RequestError::PromptTooLong { tokens: 9, limit: 8 }),
        ] {
            let body = error.body(Family::OpenAi);
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.starts_with("the prompt has "), "{message}");
            assert!(message.ends_with("(this model's maximum context length is 8 tokens)"), "{message}");
        }
    }

    #[test]
    fn anthropics_clients_find_its_words() {
        let body = |error: ApiError| error.body(Family::Anthropic)["error"]["message"].as_str().unwrap().to_owned();
        let too_long = [
            EngineError::PromptTooLong { tokens: 9, limit: 8 }.into(),
            EngineError::PromptTooLarge { least: 9, limit: 8 }.into(),
            ApiError::from(RequestError::PromptTooLong { tokens: 9, limit: 8 }),
        ];
        for error in too_long {
            assert!(error.to_string().starts_with("the prompt"), "others keep the engine's sentence: {error}");
            assert!(body(error).starts_with("prompt is too long: 9 tokens > 8 maximum"));
        }
        assert_eq!(body(ApiError::field("messages[3].content[0].text", "no")), "messages.3.content.0.text: no");
        let status = |error: ApiError, family| error.respond(family, None).status().as_u16();
        assert_eq!(
            (status(ApiError::NotReady, Family::Anthropic), status(ApiError::NotReady, Family::OpenAi)),
            (529, 503)
        );
        assert_eq!(status(EngineError::Overloaded { queued: 1, limit: 1 }.into(), Family::Anthropic), 429);
        assert!(ApiError::NotReady.respond(Family::Anthropic, None).headers().contains_key(header::RETRY_AFTER));
    }

    #[test]
    fn the_engines_field_names_reach_the_client_as_it_knows_them() {
        let out = |field| EngineError::BadRequest(RequestError::Empty { field });
        let param = |field| ApiError::from(out(field)).body(Family::OpenAi)["error"]["param"].clone();
        assert_eq!(param(Field::Stop), "stop");
        assert_eq!(param(Field::Grammar), "response_format");
        assert_eq!(param(Field::Tokens), Value::Null);
    }

    impl From<RequestError> for ApiError {
        fn from(error: RequestError) -> Self {
            Self::Engine(error.into())
        }
    }
}
