//! `POST /v1/chat/completions`: the handler, the whole answer, and the pieces of a stream.

use std::collections::BTreeSet;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio::time::Instant;

use super::answers::{AssistantMessage, CallOut, ChatChoice, Choice, ChunkChoice, ChunkDelta, FunctionOut};
use super::call::{Call, addressed};
use super::convert::{chat_logprobs, chat_turn, envelope, finish_word};
use super::ignored;
use super::pieces::Pieces;
use super::types::ChatRequestBody;
use poncho_api::{Delta, Finished, Mode};

use crate::dialects::diagnosis::Diagnosis;
use crate::dialects::poncho_options::PromptOrigin;
use crate::dialects::shared::{Origin, Reporting, poncho_header, warn_of_headers, warn_of_model};
use crate::dialects::template_variables::warn_of_variables;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Checked;
use crate::http::heartbeat::Heartbeat;
use crate::http::sse::{self, Events, Frame};
use crate::http::warnings::Warnings;
use crate::owner::Owner;

/// Answers a conversation.
pub(crate) async fn create(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    Checked { mut body, unknown }: Checked<ChatRequestBody>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let asked = (body.model.as_deref(), body.n);
    let (model, n) = addressed(&app, &headers, &mut body.session_id, asked).await?;
    let mut asked = chat_turn(&body, model.defaults().generation())?;
    let mut warnings = Warnings::about(unknown, &ignored::CHAT);
    ignored::warn_of_chat(&mut warnings, &body);
    let options = body.poncho.take().unwrap_or_default();
    options.apply(&mut asked.request, PromptOrigin::Composed)?;
    // The engine would call it by the name of the older field.
    if body.max_completion_tokens == Some(0) && asked.request.mode != Mode::PrefillOnly {
        let reason = "it is 0 and nothing would be generated; ask for at least 1";
        return Err(ApiError::field("max_completion_tokens", reason));
    }
    let wants_logprobs = asked.request.logprobs.is_some();
    let include_usage = body.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
    warn_of_headers(&mut warnings, &headers);
    warn_of_model(&mut warnings, &model);
    warn_of_variables(&mut warnings, &model, &asked, "reasoning_effort").await;
    let reporting = Reporting::new(&app, options.reports || poncho_header(&headers)?, warnings);
    let in_pieces = body.stream.unwrap_or(false);
    let envelope = envelope(&model, "chatcmpl-", if in_pieces { "chat.completion.chunk" } else { ChatChoice::OBJECT });
    let diagnosis = options
        .previous_id
        .as_ref()
        .and_then(|previous| Diagnosis::of(&app, owner, &envelope.id, model.id(), &asked, previous.as_deref()));
    let reporting = reporting.diagnosing(diagnosis);
    let call = Call { origin: Origin { app, model, owner, arrived }, n, reporting, include_usage };
    let replies = call.start(vec![asked], in_pieces).await?;
    if in_pieces {
        let keep_alive = call.origin.app.config.stream_keep_alive;
        let pieces = Pieces::new(call, envelope, replies.len());
        let events = ChatEvents { pieces, wants_logprobs, opened: BTreeSet::new() };
        return sse::respond(replies, events, keep_alive).await;
    }
    let (finished, totals) = call.collect(replies).await?;
    let choices: Vec<ChatChoice> =
        finished.into_iter().enumerate().map(|(index, reply)| choice(index, reply, wants_logprobs)).collect();
    Ok(totals.answer(&envelope, &choices))
}

fn choice(index: usize, reply: Finished, wants_logprobs: bool) -> ChatChoice {
    let tool_calls: Vec<CallOut> = reply
        .output
        .tool_calls
        .into_iter()
        .map(|call| CallOut {
            index: None,
            id: Some(call.id),
            kind: Some("function"),
            function: FunctionOut { name: Some(call.name), arguments: call.arguments },
        })
        .collect();
    let content = reply.output.content;
    let message = AssistantMessage {
        role: "assistant",
        // A reply that only calls tools says nothing.
        content: Some(content).filter(|content| !content.is_empty() || tool_calls.is_empty()),
        refusal: None,
        reasoning_content: Some(reply.output.reasoning).filter(|reasoning| !reasoning.is_empty()),
        tool_calls,
    };
    let logprobs = wants_logprobs.then(|| chat_logprobs(&reply.logprobs));
    ChatChoice { index, message, logprobs, finish_reason: finish_word(reply.finish) }
}

/// The pieces of a stream.
struct ChatEvents {
    pieces: Pieces,
    wants_logprobs: bool,
    /// Replies that have sent their role.
    opened: BTreeSet<usize>,
}

impl ChatEvents {
    fn opening(&mut self, index: usize) -> Option<Frame> {
        let is_new = self.opened.insert(index);
        is_new.then(|| self.pieces.piece(opening_of(index)))
    }

    fn piece(&self, index: usize, delta: Delta) -> Frame {
        let logprobs = Some(&delta.logprobs).filter(|all| self.wants_logprobs && !all.is_empty());
        let logprobs = logprobs.map(|all| chat_logprobs(all));
        let delta = ChunkDelta {
            role: None,
            content: Some(delta.content).filter(|content| !content.is_empty()),
            reasoning_content: Some(delta.reasoning).filter(|reasoning| !reasoning.is_empty()),
            tool_calls: delta.calls.into_iter().map(CallOut::from).collect(),
        };
        self.pieces.piece(ChunkChoice { index, delta, logprobs, finish_reason: None })
    }
}

/// The first piece of a reply.
fn opening_of(index: usize) -> ChunkChoice {
    let delta = ChunkDelta { role: Some("assistant"), content: Some(String::new()), ..ChunkDelta::default() };
    ChunkChoice { index, delta, logprobs: None, finish_reason: None }
}

impl Events for ChatEvents {
    fn waiting(&mut self, heartbeat: Heartbeat) -> Vec<Frame> {
        let index = self.pieces.unfinished();
        let choice = if self.opened.insert(index) {
            opening_of(index)
        } else {
            ChunkChoice { index, delta: ChunkDelta::default(), logprobs: None, finish_reason: None }
        };
        vec![self.pieces.waiting(choice, heartbeat)]
    }

    fn delta(&mut self, index: usize, delta: Delta) -> Vec<Frame> {
        let opening = self.opening(index);
        opening.into_iter().chain([self.piece(index, delta)]).collect()
    }

    fn done(&mut self, index: usize, finished: Box<Finished>) -> Vec<Frame> {
        self.pieces.ended(index, &finished);
        let mut written: Vec<Frame> = self.opening(index).into_iter().collect();
        let finish_reason = Some(finish_word(finished.finish));
        if !finished.rest.is_empty() {
            written.push(self.piece(index, finished.rest));
        }
        let end = ChunkChoice { index, delta: ChunkDelta::default(), logprobs: None, finish_reason };
        written.push(self.pieces.last(end));
        written
    }

    fn end(&mut self) -> Vec<Frame> {
        self.pieces.end()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Frame> {
        Pieces::failed(error)
    }
}
