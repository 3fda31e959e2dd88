//! `POST /v1/completions`: prompts that are used as they are, without a template.
//!
//! A text prompt is tokenized with special tokens recognised: a client that writes a whole prompt writes its marks too.
//! With a `suffix` the marks are ours, and the prompt is only text.

use std::collections::BTreeMap;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use poncho_api::{Delta, Finished, Generate, Input, Prompt, SpecialText, TokenLogprob};
use tokio::time::Instant;

use super::answers::{Choice, TextChoice, TextLogprobs};
use super::call::{Call, addressed};
use super::convert::{envelope, finish_word, finite, generation, token_text};
use super::ignored;
use super::pieces::Pieces;
use super::prompt::PromptForm;
use super::types::CompletionRequestBody;

use crate::dialects::poncho_options::PromptOrigin;
use crate::dialects::shared::{Origin, Reporting, poncho_header, warn_of_headers, warn_of_model};
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Checked;
use crate::http::heartbeat::Heartbeat;
use crate::http::sse::{self, Events, Frame};
use crate::http::warnings::Warnings;
use crate::owner::Owner;

/// What OpenAI's reference says.
const DEFAULT_MAX_TOKENS: u32 = 16;
/// Each prompt is a request of its own; more of them belong into more calls.
const MAX_PROMPTS: usize = 64;
/// The most alternatives of this endpoint, as OpenAI's reference has it.
const MAX_LOGPROBS: u8 = 5;

/// Goes on with some prompts.
pub(crate) async fn create(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    Checked { mut body, unknown }: Checked<CompletionRequestBody>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let asked = (body.model.as_deref(), body.n);
    let (model, n) = addressed(&app, &headers, &mut body.session_id, asked).await?;
    check_options(&body)?;
    let mut warnings = Warnings::about(unknown, &ignored::PLAIN);
    ignored::warn_of_completion(&mut warnings, &body);
    let suffix = body.suffix.take().filter(|suffix| !suffix.is_empty());
    let form = PromptForm { field: "prompt", most: MAX_PROMPTS, may_be_empty: suffix.is_some() };
    body.prompt.check_tokens(form.field, model.limits().vocab)?;
    let prompts = form.read(std::mem::take(&mut body.prompt))?;
    if prompts.len() > 1 && body.session_id.is_some() {
        return Err(ApiError::field("prompt", "a session holds one prompt; send one or leave the session out"));
    }
    let mut generation = generation(body.shared(), model.defaults().generation())?;
    generation.max_tokens = Some(generation.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS));
    generation.logprobs = body.logprobs;
    let options = body.poncho.take().unwrap_or_default();
    let origin = if suffix.is_some() { PromptOrigin::Composed } else { PromptOrigin::Written };
    options.apply(&mut generation, origin)?;
    let mut echo = Vec::new();
    for prompt in prompts.iter().filter(|_| body.echo.unwrap_or(false)) {
        echo.push(match prompt {
            Input::Text(text) => text.clone(),
            Input::Tokens(tokens) => model.detokenize(tokens.clone(), SpecialText::Render).await?,
        });
    }
    let include_usage = body.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
    warn_of_headers(&mut warnings, &headers);
    warn_of_model(&mut warnings, &model);
    let reporting = Reporting::new(&app, options.reports || poncho_header(&headers)?, warnings);
    let call = Call { origin: Origin { app, model, owner, arrived }, n, reporting, include_usage };
    let prompt = |input: Input| match &suffix {
        Some(suffix) => Prompt::Fill { before: input, after: suffix.clone() },
        None => Prompt::Written(input),
    };
    let asked = prompts.into_iter().map(|input| Generate::new(prompt(input), generation.clone())).collect();
    let in_pieces = body.stream.unwrap_or(false);
    let replies = call.start(asked, in_pieces).await?;
    let texts = Texts { echo, n: usize::try_from(n).unwrap_or(1), wants_logprobs: body.logprobs.is_some() };
    let envelope = envelope(&call.origin.model, "cmpl-", TextChoice::OBJECT);
    if in_pieces {
        let keep_alive = call.origin.app.config.stream_keep_alive;
        let pieces = Pieces::new(call, envelope, replies.len());
        let events = TextEvents { pieces, texts, offsets: BTreeMap::new() };
        return sse::respond(replies, events, keep_alive).await;
    }
    let (finished, totals) = call.collect(replies).await?;
    let choices: Vec<TextChoice> = finished
        .iter()
        .enumerate()
        .map(|(index, reply)| TextChoice {
            index,
            text: format!("{}{}", texts.echo(index), reply.output.content),
            logprobs: texts.wants_logprobs.then(|| text_logprobs(&reply.logprobs, &mut 0)),
            finish_reason: Some(finish_word(reply.finish)),
        })
        .collect();
    Ok(totals.answer(&envelope, &choices))
}

fn check_options(body: &CompletionRequestBody) -> Result<(), ApiError> {
    if body.best_of.is_some_and(|best_of| best_of != body.n.unwrap_or(1)) {
        return Err(ApiError::field("best_of", "replies are not ranked; leave it out or set it to n"));
    }
    if body.logprobs.is_some_and(|count| count > MAX_LOGPROBS) {
        return Err(ApiError::field("logprobs", format!("it may be at most {MAX_LOGPROBS}")));
    }
    if body.logprobs.is_some() && body.echo.unwrap_or(false) {
        return Err(ApiError::field(
            "echo",
            "log probabilities of the prompt are not kept; leave echo or logprobs out",
        ));
    }
    Ok(())
}

/// What the choices' texts are made of.
struct Texts {
    /// The prompts, if they are wanted before the replies.
    echo: Vec<String>,
    n: usize,
    wants_logprobs: bool,
}

impl Texts {
    fn echo(&self, index: usize) -> &str {
        index.checked_div(self.n).and_then(|prompt| self.echo.get(prompt)).map_or("", String::as_str)
    }
}

/// Log probabilities in the shape of completions; `offset` counts characters of the text.
fn text_logprobs(logprobs: &[TokenLogprob], offset: &mut usize) -> TextLogprobs {
    let mut out = TextLogprobs::default();
    for logprob in logprobs {
        let token = token_text(&logprob.token);
        out.text_offset.push(*offset);
        *offset += token.chars().count();
        out.tokens.push(token);
        out.token_logprobs.push(finite(logprob.token.logprob));
        out.top_logprobs.push(logprob.top.iter().map(|top| (token_text(top), finite(top.logprob))).collect());
    }
    out
}

/// The pieces of a stream.
struct TextEvents {
    pieces: Pieces,
    texts: Texts,
    /// Characters sent of each reply.
    offsets: BTreeMap<usize, usize>,
}

impl TextEvents {
    fn piece(&mut self, index: usize, delta: &Delta) -> TextChoice {
        let is_new = !self.offsets.contains_key(&index);
        let echo = if is_new { self.texts.echo(index) } else { "" };
        let text = format!("{echo}{}", delta.content);
        let offset = self.offsets.entry(index).or_default();
        let wanted = self.texts.wants_logprobs && !delta.logprobs.is_empty();
        let logprobs = wanted.then(|| text_logprobs(&delta.logprobs, offset));
        TextChoice { index, text, logprobs, finish_reason: None }
    }
}

impl Events for TextEvents {
    fn waiting(&mut self, heartbeat: Heartbeat) -> Vec<Frame> {
        let index = self.pieces.unfinished();
        let choice = TextChoice { index, text: String::new(), logprobs: None, finish_reason: None };
        vec![self.pieces.waiting(choice, heartbeat)]
    }

    fn delta(&mut self, index: usize, delta: Delta) -> Vec<Frame> {
        let piece = self.piece(index, &delta);
        vec![self.pieces.piece(piece)]
    }

    fn done(&mut self, index: usize, finished: Box<Finished>) -> Vec<Frame> {
        self.pieces.ended(index, &finished);
        let mut last = self.piece(index, &finished.rest);
        last.finish_reason = Some(finish_word(finished.finish));
        vec![self.pieces.last(last)]
    }

    fn end(&mut self) -> Vec<Frame> {
        self.pieces.end()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Frame> {
        Pieces::failed(error)
    }
}
