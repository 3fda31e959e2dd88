//! `POST /infill`: the text of a gap, as editors ask llama.cpp's server for it.
//!
//! `prompt` is what the user has typed in the gap, so it ends the text before it. Texts of `input_extra` come first, as
//! snippets. The model needs marks for gaps (`special.fill`); one without them refuses.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use poncho_api::{Delta, Finish, Finished, Generate, Input, Mode, Prompt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::dialects::openai::convert::generation;
use crate::dialects::openai::types::Shared;
use crate::dialects::shared::{
    Origin, PonchoReport, Reporting, milliseconds, poncho_header, warn_of_headers, warn_of_model,
};
use crate::error::{ApiError, Family};
use crate::forms::{Texts, left_out};
use crate::http::app::SharedApp;
use crate::http::body::{Checked, Json, Object};
use crate::http::heartbeat::Heartbeat;
use crate::http::sse::{self, Events, Frame};
use crate::http::warnings::{Ignored, Warnings};
use crate::owner::Owner;

/// What separates the snippets of `input_extra`, as llama.cpp's server has it.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

const SAMPLERS: &str = "the samplers and their order are fixed; leave it out";
const TIMES: &str = "replies have no time limit of their own; use n_predict";

/// Fields of llama-server that have no effect here.
pub(crate) const IGNORED: [Ignored; 9] = [
    Ignored::new("samplers", SAMPLERS),
    Ignored::new("cache_prompt", "every prompt is cached by its own tokens; leave it out").but(&["true"]),
    Ignored::new("id_slot", "sequences are chosen by what they hold; leave it out").but(&["-1"]),
    Ignored::new("t_max_predict_ms", TIMES),
    Ignored::new("t_max_prompt_ms", TIMES),
    Ignored::new("n_indent", "lines are not indented; leave it out").but(&["0"]),
    Ignored::new("response_fields", "all fields are sent; leave it out"),
    Ignored::new("dry_multiplier", SAMPLERS),
    Ignored::new("timings_per_token", "timings come at the end; leave it out").but(&["false"]),
];

/// What comes in.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "InfillRequest")]
pub(crate) struct InfillBody {
    model: Option<String>,
    input_prefix: Option<String>,
    input_suffix: Option<String>,
    prompt: Option<String>,
    input_extra: Option<Vec<Object<Extra>>>,
    n_predict: Option<i64>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    seed: Option<i64>,
    stop: Option<Texts>,
    stream: Option<bool>,
}

/// A text from elsewhere in the project.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "InfillExtra")]
struct Extra {
    text: String,
    filename: Option<String>,
}

/// Fills a gap.
pub(crate) async fn create(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    Checked { body, unknown }: Checked<InfillBody>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let model = app.models.resolve_or_only(body.model.as_deref()).await?;
    let shared = Shared {
        // A negative number is llama-server's "until it ends".
        max_tokens: body.n_predict.and_then(|count| u32::try_from(count).ok()),
        temperature: body.temperature,
        top_p: body.top_p,
        top_k: body.top_k,
        min_p: body.min_p,
        seed: body.seed.filter(|seed| *seed >= 0),
        stop: body.stop.clone(),
        ..Shared::default()
    };
    let mut request = generation(shared, model.defaults().generation())?;
    // How editors warm the cache with their snippets while nobody types.
    if body.n_predict == Some(0) {
        request.mode = Mode::PrefillOnly;
    }
    let mut warnings = Warnings::about(unknown, &IGNORED);
    warn_of_headers(&mut warnings, &headers);
    warn_of_model(&mut warnings, &model);
    let reporting = Reporting::new(&app, poncho_header(&headers)?, warnings);
    let prompt = Prompt::Fill { before: Input::Text(before(&body)), after: body.input_suffix.unwrap_or_default() };
    let mut generate = Generate::new(prompt, request);
    generate.in_pieces = body.stream.unwrap_or(false);
    let in_pieces = generate.in_pieces;
    let (keep_alive, id) = (app.config.stream_keep_alive, model.id().to_owned());
    let context = model.limits().context;
    let mut replies = Origin { app, model, owner, arrived }.start(vec![generate]).await?;
    let answer = Filled { id, context, reporting };
    if in_pieces {
        return sse::respond(replies, answer, keep_alive).await;
    }
    let reply = replies.pop().ok_or(ApiError::Internal { doing: "started a reply" })?;
    let finished = reply.finish().await?;
    let content = finished.output.content.clone();
    Ok(Json(answer.whole(&content, &finished)).into_response())
}

/// The text before the gap.
fn before(body: &InfillBody) -> String {
    let mut text = String::new();
    for extra in body.input_extra.iter().flatten() {
        text.push_str(SNIPPET);
        if let Some(name) = extra.filename.as_deref().filter(|name| !name.is_empty()) {
            text.push_str(name);
            text.push('\n');
        }
        text.push_str(&extra.text);
    }
    if !text.is_empty() {
        text.push_str(SNIPPET);
    }
    text.push_str(body.input_prefix.as_deref().unwrap_or_default());
    text.push_str(body.prompt.as_deref().unwrap_or_default());
    text
}

/// Writes a reply, whole or in pieces.
struct Filled {
    id: String,
    context: usize,
    reporting: Reporting,
}

impl Filled {
    /// The whole answer, or the last event with what the pieces before have not said.
    fn whole(&self, content: &str, finished: &Finished) -> Value {
        let completion = &finished.completion;
        json!(InfillAnswer {
            index: 0,
            content,
            stop: true,
            model: &self.id,
            tokens_predicted: completion.completion_tokens,
            tokens_evaluated: completion.prompt_tokens,
            tokens_cached: completion.context_tokens.len(),
            truncated: false,
            stop_type: match (finished.finish, &completion.stop_sequence) {
                (Finish::Length, _) => "limit",
                (_, Some(_)) => "word",
                (_, None) => "eos",
            },
            stopping_word: completion.stop_sequence.as_deref().unwrap_or_default(),
            generation_settings: GenerationSettings { n_ctx: self.context },
            timings: InfillTimings {
                cache_n: completion.cached_tokens,
                prompt_n: completion.new_tokens,
                prompt_ms: milliseconds(completion.prefill_time),
                prompt_per_second: per_second(completion.new_tokens, completion.prefill_time),
                predicted_n: completion.completion_tokens,
                predicted_ms: milliseconds(completion.generation_time),
                predicted_per_second: per_second(completion.completion_tokens, completion.generation_time),
            },
            poncho: self.reporting.of(finished),
        })
    }
}

/// What goes out, in llama-server's words.
#[derive(Serialize, JsonSchema)]
#[schemars(transform = left_out)]
pub(crate) struct InfillAnswer<'a> {
    index: usize,
    content: &'a str,
    stop: bool,
    model: &'a str,
    tokens_predicted: usize,
    tokens_evaluated: usize,
    tokens_cached: usize,
    truncated: bool,
    #[schemars(extend("enum" = ["limit", "word", "eos"]))]
    stop_type: &'static str,
    stopping_word: &'a str,
    generation_settings: GenerationSettings,
    timings: InfillTimings,
    #[serde(skip_serializing_if = "Option::is_none")]
    poncho: Option<PonchoReport>,
}

#[derive(Serialize, JsonSchema)]
struct GenerationSettings {
    n_ctx: usize,
}

#[derive(Serialize, JsonSchema)]
struct InfillTimings {
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_second: f64,
}

/// A speed; 0 where nothing was measured, because clients divide and print it.
fn per_second(count: usize, time: Duration) -> f64 {
    let speed = count as f64 / time.as_secs_f64();
    if speed.is_finite() { speed } else { 0.0 }
}

impl Events for Filled {
    fn waiting(&mut self, heartbeat: Heartbeat) -> Vec<Frame> {
        let event = json!({"index": 0, "content": "", "stop": false, "poncho": PonchoReport::from(heartbeat)});
        vec![event.to_string().into()]
    }

    fn delta(&mut self, _index: usize, delta: Delta) -> Vec<Frame> {
        vec![json!({"index": 0, "content": delta.content, "stop": false}).to_string().into()]
    }

    fn done(&mut self, _index: usize, finished: Box<Finished>) -> Vec<Frame> {
        vec![self.whole(&finished.rest.content, &finished).to_string().into()]
    }

    fn end(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![error.body(Family::OpenAi).to_string().into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_ends_the_text_before_the_gap() {
        let body: InfillBody = serde_json::from_value(json!({
            "input_extra": [{"filename": "a.rs", "text": "fn a() {}"}, {"text": "fn b() {}"}],
            "input_prefix": "fn main() {\n", "prompt": "    a(", "input_suffix": "\n}"
        }))
        .unwrap();
        let expected = format!("{SNIPPET}a.rs\nfn a() {{}}{SNIPPET}fn b() {{}}{SNIPPET}fn main() {{\n    a(");
        assert_eq!(before(&body), expected);
        assert_eq!(per_second(5, Duration::ZERO), 0.0);
    }
}
