//! `POST /v1/completions`: prompts that are used as they are, without a template.
//!
//! A text prompt is tokenized with special tokens recognised: whoever writes a whole prompt writes its marks too.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use poncho_engine::backend::{SpecialText, TokenizeMode};
use poncho_engine::{Model, TokenLogprob};
use serde_json::Value;
use tokio::time::Instant;

use super::call::{Call, Totals, model_name, poncho_header, session_header};
use super::convert::{choices, envelope, finite, generation, token_text};
use super::types::{Answer, CompletionRequestBody, Envelope, TextChoice, TextLogprobs};
use crate::app::SharedApp;
use crate::body::Json;
use crate::chat::prepare_text;
use crate::error::{ApiError, Family};
use crate::reply::{Delta, Finished};
use crate::served::ServedModel;
use crate::sse::{self, Events};

/// What OpenAI's reference says.
const DEFAULT_MAX_TOKENS: u32 = 16;
/// Each prompt is a request of its own; more of them belong into more calls.
const MAX_PROMPTS: usize = 64;
/// The most alternatives of this endpoint, as OpenAI's reference has it.
const MAX_LOGPROBS: u8 = 5;

/// A prompt as it came.
#[derive(Debug, PartialEq, Eq)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl Prompt {
    fn tokens(&self, model: &Model) -> Result<Vec<u32>, ApiError> {
        match self {
            Self::Text(text) => Ok(model.tokenize(text, TokenizeMode { add_special: true, parse_special: true })?),
            Self::Tokens(tokens) => Ok(tokens.clone()),
        }
    }

    fn text(&self, model: &Model) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Tokens(tokens) => model.detokenize(tokens, SpecialText::Render),
        }
    }
}

/// Goes on with some prompts.
pub(crate) async fn create(
    State(app): State<SharedApp>,
    headers: HeaderMap,
    Json(mut body): Json<CompletionRequestBody>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    if body.session_id.is_none() {
        body.session_id = session_header(&headers)?;
    }
    let model = app.models.resolve(model_name(body.model.as_deref())?)?;
    let n = choices(body.n, body.session_id.as_deref())?;
    check_options(&body)?;
    let prompts = prompts(&body.prompt)?;
    if prompts.len() > 1 && body.session_id.is_some() {
        return Err(ApiError::field("prompt", "a session holds one prompt; send one or leave the session out"));
    }
    let mut generation = generation(&body.shared())?;
    generation.max_tokens = Some(body.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS));
    generation.logprobs = body.logprobs;
    let echo: Vec<String> = if body.echo.unwrap_or(false) {
        prompts.iter().map(|prompt| prompt.text(&model)).collect()
    } else {
        Vec::new()
    };
    let include_usage = body.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
    let poncho = body.poncho.unwrap_or(false) || poncho_header(&headers);
    let call = Call { app, model, arrived, n, poncho, include_usage };
    let prepare = move |model: &ServedModel| {
        prompts.iter().map(|prompt| Ok(prepare_text(prompt.tokens(model)?, &generation))).collect()
    };
    let replies = call.start(prepare).await?;
    let texts = Texts { echo, n: usize::try_from(n).unwrap_or(1), wants_logprobs: body.logprobs.is_some() };
    let envelope = envelope(&call.model, "cmpl-", "text_completion");
    if body.stream.unwrap_or(false) {
        let keep_alive = call.app.config.stream_keep_alive;
        let left = replies.len();
        let offsets = BTreeMap::new();
        let events = TextEvents { call, envelope, texts, offsets, left, totals: Totals::default() };
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
            finish_reason: Some(reply.finish.as_openai()),
        })
        .collect();
    let answer = Answer {
        envelope: &envelope,
        choices: &choices,
        usage: Some(Some(totals.usage)),
        poncho: totals.poncho.as_ref(),
    };
    Ok(Json(answer).into_response())
}

fn check_options(body: &CompletionRequestBody) -> Result<(), ApiError> {
    if body.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::field("suffix", "filling in the middle is not supported; leave it out"));
    }
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

/// Reads the four shapes of a prompt.
fn prompts(prompt: &Value) -> Result<Vec<Prompt>, ApiError> {
    let shape = "it must be a string, a list of strings, a list of tokens or a list of token lists";
    let prompts = match prompt {
        Value::String(text) => vec![Prompt::Text(text.clone())],
        Value::Array(items) => match items.first() {
            Some(Value::Number(_)) => vec![Prompt::Tokens(tokens("prompt", items)?)],
            Some(_) => items.iter().enumerate().map(|(at, item)| element(at, item)).collect::<Result<_, _>>()?,
            None => return Err(ApiError::field("prompt", "it is empty")),
        },
        _ => return Err(ApiError::field("prompt", shape)),
    };
    if prompts.len() > MAX_PROMPTS {
        return Err(ApiError::field("prompt", format!("it has {} prompts and may have {MAX_PROMPTS}", prompts.len())));
    }
    let empty = prompts.iter().any(|prompt| match prompt {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Tokens(tokens) => tokens.is_empty(),
    });
    if empty { Err(ApiError::field("prompt", "it is empty")) } else { Ok(prompts) }
}

fn element(at: usize, item: &Value) -> Result<Prompt, ApiError> {
    match item {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(items) => Ok(Prompt::Tokens(tokens(&format!("prompt[{at}]"), items)?)),
        _ => Err(ApiError::field(format!("prompt[{at}]"), "it must be a string or a list of tokens")),
    }
}

fn tokens(field: &str, items: &[Value]) -> Result<Vec<u32>, ApiError> {
    let read = |(at, item): (usize, &Value)| {
        let token = item.as_u64().and_then(|token| u32::try_from(token).ok());
        token.ok_or_else(|| ApiError::field(format!("{field}[{at}]"), "it is no token"))
    };
    items.iter().enumerate().map(read).collect()
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
    call: Call,
    envelope: Envelope,
    texts: Texts,
    /// Characters sent of each reply.
    offsets: BTreeMap<usize, usize>,
    /// Replies that have not ended.
    left: usize,
    totals: Totals,
}

impl TextEvents {
    fn chunk(&self, choices: &[TextChoice], is_last: bool) -> String {
        let answer = Answer {
            envelope: &self.envelope,
            choices,
            usage: self.call.include_usage.then_some(Some(self.totals.usage).filter(|_| choices.is_empty())),
            poncho: self.totals.poncho.as_ref().filter(|_| is_last),
        };
        serde_json::to_string(&answer).unwrap_or_default()
    }

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
    fn delta(&mut self, index: usize, delta: Delta) -> Vec<String> {
        let piece = self.piece(index, &delta);
        vec![self.chunk(&[piece], false)]
    }

    fn done(&mut self, index: usize, finished: Box<Finished>) -> Vec<String> {
        self.totals.add(&self.call, index, &finished);
        self.left = self.left.saturating_sub(1);
        let mut last = self.piece(index, &finished.rest);
        last.finish_reason = Some(finished.finish.as_openai());
        vec![self.chunk(&[last], self.left == 0 && !self.call.include_usage)]
    }

    fn end(&mut self) -> Vec<String> {
        let usage = self.call.include_usage.then(|| self.chunk(&[], true));
        usage.into_iter().chain(["[DONE]".to_owned()]).collect()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<String> {
        vec![error.body(Family::OpenAi).to_string()]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_prompt_has_four_shapes_and_no_other() {
        assert_eq!(prompts(&json!("a")).unwrap(), [Prompt::Text("a".into())]);
        assert_eq!(prompts(&json!(["a", "b"])).unwrap().len(), 2);
        assert_eq!(prompts(&json!([1, 2])).unwrap(), [Prompt::Tokens(vec![1, 2])]);
        assert_eq!(prompts(&json!([[1], "b"])).unwrap(), [Prompt::Tokens(vec![1]), Prompt::Text("b".into())]);
        for (wrong, field) in [
            (json!(5), "prompt: "),
            (json!([]), "prompt: "),
            (json!(""), "prompt: "),
            (json!([[]]), "prompt: "),
            (json!([1, -2]), "prompt[1]: "),
            (json!([1, "a"]), "prompt[1]: "),
            (json!(["a", {}]), "prompt[1]: "),
            (json!([[1, 2.5]]), "prompt[0][1]: "),
            (json!([4_294_967_296_u64]), "prompt[0]: "),
            (json!(vec!["a"; MAX_PROMPTS + 1]), "prompt: "),
        ] {
            let said = prompts(&wrong).unwrap_err().to_string();
            assert!(said.starts_with(field), "{wrong}: {said}");
        }
    }
}
