//! A reply on its way to a client: the engine's events, with the time they took, the limit of the request, and the end of
//! the server.
//!
//! Made by `shared.rs`, read by the dialects piece by piece or to its end. It owns the engine's stream: dropping it
//! cancels the request.

use std::time::Duration;

use futures_util::StreamExt;
use poncho_api::{Delta, Finished, Progress, ReplyStream, Started};

use crate::error::ApiError;
use crate::http::app::CutSignal;
use crate::telemetry::record::CancelSignal;
use crate::telemetry::timing::ReplyTimes;

/// What a dialect gets.
pub(crate) enum ReplyEvent {
    /// The request is being worked on; comes first, or not at all.
    Started(Started),
    /// More of the prompt was read.
    Progress(Progress),
    /// Something to tell.
    Delta(Delta),
    /// It ended.
    Done(Box<Finished>),
    /// It failed.
    Failed(ApiError),
}

/// See the module.
pub(crate) struct Reply {
    stream: ReplyStream,
    times: ReplyTimes,
    time_limit: Option<Duration>,
    cut: CutSignal,
    cancel: CancelSignal,
    ended: bool,
}

impl Reply {
    pub(crate) fn new(stream: ReplyStream, times: ReplyTimes, time_limit: Option<Duration>, cut: CutSignal) -> Self {
        Self { stream, times, time_limit, cut, cancel: CancelSignal::NEVER, ended: false }
    }

    /// The same reply, which somebody may cancel by its number.
    pub(crate) fn or_cancelled(self, cancel: CancelSignal) -> Self {
        Self { cancel, ..self }
    }

    /// The next event for the client; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<ReplyEvent> {
        while !self.ended {
            match self.wait().await {
                Ok(poncho_api::ReplyEvent::Started(started)) => {
                    self.times.started(started);
                    return Some(ReplyEvent::Started(started));
                }
                Ok(poncho_api::ReplyEvent::Progress(progress)) => return Some(ReplyEvent::Progress(progress)),
                Ok(poncho_api::ReplyEvent::Delta(delta)) => {
                    self.times.tokens(delta.tokens.len());
                    if !delta.is_silent() {
                        return Some(ReplyEvent::Delta(delta));
                    }
                }
                Ok(poncho_api::ReplyEvent::Done(finished)) => {
                    self.ended = true;
                    self.times.tokens(finished.rest.tokens.len());
                    self.times.finished(&finished.completion, &finished.normalised);
                    return Some(ReplyEvent::Done(finished));
                }
                Ok(poncho_api::ReplyEvent::Cancelled(completion)) => {
                    self.ended = true;
                    self.times.finished(&completion, &[]);
                    return Some(ReplyEvent::Failed(ApiError::Cancelled));
                }
                Ok(poncho_api::ReplyEvent::Failed(error)) => return Some(self.fail(error.into())),
                Err(error) => return Some(self.fail(error)),
            }
        }
        None
    }

    /// Waits for the whole reply.
    pub(crate) async fn finish(mut self) -> Result<Finished, ApiError> {
        loop {
            match self.next().await {
                Some(ReplyEvent::Done(finished)) => return Ok(*finished),
                Some(ReplyEvent::Failed(error)) => return Err(error),
                Some(ReplyEvent::Started(_) | ReplyEvent::Progress(_) | ReplyEvent::Delta(_)) => {}
                None => return Err(ApiError::Internal { doing: "read a reply" }),
            }
        }
    }

    async fn wait(&mut self) -> Result<poncho_api::ReplyEvent, ApiError> {
        let Self { stream, times, time_limit, cut, cancel, .. } = self;
        let next = async {
            let Some(limit) = *time_limit else { return stream.next().await.ok_or(ApiError::Cancelled) };
            match tokio::time::timeout_at(times.arrived() + limit, stream.next()).await {
                Ok(event) => event.ok_or(ApiError::Cancelled),
                Err(_) => Err(ApiError::Timeout { limit }),
            }
        };
        tokio::select! {
            // First: a reply with an event ready at all times must notice it too.
            biased;
            () = cut.received() => Err(ApiError::ShuttingDown),
            () = cancel.received() => Err(ApiError::CancelledByName),
            event = next => event,
        }
    }

    fn fail(&mut self, error: ApiError) -> ReplyEvent {
        self.ended = true;
        self.times.failed(&error);
        ReplyEvent::Failed(error)
    }
}
