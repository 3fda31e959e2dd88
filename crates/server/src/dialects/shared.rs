//! What the dialects do alike around a call: read its headers, start its replies, report what the cache did for it.
//!
//! Used by the folders of the dialects and by Poncho's own endpoints. Nothing here knows a field of a dialect.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use poncho_api::{Finished, Generate, Normalised};
use serde::Serialize;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::reply::Reply;
use crate::http::unknown_fields::short;
use crate::http::warnings::{Code, Warning, Warnings};
use crate::models::served::ServedModel;
use crate::owner::Owner;
use crate::owner::scoped;
use crate::telemetry::timing::{ReplyTimes, refused};

/// The session that the headers name.
pub(crate) fn session_header(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("x-poncho-session") else { return Ok(None) };
    let name = std::str::from_utf8(value.as_bytes());
    name.map(|name| Some(name.to_owned())).map_err(|_| ApiError::field("x-poncho-session", "it is not UTF-8"))
}

/// Whether a header asks for the `poncho` object.
pub(crate) fn poncho_header(headers: &HeaderMap) -> Result<bool, ApiError> {
    match headers.get("x-poncho").map(HeaderValue::as_bytes) {
        None | Some(b"0" | b"false") => Ok(false),
        Some(b"1" | b"true") => Ok(true),
        Some(_) => Err(ApiError::field("x-poncho", "it must be 1 or 0")),
    }
}

/// Headers of this server's own that do not exist.
pub(crate) fn warn_of_headers(warnings: &mut Warnings, headers: &HeaderMap) {
    const KNOWN: [&str; 2] = ["x-poncho", "x-poncho-session"];
    for name in headers.keys().map(HeaderName::as_str).filter(|name| name.starts_with("x-poncho")) {
        if !KNOWN.contains(&name) {
            let message = format!("there is no header `{}`; use x-poncho or x-poncho-session", short(name));
            warnings.add(Code::UnknownField, &short(name), message);
        }
    }
}

/// A name that nobody has, and the model that answered to it.
pub(crate) fn warn_of_name(warnings: &mut Warnings, asked: &str, id: &str) {
    let message = format!(
        "there is no model `{}`; `{id}` answered, because this server accepts any name; name one of /v1/models",
        short(asked)
    );
    warnings.add(Code::UnknownModel, "model", message);
}

/// What is odd about the model that answers: it stands for a name that nobody has, or its Modelfile is not applied.
pub(crate) fn warn_of_model(warnings: &mut Warnings, model: &ServedModel) {
    if let Some(asked) = model.stands_for() {
        warn_of_name(warnings, asked, model.id());
    }
    if let Some(problem) = model.problem() {
        let message = format!(
            "the Modelfile of `{}` cannot be used, so its settings are not applied: {problem}; create the model again",
            model.id()
        );
        warnings.add(Code::UnusableModelfile, "model", message);
    }
}

/// What the cache did for a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct PonchoFacts {
    /// How the prompt was found; a tiny overlap is `cold`.
    hit: &'static str,
    /// Prompt tokens from the cache.
    cached_tokens: usize,
    /// Prompt tokens that were computed.
    new_tokens: usize,
    prefill_ms: f64,
    /// The row that was saved at the end.
    finish_key: Option<String>,
    /// What was made equal in the prompt before it was rendered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hygiene: Vec<Normalised>,
}

impl From<&Finished> for PonchoFacts {
    fn from(finished: &Finished) -> Self {
        let completion = &finished.completion;
        Self {
            hit: completion.hit.as_str(),
            cached_tokens: completion.cached_tokens,
            new_tokens: completion.new_tokens,
            prefill_ms: milliseconds(completion.prefill_time),
            finish_key: completion.finish_key.map(|key| key.to_string()),
            hygiene: finished.normalised.clone(),
        }
    }
}

/// The `poncho` object of an answer: what the cache did, if that is asked for, and the warnings, if there are any.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct PonchoReport {
    #[serde(flatten)]
    facts: Option<PonchoFacts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<Warning>,
}

/// What the `poncho` object of a call will hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reporting {
    wants_facts: bool,
    warnings: Vec<Warning>,
}

impl Reporting {
    /// With the facts, if they are asked for. The warnings are logged.
    pub(crate) fn new(app: &SharedApp, wants_facts: bool, warnings: Warnings) -> Self {
        Self { wants_facts, warnings: warnings.report(&app.warnings) }
    }

    /// The object of an answer with a reply; `None` if there is nothing to say.
    pub(crate) fn of(&self, finished: &Finished) -> Option<PonchoReport> {
        let facts = self.wants_facts.then(|| PonchoFacts::from(finished));
        (facts.is_some() || !self.warnings.is_empty()).then(|| PonchoReport { facts, warnings: self.warnings.clone() })
    }

    /// The object of an answer without one.
    pub(crate) fn alone(&self) -> Option<PonchoReport> {
        (!self.warnings.is_empty()).then(|| PonchoReport { facts: None, warnings: self.warnings.clone() })
    }
}

/// An answer without a reply, and its warnings.
#[derive(Debug, Serialize)]
pub(crate) struct WithWarnings<T> {
    #[serde(flatten)]
    answer: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    poncho: Option<PonchoReport>,
}

impl<T> WithWarnings<T> {
    /// Logs the warnings and adds them to an answer, which must be an object.
    pub(crate) fn new(app: &SharedApp, answer: T, warnings: Warnings) -> Self {
        Self { answer, poncho: Reporting::new(app, false, warnings).alone() }
    }
}

/// A time in milliseconds with at most three decimals.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    let micros = (time + Duration::from_nanos(500)).as_micros();
    micros as f64 / 1000.0
}

/// Where and when a call came in.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) app: SharedApp,
    pub(crate) model: ServedModel,
    /// The owner of the sessions that it may name.
    pub(crate) owner: Owner,
    pub(crate) arrived: Instant,
}

impl Origin {
    /// Starts the replies to some prompts, those to the first prompt first.
    pub(crate) async fn start(&self, mut prompts: Vec<Generate>) -> Result<Vec<Reply>, ApiError> {
        for prompt in &mut prompts {
            let session = prompt.request.session_id.take();
            prompt.request.session_id = session.map(|name| scoped(self.owner, &name)).transpose()?;
        }
        let model = self.model.clone().asked_by(self.app.keys.tenant(self.owner));
        let streams = model.start(prompts).await.inspect_err(|error| refused(self.model.id(), self.arrived, error))?;
        let submitted = Instant::now();
        let reply = |stream| {
            let times = ReplyTimes::begin(self.app.metrics.clone(), self.model.id(), self.arrived, submitted);
            Reply::new(stream, times, self.app.config.request_timeout, self.app.life.cut_signal())
        };
        Ok(streams.into_iter().map(reply).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_at_most_three_decimals() {
        for (nanos, written) in [(153_294_651, "153.295"), (1, "0.0"), (1_000_000, "1.0"), (999_500, "1.0")] {
            assert_eq!(serde_json::json!(milliseconds(Duration::from_nanos(nanos))).to_string(), written);
        }
    }

    #[test]
    fn the_header_is_1_or_0_and_nothing_else() {
        let with = |value: &'static str| {
            poncho_header(&HeaderMap::from_iter([(
                HeaderName::from_static("x-poncho"),
                HeaderValue::from_static(value),
            )]))
        };
        assert!(with("1").unwrap() && with("true").unwrap() && !with("0").unwrap() && !with("false").unwrap());
        assert!(with("yes").unwrap_err().to_string().contains("1 or 0"));
        assert!(!poncho_header(&HeaderMap::new()).unwrap());
    }
}
