//! `POST /v1/responses`: the handler, the whole answer, and the events of a stream.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use super::compose::{Composer, Wishes};
use super::custom;
use super::maker::Maker;
use super::mcp::approval;
use super::namespace::grouped;
use super::object;
use super::rounds::Rounds;
use super::turn::{self, REASONING, Truncation};
use super::types::ResponseRequestBody;
use super::{ignored, input, mcp, messages};
use crate::dialects::diagnosis::Diagnosis;
use crate::dialects::openai::call::{Call, model_name};
use crate::dialects::poncho_options::PromptOrigin;
use crate::dialects::shared::{Origin, Reporting, poncho_header, session_header, warn_of_headers, warn_of_model};
use crate::dialects::template_variables::warn_of_variables;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::{Checked, Json};
use crate::http::sse;
use crate::http::warnings::Warnings;
use crate::owner::Owner;
use crate::responses::item::Item;
use crate::responses::store::OwnResponses;
use poncho_api::{Generate, Request};

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
    let servers = mcp::servers(body.tools.as_deref().unwrap_or_default(), &app.config.tool_servers)?;
    let listed = mcp::list(&app.tool_lists, &servers, &conversation).await;
    let mut asked = turn::chat_turn(
        &body,
        messages::messages(body.instructions.as_deref(), &conversation),
        model.defaults().generation(),
        truncation,
        &listed,
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
    // A response that calls tools asks again with their results.
    let again = (!servers.is_empty()).then(|| asked.clone());
    let approved = approval::approved(&conversation);
    if !approved.is_empty() && servers.is_empty() {
        let reason = "the MCP server of an approved call is not among them; send the same tools again";
        return Err(ApiError::field("tools", reason));
    }
    // Calls that were approved are made before the model is asked.
    let replies = if approved.is_empty() {
        call.start(vec![asked], in_pieces).await.map_err(turn::in_this_api)?
    } else {
        Vec::new()
    };
    let keeps = body.store.unwrap_or(true);
    let tools = body.tools.as_deref().unwrap_or_default();
    let composer = Composer::new(wishes).with_groups(grouped(tools)).with_custom(custom::names(tools));
    let composer = composer.with_tool_servers(listed);
    let mut maker = Maker { call, response, composer, input: conversation, keeps, owner, told: None };
    if let Some(again) = again {
        let instructions = body.instructions.take();
        let rounds = Rounds::new(maker, again, instructions, servers, body.max_tool_calls).after_approval(approved);
        return if in_pieces { rounds.stream(replies).await } else { rounds.whole(replies).await };
    }
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
    let listed = mcp::list_of(body.tools.as_deref().unwrap_or_default(), &conversation)?;
    let messages = messages::messages(body.instructions.as_deref(), &conversation);
    turn::chat_turn(body, messages, base, truncation, &listed)
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
    approval::check(&conversation, &own, |at| format!("input[{at}].approval_request_id"))?;
    conversation.extend(own);
    Ok(conversation)
}
