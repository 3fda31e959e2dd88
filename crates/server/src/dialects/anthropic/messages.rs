//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: the handlers and the whole answer.
//!
//! Headers that only mean something to Anthropic (`anthropic-version`, betas) are accepted with a warning, but for the one
//! beta that lifts a limit.

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use poncho_api::{ChatOutput, Finish, Finished, SigningKey};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::convert::{Asked, Display, asked};
use super::ignored;
use super::signature::sign;
use super::stream::MessageEvents;
use super::types::{BlockOut, MessageOut, MessagesBody, TokenCount, Usage};

use crate::dialects::diagnosis::{Diagnosis, Diagnostics};
use crate::dialects::openai::call::{Call, model_name};
use crate::dialects::poncho_options::PromptOrigin;
use crate::dialects::shared::{
    Origin, Reporting, WithWarnings, poncho_header, session_header, warn_of_headers, warn_of_model,
};
use crate::dialects::template_variables::warn_of_variables;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::{Checked, Json};
use crate::http::sse;
use crate::http::warnings::Warnings;
use crate::owner::Owner;
use crate::request_id::random_id;

/// What the ids of tool calls begin with.
const CALL_PREFIX: &str = "toolu_";

/// What a reply is written with.
pub(crate) struct Style {
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) display: Display,
    /// The client's own; a template may add others that it does not know of.
    pub(crate) stop_sequences: Vec<String>,
    pub(crate) signing_key: Option<SigningKey>,
    pub(crate) reporting: Reporting,
}

impl Style {
    /// The `diagnostics` of a message with this many tokens from the cache.
    pub(crate) fn diagnostics(&self, cached_tokens: usize) -> Option<Option<Diagnostics>> {
        self.reporting.diagnosis().map(|diagnosis| diagnosis.told(cached_tokens))
    }
}

/// Answers a conversation.
pub(crate) async fn create(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    Checked { mut body, unknown }: Checked<MessagesBody>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    if body.session_id.is_none() {
        body.session_id = session_header(&headers)?;
    }
    let model = app.models.resolve(model_name(body.model.as_deref())?).await?;
    check_limits(&body, &headers)?;
    let signing_key = model.report().signing_key.clone();
    let Asked { mut generate, display } = asked(&body, signing_key.as_ref(), model.defaults().generation())?;
    let mut warnings = Warnings::about(unknown, &ignored::MESSAGES);
    ignored::warn_of_messages(&mut warnings, &body, &generate);
    ignored::warn_of_headers(&mut warnings, &headers);
    let options = body.poncho.take().unwrap_or_default();
    options.apply(&mut generate.request, PromptOrigin::Composed)?;
    warn_of_headers(&mut warnings, &headers);
    warn_of_model(&mut warnings, &model);
    warn_of_variables(&mut warnings, &model, &generate, "output_config.effort").await;
    let reporting = Reporting::new(&app, options.reports || poncho_header(&headers)?, warnings);
    let id = random_id("msg_");
    let asks = body.diagnostics.as_ref();
    let previous = asks.and_then(|asks| asks.previous_message_id.as_deref());
    let diagnosis = asks.and_then(|_| Diagnosis::of(&app, owner, &id, model.id(), &generate, previous));
    let reporting = reporting.diagnosing_apart(diagnosis);
    let style = Style {
        id,
        model: model.id().to_owned(),
        display,
        stop_sequences: generate.request.stop.clone(),
        signing_key,
        reporting,
    };
    let keep_alive = app.config.stream_keep_alive;
    let origin = Origin { app, model, owner, arrived };
    let call = Call { origin, n: 1, reporting: Reporting::default(), include_usage: false };
    generate.call_prefix = Some(CALL_PREFIX.to_owned());
    let in_pieces = body.stream.unwrap_or(false);
    let mut replies = call.start(vec![generate], in_pieces).await?;
    if in_pieces {
        return sse::respond(replies, MessageEvents::new(style), keep_alive).await;
    }
    let reply = replies.pop().ok_or(ApiError::Internal { doing: "started a reply" })?;
    Ok(whole(&style, reply.finish().await?).into_response())
}

/// Counts the tokens of a prompt.
pub(crate) async fn count_tokens(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Checked { body, unknown }: Checked<MessagesBody>,
) -> Result<Json<WithWarnings<TokenCount>>, ApiError> {
    let model = app.models.resolve(model_name(body.model.as_deref())?).await?.asked_by(app.keys.tenant(owner));
    let signing_key = model.report().signing_key.as_ref();
    let Asked { generate, .. } = asked(&body, signing_key, model.defaults().generation())?;
    let mut warnings = Warnings::about(unknown, &ignored::MESSAGES);
    ignored::warn_of_messages(&mut warnings, &body, &generate);
    warn_of_model(&mut warnings, &model);
    warn_of_variables(&mut warnings, &model, &generate, "output_config.effort").await;
    let rendered = model.rendered(generate).await?;
    let answer = TokenCount { input_tokens: rendered.tokens.len() };
    Ok(Json(WithWarnings::new(&app, answer, warnings)))
}

fn check_limits(body: &MessagesBody, headers: &HeaderMap) -> Result<(), ApiError> {
    let limit = body.max_tokens.ok_or_else(|| ApiError::field("max_tokens", "missing field `max_tokens`"))?;
    let budget = body.thinking.as_ref().and_then(|thinking| thinking.budget_tokens);
    // Thinking between tool calls may take more than one reply, so there the budget is not bound by its length.
    let is_interleaved = headers.get_all("anthropic-beta").iter().any(|betas| {
        String::from_utf8_lossy(betas.as_bytes()).split(',').any(|beta| beta.trim().starts_with("interleaved-thinking"))
    });
    match budget {
        Some(budget) if budget >= limit && limit > 0 && !is_interleaved => {
            let reason = format!("it is {budget} and must be less than max_tokens, which is {limit}");
            Err(ApiError::field("thinking.budget_tokens", reason))
        }
        _ => Ok(()),
    }
}

fn whole(style: &Style, reply: Finished) -> Response {
    let (stop_reason, stop_sequence) = stop_reason(style, &reply);
    let poncho = style.reporting.of(&reply);
    let message = MessageOut {
        id: &style.id,
        kind: "message",
        role: "assistant",
        model: &style.model,
        content: blocks(style, reply.output),
        stop_reason: Some(stop_reason),
        stop_sequence: stop_sequence.as_deref(),
        usage: Usage::from(&reply.completion),
        diagnostics: style.diagnostics(reply.completion.cached_tokens),
        poncho,
    };
    Json(message).into_response()
}

/// Why a message ended, and the client's stop sequence that ended it.
pub(crate) fn stop_reason(style: &Style, reply: &Finished) -> (&'static str, Option<String>) {
    let stop = reply.completion.stop_sequence.clone().filter(|stop| style.stop_sequences.contains(stop));
    match (reply.finish, stop) {
        (Finish::Length, _) => ("max_tokens", None),
        (Finish::ToolCalls, _) => ("tool_use", None),
        (Finish::Stop, Some(stop)) => ("stop_sequence", Some(stop)),
        (Finish::Stop, None) => ("end_turn", None),
    }
}

fn blocks(style: &Style, output: ChatOutput) -> Vec<BlockOut> {
    let mut blocks = Vec::new();
    if style.display != Display::Hidden && !output.reasoning.is_empty() {
        let signature = sign(style.signing_key.as_ref(), &output.reasoning);
        let thinking = if style.display == Display::Full { output.reasoning } else { String::new() };
        blocks.push(BlockOut::Thinking { thinking, signature });
    }
    // A text of white space is refused when it comes back.
    if !output.content.trim().is_empty() {
        blocks.push(BlockOut::Text { text: output.content });
    }
    let calls = output.tool_calls.into_iter();
    blocks.extend(calls.map(|call| BlockOut::ToolUse { id: call.id, name: call.name, input: input(call.arguments) }));
    blocks
}

/// The arguments as an object, in the order in which the model wrote them. A call that was cut short has none.
fn input(arguments: String) -> Box<RawValue> {
    let object = RawValue::from_string(arguments).ok().filter(|value| value.get().starts_with('{'));
    object.unwrap_or_else(empty_object)
}

/// `{}`.
pub(crate) fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_objects_in_their_own_order() {
        assert_eq!(
            input(r#" {"z": 1, "a": {"y": 2, "b": 3}} "#.to_owned()).get(),
            r#"{"z": 1, "a": {"y": 2, "b": 3}}"#
        );
        for broken in [r#"{"z": 1, "a"#, "", "[1]", "null", "text"] {
            assert_eq!(input(broken.to_owned()).get(), "{}", "{broken}");
        }
    }
}
