//! What the dialects do alike around a call: read its headers, start its replies, tell what the cache did for it.
//!
//! Used by the folders of the dialects and by Poncho's own endpoints. Rendering, tokenizing and compiling a grammar run
//! on a few blocking threads, after the engine's queue had a place. Nothing here knows a field of a dialect.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::HeaderMap;
use poncho_engine::EngineError;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::chat::hygiene::Normalised;
use crate::chat::reply::{Finished, NewReply, Reply};
use crate::chat::turn::{Prepared, submit};
use crate::dialects::poncho::sessions;
use crate::http::app::SharedApp;
use crate::http::auth::Owner;
use crate::http::error::ApiError;
use crate::models::served::ServedModel;
use crate::telemetry::timing::ReplyTimes;

/// Prompts that are prepared at the same time, for all models. More threads than processors only cost memory.
static PREPARING: Semaphore = Semaphore::const_new(8);

/// The session that the headers name.
pub(crate) fn session_header(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("x-poncho-session") else { return Ok(None) };
    let name = std::str::from_utf8(value.as_bytes());
    name.map(|name| Some(name.to_owned())).map_err(|_| ApiError::field("x-poncho-session", "it is not UTF-8"))
}

/// Whether a header asks for the `poncho` object.
pub(crate) fn poncho_header(headers: &HeaderMap) -> bool {
    headers.get("x-poncho").is_some_and(|value| value.as_bytes() == b"1")
}

/// What the cache did for a request; sent when it is asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct PonchoFacts {
    /// How the prompt was found.
    pub(crate) hit: &'static str,
    /// Tokens whose state was there.
    pub(crate) read: usize,
    /// Tokens whose state was computed.
    pub(crate) created: usize,
    pub(crate) prefill_ms: f64,
    /// The row that was saved at the end.
    pub(crate) finish_key: Option<String>,
    /// What was made equal in the prompt before it was rendered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) hygiene: Vec<Normalised>,
}

impl From<&Finished> for PonchoFacts {
    fn from(finished: &Finished) -> Self {
        let completion = &finished.completion;
        Self {
            hit: completion.hit.as_str(),
            read: completion.cache_delta.read,
            created: completion.cache_delta.created,
            prefill_ms: completion.prefill_time.as_secs_f64() * 1000.0,
            finish_key: completion.finish_key.map(|key| key.to_string()),
            hygiene: finished.normalised.clone(),
        }
    }
}

/// Where and when a call came in.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) app: SharedApp,
    pub(crate) model: ServedModel,
    /// Whose sessions it may name.
    pub(crate) owner: Owner,
    pub(crate) arrived: Instant,
}

impl Origin {
    /// Prepares some prompts and submits `n` replies to each, those to the first prompt first.
    pub(crate) async fn start(
        &self,
        n: u32,
        prompts: usize,
        prepare: impl FnOnce(&ServedModel) -> Result<Vec<Prepared>, ApiError> + Send + 'static,
    ) -> Result<Vec<Reply>, ApiError> {
        let (owner, tenant) = (self.owner, self.app.keys.tenant(self.owner));
        let model = self.model.clone().asked_by(tenant);
        // A full queue refuses before anything is done for the request.
        let count = usize::try_from(n).unwrap_or(usize::MAX).saturating_mul(prompts);
        let places = (0..count).map(|_| model.reserve()).collect::<Result<Vec<_>, EngineError>>()?;
        let started = preparing("prepared the prompt", move || {
            let mut places = places.into_iter();
            let mut started = Vec::new();
            for mut prepared in prepare(&model)? {
                let session = prepared.request.session_id.take();
                prepared.request.session_id = session.map(|name| sessions::scoped(owner, &name)).transpose()?;
                prepared.request.tenant = tenant;
                if client_left() {
                    return Err(ApiError::Cancelled);
                }
                let submitted = Instant::now();
                let streams = submit(&model, &prepared, n, &mut places)?;
                started.extend(streams.into_iter().map(|stream| (stream, prepared.form.clone(), submitted)));
            }
            Ok(started)
        });
        let replies = started.await?.into_iter().map(|(stream, form, submitted)| {
            Reply::new(NewReply {
                model: self.model.clone(),
                stream,
                form,
                times: ReplyTimes::begin(self.app.metrics.clone(), self.model.id(), self.arrived, submitted),
                time_limit: self.app.config.request_timeout,
            })
        });
        Ok(replies.collect())
    }
}

thread_local! {
    /// Whether the client of the work on this thread has left.
    static CLIENT_LEFT: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Whether nobody waits any more for the work that this thread does. Long work asks between its steps.
pub(crate) fn client_left() -> bool {
    CLIENT_LEFT.with_borrow(|left| left.as_ref().is_some_and(|left| left.load(Ordering::Relaxed)))
}

/// Says on being dropped that the client has left.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs what a processor is busy with off the async threads: rendering, tokenizing, compiling. Only a few at a time; the
/// others wait without a thread.
pub(crate) async fn preparing<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = PREPARING.acquire().await.map_err(|_| ApiError::Internal { doing })?;
    blocking(doing, move || {
        let result = work();
        drop(permit);
        result
    })
    .await
}

/// Runs what may wait long, for a disk or a worker, off the async threads. The work goes on when the client leaves, but
/// can see it.
pub(crate) async fn blocking<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // Log lines of the work belong to the request too.
    let span = tracing::Span::current();
    let waiting = Waiting(Arc::default());
    let left = Arc::clone(&waiting.0);
    let work = move || {
        CLIENT_LEFT.set(Some(left));
        let done = span.in_scope(work);
        CLIENT_LEFT.set(None);
        done
    };
    let done = tokio::task::spawn_blocking(work).await.map_err(|_| ApiError::Internal { doing })?;
    drop(waiting);
    done
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Hardening 14.2: work for a schema went on after its client had left.
    #[tokio::test]
    async fn work_sees_that_its_client_has_left() {
        let (begun, is_begun) = channel();
        let (left, has_left) = channel::<()>();
        let (told, seen) = channel();
        let work = blocking("waited", move || {
            let before = client_left();
            let _ = begun.send(());
            let _ = has_left.recv();
            let _ = told.send((before, client_left()));
            Ok(())
        });
        let task = tokio::spawn(work);
        tokio::task::spawn_blocking(move || is_begun.recv()).await.unwrap().unwrap();
        task.abort();
        assert!(task.await.is_err());
        drop(left);
        assert_eq!(tokio::task::spawn_blocking(move || seen.recv()).await.unwrap(), Ok((false, true)));
        assert!(!client_left());
        assert_eq!(blocking("worked", || Ok(client_left())).await.ok(), Some(false), "the thread starts afresh");
    }
}
