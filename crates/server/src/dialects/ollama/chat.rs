//! `POST /api/chat`: a conversation, tools, structured output, thinking.

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio::time::Instant;

use super::call::{Call, generation, needs_thinking, unload};
use super::convert::{messages, schema, thinking};
use super::ignored;
use super::lines::{Endpoint, ReplyLines};
use super::types::ChatBody;
use crate::config::KeepAlive;
use crate::dialects::diagnosis::Diagnosis;
use crate::dialects::openai::convert::tool_json;
use crate::dialects::poncho_options::PromptOrigin;
use crate::dialects::shared::Origin;
use crate::dialects::template_variables::warn_of_variables;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Checked;
use crate::models::tags;
use crate::owner::Owner;
use crate::request_id::random_id;
use poncho_api::{ChatTurn, Choice, Generate, Request, Tool};

/// Answers a conversation; without messages it only loads or unloads the model.
pub(crate) async fn create(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    Checked { body, unknown }: Checked<ChatBody>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let name = tags::required(body.model.as_deref())?.to_owned();
    let shared = body.shared();
    let unloads = shared.keep_alive.is_some_and(KeepAlive::is_over);
    if unloads && body.messages.as_deref().unwrap_or_default().is_empty() {
        return unload(&app, ReplyLines::new(&name, Endpoint::Chat, arrived), ignored::of_reply(unknown)).await;
    }
    let model = app.models.resolve_keeping(&name, shared.keep_alive).await?;
    let turn = turn(&body)?;
    let (thinking, _) = thinking(shared.think);
    let mut request = Request { thinking, ..generation(&shared, &headers, model.defaults().generation())? };
    shared.poncho.apply(&mut request, PromptOrigin::Composed)?;
    let mut warnings = ignored::of_reply(unknown);
    ignored::warn_of_messages(&mut warnings, body.messages.as_deref().unwrap_or_default());
    let generate = Generate::chat(turn, request);
    warn_of_variables(&mut warnings, &model, &generate, "think").await;
    let diagnosis = shared.poncho.previous_id.as_ref().and_then(|previous| {
        Diagnosis::of(&app, owner, &random_id("chat_"), model.id(), &generate, previous.as_deref())
    });
    let reporting = ignored::reporting(&app, &model, &shared, &headers, warnings)?.diagnosing(diagnosis);
    let is_idle = generate.turn().is_none_or(|turn| turn.messages.is_empty());
    let call = Call::new(Origin { app, model, owner, arrived }, &name, Endpoint::Chat, &shared, reporting);
    if is_idle {
        return Ok(call.idle());
    }
    call.answer(generate).await
}

/// The prompt of a request, to be looked at.
pub(crate) fn prompt(body: &ChatBody, base: &Request) -> Result<Generate, ApiError> {
    let turn = turn(body)?;
    if turn.messages.is_empty() {
        return Err(ApiError::field("messages", "it is empty; send at least one message"));
    }
    let (thinking, _) = thinking(body.shared().think);
    Ok(Generate::chat(turn, Request { thinking, ..base.clone() }))
}

fn turn(body: &ChatBody) -> Result<ChatTurn, ApiError> {
    let shared = body.shared();
    let tools = body.tools.iter().flatten().enumerate().map(|(at, tool)| tool_json(at, tool));
    let (_, template_kwargs) = thinking(shared.think);
    Ok(ChatTurn {
        messages: messages(body.messages.as_deref().unwrap_or_default())?,
        tools: tools.collect::<Result<Vec<Tool>, ApiError>>()?,
        choice: Choice::Auto,
        parallel_calls: true,
        json_schema: schema(shared.format)?,
        template_kwargs,
        needs_thinking: needs_thinking(shared.think),
        ..ChatTurn::default()
    })
}
