//! The table of paths and handlers, and the layers around them.
//!
//! From outside in: request id, trace, log line and error shape; names and origins; the key; the parameters of the
//! address; the count of requests in flight; the handler. The document of the API and health probes pass without a key, and are answered until the very
//! end.

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{any, delete, get, head, patch, post, put};
use opentelemetry::KeyValue;
use tokio::time::Instant;
use tracing::Instrument;

use crate::dialects::anthropic::messages;
use crate::dialects::llama_server::{infill, properties, rerank};
use crate::dialects::openai::{chat, completions, embeddings, models};
use crate::dialects::openapi::NOT_BUILT;
use crate::dialects::poncho::{
    adapters, cache as cache_api, counting, endpoints as poncho, explain, models as model_api, requests, rows,
    sessions, speculation, system,
};
use crate::dialects::responses::{create, stored};
use crate::dialects::{ollama, openapi, query};
use crate::error::{ApiError, Family};
use crate::http::app::{SharedApp, holding};
use crate::http::auth::authorize;
use crate::http::console;
use crate::http::origin::guard;
use crate::http::unread_body::UnreadBody;
use crate::request_id::request_id;
use crate::telemetry::traces::scope::Scope;
use crate::telemetry::traces::{RequestSpan, Trace};
use crate::telemetry::units::micros;

/// All of the server.
pub(crate) fn router(app: &SharedApp) -> Router {
    let work = Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/responses", post(create::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/chat/completions/input_tokens", post(counting::chat))
        .route("/v1/responses/input_tokens", post(counting::response))
        .route("/api/chat/input_tokens", post(counting::ollama))
        .route("/rerank", post(rerank::create))
        .route("/v1/rerank", post(rerank::create))
        .route("/infill", post(infill::create))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/api/generate", post(ollama::generate::create))
        .route("/api/chat", post(ollama::chat::create))
        .route("/api/embed", post(ollama::embed::embed))
        .route("/api/embeddings", post(ollama::embed::embeddings))
        .route("/tokenize", post(poncho::tokenize))
        .route("/detokenize", post(poncho::detokenize))
        .route("/apply-template", post(poncho::apply_template))
        .route("/api/verify", post(speculation::verify))
        .route("/api/draft", post(speculation::draft))
        .route("/api/speculate", post(speculation::speculate))
        .route("/api/adapters", get(adapters::list).post(adapters::load))
        .route("/api/adapters/{id}", patch(adapters::scale).delete(adapters::unload))
        .route("/api/cache/explain", post(explain::explain_miss))
        .route("/api/cache/evict", post(cache_api::evict))
        .route("/api/cache/clear", post(cache_api::clear))
        .route("/api/cache/rows/{id}", delete(cache_api::remove))
        .route("/api/cache/rows/{id}/pin", put(rows::pin).delete(rows::unpin))
        .route("/api/cache/rows/{id}/verify", post(rows::verify))
        .route("/api/cache/gc", post(cache_api::gc))
        .route("/api/sessions/{*id}", delete(sessions::end))
        .route("/api/pull", post(ollama::library::pull))
        .route("/api/copy", post(ollama::library::copy))
        .route("/api/delete", delete(ollama::library::remove))
        .route("/api/create", post(ollama::library::create))
        .route("/api/blobs/{digest}", head(ollama::library::has_blob).post(ollama::library::add_blob))
        .route("/api/models/load", post(model_api::load))
        .route("/api/models/unload", post(model_api::unload))
        .route_layer(middleware::from_fn_with_state(app.clone(), admit));
    let read = Router::new()
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::get))
        .route("/v1/responses/{id}", get(stored::get).delete(stored::delete))
        .route("/v1/responses/{id}/input_items", get(stored::input_items))
        .route("/v1/responses/{id}/cancel", post(stored::cancel))
        .route("/props", get(properties::props))
        .route("/slots", get(properties::slots))
        .route("/api/tags", get(ollama::models::tags))
        .route("/api/ps", get(ollama::models::ps))
        .route("/api/show", post(ollama::models::show))
        .route("/metrics", get(poncho::metrics))
        .route("/api/cache", get(poncho::cache))
        .route("/api/cache/rows", get(cache_api::rows))
        .route("/api/cache/rows/{id}/text", get(rows::text))
        .route("/api/cache/evictions", get(rows::evictions))
        .route("/api/hygiene", get(poncho::hygiene))
        .route("/api/sessions", get(sessions::list))
        .route("/api/requests", get(requests::list))
        .route("/api/requests/{id}", delete(requests::cancel))
        .route("/api/requests/{id}/why", get(requests::why))
        .route("/api/savings", get(system::savings))
        .route("/api/system", get(system::system))
        .route("/api/version", get(poncho::version));
    let not_built = NOT_BUILT.into_iter().fold(Router::new(), |router, path| router.route(path, any(not_built)));
    let parameters = middleware::from_fn_with_state(app.clone(), query::check);
    let guarded = work.merge(read).merge(not_built).route_layer(parameters.clone());
    let guarded = guarded.route_layer(middleware::from_fn_with_state(app.clone(), authorize));
    Router::new()
        .route("/", get(model_api::running))
        .route("/console/app.js", get(console::script))
        .route("/console/app.css", get(console::style))
        .route("/console/icon.svg", get(console::icon))
        .route("/health", get(poncho::health))
        .route("/health/ready", get(poncho::ready))
        .route("/openapi.json", get(openapi::get))
        .route_layer(parameters)
        .merge(guarded)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(app.clone(), guard))
        .layer(middleware::from_fn_with_state(app.clone(), outermost))
        .with_state(app.clone())
}

async fn not_built(uri: Uri) -> ApiError {
    ApiError::NotBuilt { path: uri.path().to_owned() }
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::Path { path: uri.path().to_owned() }
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::Method { method: method.to_string(), path: uri.path().to_owned() }
}

/// Counts work in flight, and takes no more of it once shutdown began. Work without an answer is given up when it is cut off;
/// a stream ends by itself then, with its dialect's error.
async fn admit(State(app): State<SharedApp>, request: Request, next: Next) -> Result<Response, ApiError> {
    let in_flight = app.life.enter();
    // Looked at after entering: a shutdown that was not seen here sees this request.
    if app.life.is_draining() {
        return Err(ApiError::ShuttingDown);
    }
    let mut cut = app.life.cut_signal();
    tokio::select! {
        // First: a handler that notices it by itself ends its reply in order.
        biased;
        response = next.run(request) => Ok(response.map(|body| holding(body, in_flight))),
        () = cut.received() => Err(ApiError::ShuttingDown),
    }
}

/// Gives every answer an id and every error the shape of its family; writes the log line and ends the trace.
///
/// The log line has no word of the request but its path: an error message may quote a prompt, so only its code is logged.
async fn outermost(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().map_or("unknown", MatchedPath::as_str).to_owned();
    let trace = app.exporter.as_ref().and_then(|exporter| Trace::begin(exporter, request.headers()));
    let scope = Arc::new(Scope { id: id.clone(), trace });
    let span = tracing::info_span!("answer", request = %id);
    let (request, unread) = UnreadBody::watch(request);
    let mut response = Arc::clone(&scope).around(next.run(request)).instrument(span).await;
    let family = Family::of_path(&path);
    let error = response.extensions_mut().remove::<ApiError>();
    if let Some(error) = &error
        && family != Family::OpenAi
    {
        response = in_family(error, family, &id, response.headers());
    }
    unread.settle(&mut response).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        if family == Family::Anthropic {
            response.headers_mut().insert(HeaderName::from_static("request-id"), value.clone());
        }
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), value);
    }
    let status = response.status().as_u16();
    app.metrics.answered(&route, status);
    let code = error.as_ref().and_then(ApiError::code);
    tracing::info!(
        request = %id, %method, path = %path, status, us = micros(started.elapsed()), code, "answered"
    );
    if let Some(error) = error {
        tracing::debug!(request = %id, %error, "refused");
    }
    if scope.trace.is_none() {
        return response;
    }
    let name = format!("{method} {route}");
    let attributes = vec![
        KeyValue::new("http.request.method", method.to_string()),
        KeyValue::new("http.route", route),
        KeyValue::new("http.response.status_code", i64::from(status)),
        KeyValue::new("poncho.request_id", id),
    ];
    let ended = RequestSpan { scope, name, attributes, is_error: status >= 500 };
    response.map(|body| holding(body, ended))
}

/// An error as its family writes it, with what the layers inside put beside it.
fn in_family(error: &ApiError, family: Family, id: &str, headers: &HeaderMap) -> Response {
    let mut response = error.respond(family, Some(id));
    let own = response.headers_mut();
    for (name, value) in headers {
        if !own.contains_key(name) && name != header::CONTENT_LENGTH {
            own.insert(name.clone(), value.clone());
        }
    }
    response
}
