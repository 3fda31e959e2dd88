//! What the dialects do alike around a call: read its headers and parameters, start its replies, report what the cache did for it.
//!
//! Used by the folders of the dialects and by Poncho's own endpoints. Nothing here knows a field of a dialect.

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use poncho_api::{Capabilities, Finished, Generate, HitKind, HitTier, Normalised};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use crate::dialects::diagnosis::{Diagnosis, Diagnostics};
use crate::error::ApiError;
use crate::forms::{left_out, or_null};
use crate::http::app::SharedApp;
use crate::http::heartbeat::Heartbeat;
use crate::http::reply::Reply;
use crate::http::unknown_fields::short;
use crate::http::warnings::{Code, Warning, Warnings};
use crate::models::served::ServedModel;
use crate::owner::Owner;
use crate::owner::scoped;
use crate::telemetry::drafts::DraftFacts;
use crate::telemetry::metrics::Outcome;
use crate::telemetry::record::{CancelSignal, Recorded, Submitted};
use crate::telemetry::timing::{ReplyTimes, Sinks, refused};
use crate::telemetry::traces::scope::Scope;
pub(crate) use crate::telemetry::units::milliseconds;

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

/// The value of a parameter of the address; the last one, if there are several.
pub(crate) fn query_value<'uri>(uri: &'uri Uri, name: &str) -> Option<Cow<'uri, str>> {
    let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    pairs.filter(|(key, _)| key == name).map(|(_, value)| value).last()
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

/// Ollama's words for what a model can do.
pub(crate) fn capability_words(can: Capabilities) -> Vec<&'static str> {
    let all = [
        ("embedding", can.embedding),
        ("completion", !can.embedding),
        ("tools", !can.embedding && can.tools),
        ("insert", !can.embedding && can.insert),
        ("thinking", !can.embedding && can.thinking),
    ];
    all.into_iter().filter(|(_, can)| *can).map(|(word, _)| word).collect()
}

/// What the cache did for a request.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(transform = left_out)]
struct PonchoFacts {
    /// How the prompt was found. Fewer than 32 cached tokens that are less than 5 % of it are cold.
    #[schemars(extend("enum" = HitKind::ALL.map(HitKind::as_str)))]
    hit: &'static str,
    /// Where it was found; absent if nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = HitTier::ALL.map(HitTier::as_str)))]
    tier: Option<&'static str>,
    /// Prompt tokens from the cache.
    cached_tokens: usize,
    /// Prompt tokens that were computed.
    new_tokens: usize,
    /// At most three decimals.
    prefill_ms: f64,
    /// The row that was saved at the end.
    finish_key: Option<String>,
    /// What drafts did for the reply; absent if nothing was drafted.
    #[serde(skip_serializing_if = "Option::is_none")]
    drafts: Option<DraftFacts>,
    /// What was made equal in the prompt before it was rendered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hygiene: Vec<Normalised>,
}

impl From<&Finished> for PonchoFacts {
    fn from(finished: &Finished) -> Self {
        let completion = &finished.completion;
        Self {
            hit: completion.hit.as_str(),
            tier: completion.hit_tier.map(HitTier::as_str),
            cached_tokens: completion.cached_tokens,
            new_tokens: completion.new_tokens,
            prefill_ms: milliseconds(completion.prefill_time),
            finish_key: completion.finish_key.map(|key| key.to_string()),
            drafts: DraftFacts::of(completion.drafts),
            hygiene: finished.normalised.clone(),
        }
    }
}

/// The `poncho` object of an answer: what the cache did, if that is asked for, and the warnings, if there are any; or how
/// far a reply is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct PonchoReport {
    #[serde(flatten)]
    facts: Option<PonchoFacts>,
    /// How far a reply is, in a stream that has nothing else to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Heartbeat")]
    progress: Option<Heartbeat>,
    /// The id that a later request names as its `previous_id`, where it asked for diagnostics.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    id: Option<String>,
    /// What changed since the request before, where it was asked for; `null` if nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "or_null::<Diagnostics>")]
    diagnostics: Option<Option<Diagnostics>>,
    /// Come whenever a part of the request had no effect. All other facts come on request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<Warning>,
}

impl From<Heartbeat> for PonchoReport {
    fn from(heartbeat: Heartbeat) -> Self {
        Self { progress: Some(heartbeat), ..Self::default() }
    }
}

/// What the `poncho` object of a call will hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reporting {
    wants_facts: bool,
    warnings: Vec<Warning>,
    diagnosis: Option<Diagnosis>,
    shows_diagnosis: bool,
}

impl Reporting {
    /// With the facts, if they are asked for. The warnings are logged.
    pub(crate) fn new(app: &SharedApp, wants_facts: bool, warnings: Warnings) -> Self {
        Self { wants_facts, warnings: warnings.report(&app.warnings), ..Self::default() }
    }

    /// With the cache diagnostics of a request, shown in the `poncho` object.
    pub(crate) fn diagnosing(self, diagnosis: Option<Diagnosis>) -> Self {
        Self { shows_diagnosis: diagnosis.is_some(), diagnosis, ..self }
    }

    /// With diagnostics that the dialect has a field of its own for.
    pub(crate) fn diagnosing_apart(self, diagnosis: Option<Diagnosis>) -> Self {
        Self { shows_diagnosis: false, diagnosis, ..self }
    }

    /// The diagnostics of a request, if they were asked for.
    pub(crate) fn diagnosis(&self) -> Option<&Diagnosis> {
        self.diagnosis.as_ref()
    }

    /// The object of an answer with a reply; `None` if there is nothing to say. Called once, when the reply ended.
    pub(crate) fn of(&self, finished: &Finished) -> Option<PonchoReport> {
        if let Some(diagnosis) = &self.diagnosis {
            diagnosis.keep(finished);
        }
        let facts = self.wants_facts.then(|| PonchoFacts::from(finished));
        let told = self.diagnosis.as_ref().filter(|_| self.shows_diagnosis);
        let report = PonchoReport {
            facts,
            progress: None,
            id: told.map(|diagnosis| diagnosis.id().to_owned()),
            diagnostics: told.map(|diagnosis| diagnosis.told(finished.completion.cached_tokens)),
            warnings: self.warnings.clone(),
        };
        (report != PonchoReport::default()).then_some(report)
    }

    /// The object of an answer without one.
    pub(crate) fn alone(&self) -> Option<PonchoReport> {
        let warnings = self.warnings.clone();
        (!warnings.is_empty()).then_some(PonchoReport { warnings, ..PonchoReport::default() })
    }
}

/// An answer without a reply, and its warnings.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{T}")]
pub(crate) struct WithWarnings<T> {
    #[serde(flatten)]
    answer: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PonchoReport")]
    poncho: Option<PonchoReport>,
}

impl<T> WithWarnings<T> {
    /// Logs the warnings and adds them to an answer, which must be an object.
    pub(crate) fn new(app: &SharedApp, answer: T, warnings: Warnings) -> Self {
        Self { answer, poncho: Reporting::new(app, false, warnings).alone() }
    }
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
        let scope = Scope::current();
        let submitted = Submitted {
            owner: self.owner,
            model: self.model.id(),
            request_id: scope.as_ref().map(|scope| scope.id.as_str()),
            arrived: self.arrived,
        };
        let mut recorded: Vec<Recorded> =
            prompts.iter_mut().flat_map(|prompt| self.app.record.open(prompt, &submitted)).collect();
        let streams = model.start(prompts).await.inspect_err(|error| {
            refused(self.model.id(), self.arrived, error);
            recorded.iter().for_each(|recorded| recorded.cut_short(Outcome::Failed, error.code(), 0));
        })?;
        let submitted = Instant::now();
        // A record that keeps fewer requests than there are replies has no entry for the last ones.
        let mut recorded = recorded.drain(..);
        let reply = |stream| {
            let recorded = recorded.next();
            let cancel = recorded.as_ref().map_or(CancelSignal::NEVER, Recorded::cancel_signal);
            let sinks = Sinks { metrics: self.app.metrics.clone(), savings: self.app.savings.clone(), recorded };
            let times = ReplyTimes::begin(sinks, self.model.id(), self.arrived, submitted);
            Reply::new(stream, times, self.app.config.request_timeout, self.app.life.cut_signal()).or_cancelled(cancel)
        };
        Ok(streams.into_iter().map(reply).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_and_values_of_parameters_are_decoded() {
        let uri = Uri::from_static("/props?model=owner%2Fname%3Atag&a=1&model");
        assert_eq!(query_value(&uri, "a").as_deref(), Some("1"));
        assert_eq!(query_value(&uri, "model").as_deref(), Some(""));
        assert_eq!(query_value(&Uri::from_static("/?model=o%2Fn"), "model").as_deref(), Some("o/n"));
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
