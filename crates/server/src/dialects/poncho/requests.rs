//! `/api/requests`: the last requests, a stream of their changes, why one missed the cache, and cancelling one.
//!
//! Each owner sees its own requests; an admin sees the figures of all of them and the text of its own. Numbers of running
//! requests come from the same reports as `/api/sessions`. Errors have OpenAI's shape.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use poncho_api::{Normalised, RequestProgress};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::explain::Explanation;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::models::names::Source;
use crate::owner::Owner;
use crate::telemetry::record::{Entry, ShownRequest};

/// The pause between two looks at requests that run.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How soon a stream notices that the server ends.
const END_WITHIN: Duration = Duration::from_millis(500);

/// The caller of an endpoint, and what the models report.
struct Viewer<'v> {
    app: &'v SharedApp,
    owner: Owner,
    sees_all: bool,
    progress: HashMap<u64, RequestProgress>,
}

impl<'v> Viewer<'v> {
    fn new(app: &'v SharedApp, owner: Owner) -> Self {
        let models = app.models.node().models();
        let reports = models.iter().flat_map(|model| model.requests());
        let progress = reports.filter_map(|report| Some((report.label?, report.progress))).collect();
        Self { app, owner, sees_all: app.keys.sees_all(owner), progress }
    }

    fn sees(&self, entry: &Entry) -> bool {
        entry.owner == self.owner || self.sees_all
    }

    fn shown(&self, entry: &Entry) -> Option<ShownRequest> {
        let progress = self.progress.get(&entry.label).filter(|_| entry.is_open());
        self.sees(entry).then(|| entry.shown(entry.owner == self.owner, progress))
    }

    /// What changed since a version.
    fn since(&self, version: u64) -> (Vec<ShownRequest>, u64) {
        self.app.record.since(version, |entry| self.shown(entry))
    }
}

/// The answer of `GET /api/requests`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Requests {
    version: u64,
    /// How many are kept at most.
    kept: usize,
    requests: Vec<ShownRequest>,
}

/// `GET /api/requests`: the last requests, oldest first. Never waits for a model. With `?follow=1` a stream of them.
pub(crate) async fn list(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    uri: Uri,
) -> Result<Response, ApiError> {
    match uri.query() {
        None => {}
        Some("follow=1") => return Ok(events(app, owner)),
        Some(_) => return Err(ApiError::field("follow", "the only parameter is follow, and it must be 1")),
    }
    let (requests, version) = Viewer::new(&app, owner).since(0);
    let answer = Requests { version, kept: app.config.requests_kept, requests };
    Ok(Json(json!(answer)).into_response())
}

/// A stream of `requests` events. The first one has all requests, the others have those that changed or run.
fn events(app: SharedApp, owner: Owner) -> Response {
    let keep_alive = KeepAlive::new().interval(app.config.stream_keep_alive).text("waiting");
    let version = app.record.watch();
    let events = stream::unfold((app, version, None), move |(app, mut version, seen)| async move {
        loop {
            if seen.is_some() && !app.record.has_open() {
                tokio::select! {
                    changed = version.changed() => changed.ok()?,
                    () = sleep(END_WITHIN) => {}
                }
            }
            if seen.is_some() {
                // Changes that come close together are one event.
                sleep(LOOK_EVERY).await;
            }
            if app.life.is_draining() {
                return None;
            }
            let (requests, now) = Viewer::new(&app, owner).since(seen.unwrap_or(0));
            let is_news = seen.is_none() || !requests.is_empty();
            if is_news {
                let data = json!({"version": now, "kept": app.config.requests_kept, "requests": requests}).to_string();
                return Some((
                    Ok::<_, Infallible>(Event::default().event("requests").data(data)),
                    (app, version, Some(now)),
                ));
            }
        }
    });
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

fn number(id: &str) -> Result<u64, ApiError> {
    id.parse()
        .map_err(|_| ApiError::field("id", "it must be the number of a request; list them with GET /api/requests"))
}

fn unknown(id: u64) -> ApiError {
    ApiError::NoRequest { id }
}

/// The answer of `DELETE /api/requests/{id}`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Cancelled {
    id: u64,
    /// False if it had ended before.
    cancelled: bool,
}

/// `DELETE /api/requests/{id}`: cancels a request that has not ended.
pub(crate) async fn cancel(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id = number(&id)?;
    let viewer = Viewer::new(&app, owner);
    let cancelled = app.record.with(id, |entry| {
        viewer.sees(entry).then(|| {
            let is_open = entry.is_open();
            if is_open {
                entry.cancel.send_replace(true);
            }
            is_open
        })
    });
    let was_open = cancelled.flatten().ok_or_else(|| unknown(id))?;
    Ok(Json(json!(Cancelled { id, cancelled: was_open })))
}

/// The answer of `GET /api/requests/{id}/why`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RequestExplanation")]
pub(crate) struct Why {
    #[serde(flatten)]
    explanation: Explanation,
    id: u64,
    /// Tokens that were cached when it ran.
    found: usize,
    /// What was made equal in its prompt.
    hygiene: Vec<Normalised>,
}

/// `GET /api/requests/{id}/why`: where the prompt of a request differs from the most similar cached one, as of then. Only
/// for the owner that sent it, and only while its model is loaded.
pub(crate) async fn why(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id = number(&id)?;
    let own = |entry: &Entry| {
        (entry.owner == owner).then(|| (entry.model.clone(), entry.label, entry.past(), entry.hygiene()))
    };
    let (model, label, past, hygiene) = app.record.with(id, own).flatten().ok_or_else(|| unknown(id))?;
    // The replies to one prompt share its copy, which the first of them has.
    let prompt = app.record.with(label, |entry| entry.prompt.clone()).flatten();
    let (prompt, _) = prompt.ok_or(ApiError::PromptForgotten { id })?;
    // Somebody only looks: that must not load a model, and unload another one for it.
    let Some(Source::Loaded(loaded)) = app.models.find(&model).await? else {
        return Err(ApiError::NotLoaded { model });
    };
    let model = app.models.shown(loaded).asked_by(app.keys.tenant(owner));
    let found = model.explained(*prompt, Some(past)).await?;
    let explanation = Explanation::new(model.id(), found, app.keys.sees_rows_text(owner));
    Ok(Json(json!(Why { explanation, id, found: past.cached_tokens, hygiene })))
}
