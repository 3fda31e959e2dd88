//! `POST /v1/responses`: the handler, the whole answer, and the events of a stream.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::time::Instant;

use super::compose::{Composer, Wishes};
use super::custom;
use super::namespace::grouped;
use super::object::{self, ResponseOut};
use super::turn::{self, REASONING, Truncation};
use super::types::ResponseRequestBody;
use super::{ignored, input, messages};
use crate::dialects::diagnosis::Diagnosis;
use crate::dialects::openai::call::{Call, model_name};
use crate::dialects::poncho_options::PromptOrigin;
use crate::dialects::shared::{Origin, Reporting, poncho_header, session_header, warn_of_headers, warn_of_model};
use crate::dialects::template_variables::warn_of_variables;
use crate::error::{ApiError, Family};
use crate::http::app::SharedApp;
use crate::http::body::{Checked, Json};
use crate::http::heartbeat::Heartbeat;
use crate::http::sse::{self, Events, Frame};
use crate::http::warnings::Warnings;
use crate::owner::Owner;
use crate::responses::item::{Item, Status};
use crate::responses::store::{OwnResponses, StoredResponse};
use poncho_api::{Delta, Finish, Finished, Generate, Request};

/// Answers a conversation.
pub(crate) async fn create(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    Checked { mut body, unknown }: Checked<ResponseRequestBody>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    if body.session_id.is_none() {
        body.session_id = session_header(&headers)?;
    }
    let model = app.models.resolve(model_name(body.model.as_deref())?).await?;
    turn::check(&body)?;
    let truncation = Truncation::read(body.truncation.as_deref())?;
    let conversation = conversation(OwnResponses { store: &app.responses, owner }, &body)?;
    let mut asked = turn::chat_turn(
        &body,
        messages::messages(body.instructions.as_deref(), &conversation),
        model.defaults().generation(),
        truncation,
    )?;
    let options = body.poncho.take().unwrap_or_default();
    options.apply(&mut asked.request, PromptOrigin::Composed)?;
    let response = object::begin(&body, model.id(), &asked.request.sampling, truncation);
    let summary = body.reasoning.as_ref().and_then(|reasoning| reasoning.summary());
    let wishes = Wishes {
        summary: summary.is_some_and(|summary| summary != "none"),
        opaque: body.includes(REASONING),
        logprobs: turn::logprobs(&body).is_some(),
    };
    let mut warnings = Warnings::about(unknown, &ignored::RESPONSES);
    ignored::warn_of_response(&mut warnings, &body);
    warn_of_headers(&mut warnings, &headers);
    warn_of_model(&mut warnings, &model);
    warn_of_variables(&mut warnings, &model, &asked, "reasoning.effort").await;
    let diagnosis = options
        .previous_id
        .as_ref()
        .and_then(|previous| Diagnosis::of(&app, owner, &response.id, model.id(), &asked, previous.as_deref()));
    let reporting = Reporting::new(&app, options.reports || poncho_header(&headers)?, warnings).diagnosing(diagnosis);
    let origin = Origin { app, model, owner, arrived };
    let call = Call { origin, n: 1, reporting, include_usage: false };
    let in_pieces = body.stream.unwrap_or(false);
    let replies = call.start(vec![asked], in_pieces).await.map_err(turn::in_this_api)?;
    let keeps = body.store.unwrap_or(true);
    let tools = body.tools.as_deref().unwrap_or_default();
    let composer = Composer::new(wishes).with_groups(grouped(tools)).with_custom(custom::names(tools));
    let mut maker = Maker { call, response, composer, input: conversation, keeps, owner };
    if in_pieces {
        let keep_alive = maker.call.origin.app.config.stream_keep_alive;
        return sse::respond(replies, maker, keep_alive).await;
    }
    let (finished, _) = maker.call.collect(replies).await?;
    for reply in finished {
        maker.finish(reply);
    }
    Ok(Json(&maker.response).into_response())
}

/// The prompt of a request, to be looked at.
pub(crate) fn prompt(
    stored: OwnResponses<'_>,
    body: &ResponseRequestBody,
    base: &Request,
) -> Result<Generate, ApiError> {
    turn::check(body)?;
    let truncation = Truncation::read(body.truncation.as_deref())?;
    let conversation = conversation(stored, body)?;
    turn::chat_turn(body, messages::messages(body.instructions.as_deref(), &conversation), base, truncation)
}

/// The earlier conversation and the request's own items.
fn conversation(stored: OwnResponses<'_>, body: &ResponseRequestBody) -> Result<Vec<Arc<Item>>, ApiError> {
    let mut conversation: Vec<Arc<Item>> = match &body.previous_response_id {
        None => Vec::new(),
        Some(id) => {
            let previous = stored.get(id).ok_or_else(|| ApiError::NoPrevious { id: id.clone() })?;
            previous.conversation().cloned().collect()
        }
    };
    let own = input::items(body.input.as_ref(), &stored)?;
    if own.is_empty() && conversation.is_empty() {
        return Err(ApiError::field("input", "it is missing or empty; send a text or at least one item"));
    }
    input::check_calls(&conversation, &own)?;
    conversation.extend(own);
    Ok(conversation)
}

/// Makes a response out of a reply, whole or event by event.
struct Maker {
    call: Call,
    response: ResponseOut,
    composer: Composer,
    /// What the response is made from.
    input: Vec<Arc<Item>>,
    keeps: bool,
    owner: Owner,
}

impl Maker {
    fn finish(&mut self, finished: Finished) -> Vec<Frame> {
        let poncho = self.call.reporting.of(&finished);
        let Finished { rest, .. } = finished;
        let finished = Finished { rest: Delta::default(), ..finished };
        let mut frames = self.composer.delta(rest);
        let is_cut = finished.finish == Finish::Length;
        frames.extend(self.composer.end(if is_cut { Status::Incomplete } else { Status::Completed }));
        self.response.finish(&finished, self.composer.take_items(), poncho);
        frames.push(self.composer.response_event(self.response.status.event(), &self.response));
        self.keep();
        frames
    }

    fn keep(&mut self) {
        let Some(json) = serde_json::to_string(&self.response).ok().filter(|_| self.keeps) else { return };
        self.call.origin.app.responses.put(StoredResponse {
            id: self.response.id.clone(),
            owner: self.owner,
            json,
            input: std::mem::take(&mut self.input),
            output: self.response.output.iter().cloned().map(Arc::new).collect(),
        });
    }
}

impl Events for Maker {
    fn waiting(&mut self, heartbeat: Heartbeat) -> Vec<Frame> {
        vec![self.composer.waiting(&self.response, heartbeat.into())]
    }

    fn start(&mut self) -> Vec<Frame> {
        ["response.created", "response.in_progress"]
            .map(|name| self.composer.response_event(name, &self.response))
            .to_vec()
    }

    fn delta(&mut self, _index: usize, delta: Delta) -> Vec<Frame> {
        self.composer.delta(delta)
    }

    fn done(&mut self, _index: usize, finished: Box<Finished>) -> Vec<Frame> {
        self.finish(*finished)
    }

    fn end(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Frame> {
        let body = error.body(Family::OpenAi);
        let said = |name: &str| body.get("error").and_then(|error| error.get(name));
        let fields = json!({"code": said("code"), "message": said("message"), "param": said("param")});
        let mut frames = vec![self.composer.event("error", fields)];
        // Unfinished items stay as they are: the object lists them, but no event marks them as done.
        self.response.fail(error, self.composer.take_items());
        frames.push(self.composer.response_event(self.response.status.event(), &self.response));
        self.keep();
        frames
    }
}
