//! `POST /api/generate`: a single prompt, in the model's template, in one that the request brings, as it is, or around
//! a gap.
//!
//! Texts of a client never become special tokens unless it asked for `raw`: whoever writes a whole prompt writes its
//! marks too.

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use poncho_engine::backend::TokenizeMode;
use poncho_engine::{EngineError, Grammar, GrammarSource};
use serde_json::json;
use tokio::time::Instant;

use super::call::{Call, check_thinking, generation, unload};
use super::convert::{check_images, schema, thinking};
use super::lines::{Endpoint, ReplyLines};
use super::names;
use super::template::{Part, Template, Values};
use super::types::{GenerateBody, Think};
use crate::chat::turn::{ChatTurn, Generation, Prepared, prepare_chat, prepare_text};
use crate::dialects::shared::Origin;
use crate::http::app::SharedApp;
use crate::http::auth::Owner;
use crate::http::body::Json;
use crate::http::error::ApiError;
use crate::models::keep_alive::KeepAlive;
use crate::models::served::ServedModel;

/// Answers a prompt; without one it only loads or unloads the model.
pub(crate) async fn create(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    Json(body): Json<GenerateBody>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let name = names::required(body.model.as_deref())?.to_owned();
    let shared = body.shared();
    let endpoint = Endpoint::Generate { tells_context: !body.raw.unwrap_or(false) };
    if shared.keep_alive.is_some_and(KeepAlive::is_over) && text(body.prompt.as_ref()).is_empty() {
        return unload(&app, ReplyLines::new(&name, endpoint, arrived)).await;
    }
    let model = app.models.resolve_keeping(&name, shared.keep_alive).await?;
    let asked = Asked {
        prompt: prompt(&body, &model)?,
        context: context(&body, &model)?,
        json_schema: schema(shared.format)?,
        think: shared.think,
        generation: generation(&shared, &headers, model.defaults().generation())?,
    };
    let call = Call::new(Origin { app, model, owner, arrived }, &name, endpoint, &shared, &headers);
    if text(body.prompt.as_ref()).is_empty() {
        return Ok(call.idle());
    }
    call.answer(move |model| asked.prepare(model, &name)).await
}

/// What becomes the prompt.
enum Prompt {
    /// A message, in the model's template.
    Message { system: String, text: String },
    /// Written with the request's template.
    Parts(Vec<Part>),
    /// Used as it is.
    Raw(String),
    /// Around a gap.
    Fill { before: String, after: String },
}

struct Asked {
    prompt: Prompt,
    /// The tokens of an earlier reply that go before.
    context: Vec<u32>,
    json_schema: Option<String>,
    think: Option<Think>,
    generation: Generation,
}

fn text(field: Option<&String>) -> &str {
    field.map_or("", String::as_str)
}

fn prompt(body: &GenerateBody, model: &ServedModel) -> Result<Prompt, ApiError> {
    check_images("images", body.images.as_deref())?;
    let [prompt, suffix, system, template] =
        [&body.prompt, &body.suffix, &body.system, &body.template].map(|field| text(field.as_ref()));
    if body.raw.unwrap_or(false) {
        let beside = [("template", template), ("system", system)].into_iter().find(|(_, text)| !text.is_empty());
        let beside = beside.map(|(name, _)| name).or_else(|| body.context.as_ref().map(|_| "context"));
        if let Some(name) = beside {
            return Err(ApiError::field(name, "raw mode does not support template, system, or context"));
        }
    }
    if !template.is_empty() {
        let parsed = Template::parse(template)?;
        if !suffix.is_empty() && !parsed.has_suffix() {
            return Err(ApiError::field("suffix", "the template has no place for it; write {{ .Suffix }} there"));
        }
        let system = if system.is_empty() { model.defaults().system().unwrap_or_default() } else { system };
        return Ok(Prompt::Parts(parsed.render(Values { system, prompt, suffix })));
    }
    if !suffix.is_empty() {
        if model.info().special.fill.is_none() {
            let reason = "this model does not support insert: its vocabulary has no marks for a gap; leave it out";
            return Err(ApiError::field("suffix", reason));
        }
        return Ok(Prompt::Fill { before: prompt.to_owned(), after: suffix.to_owned() });
    }
    if body.raw.unwrap_or(false) {
        return Ok(Prompt::Raw(prompt.to_owned()));
    }
    Ok(Prompt::Message { system: system.to_owned(), text: prompt.to_owned() })
}

fn context(body: &GenerateBody, model: &ServedModel) -> Result<Vec<u32>, ApiError> {
    let tokens = body.context.as_ref().map(|tokens| tokens.0.clone()).unwrap_or_default();
    let vocab = model.limits().vocab;
    match tokens.iter().position(|token| *token >= vocab) {
        Some(at) => {
            let reason = format!("the vocabulary has {vocab} tokens; send back what a reply of this model held");
            Err(ApiError::field(format!("context[{at}]"), reason))
        }
        None => Ok(tokens),
    }
}

impl Asked {
    fn prepare(&self, model: &ServedModel, name: &str) -> Result<Prepared, ApiError> {
        let mut prepared = match &self.prompt {
            Prompt::Message { system, text } => self.prepare_message(model, name, system, text)?,
            Prompt::Parts(parts) => self.prepare_tokens(part_tokens(model, parts).map_err(in_prompt)?),
            Prompt::Raw(text) => self.prepare_tokens(raw_tokens(model, text).map_err(in_prompt)?),
            Prompt::Fill { before, after } => {
                self.prepare_tokens(fill_tokens(model, before, after).map_err(in_prompt)?)
            }
        };
        if !self.context.is_empty() {
            go_on(model, &self.context, &mut prepared);
        }
        Ok(prepared)
    }

    fn prepare_message(&self, model: &ServedModel, name: &str, system: &str, text: &str) -> Result<Prepared, ApiError> {
        check_thinking(model, name, self.think)?;
        let system = Some(json!({"role": "system", "content": system})).filter(|_| !system.is_empty());
        let (thinking, template_kwargs) = thinking(self.think);
        let turn = ChatTurn {
            messages: system.into_iter().chain([json!({"role": "user", "content": text})]).collect(),
            json_schema: self.json_schema.clone(),
            template_kwargs,
            thinking,
            generation: self.generation.clone(),
            ..ChatTurn::default()
        };
        prepare_chat(model, &turn).map_err(|error| error.renamed("messages", "prompt"))
    }

    fn prepare_tokens(&self, tokens: Vec<u32>) -> Prepared {
        let mut prepared = prepare_text(tokens, &self.generation);
        prepared.request.grammar = self.json_schema.clone().map(|schema| Grammar {
            source: GrammarSource::JsonSchema(schema),
            triggers: Vec::new(),
            accepted: Vec::new(),
        });
        prepared
    }
}

/// Puts the tokens of an earlier reply before a prompt.
fn go_on(model: &ServedModel, context: &[u32], prepared: &mut Prepared) {
    let request = &mut prepared.request;
    let bos = model.info().special.bos;
    // Only the start of a text has the mark for it.
    let skipped = usize::from(bos.is_some() && request.tokens.first().copied() == bos);
    let new = request.tokens.get(skipped..).unwrap_or_default();
    request.tokens = [context, new].concat();
    for hint in &mut request.boundary_hints {
        *hint = (*hint + context.len()).saturating_sub(skipped);
    }
}

fn in_prompt(error: EngineError) -> ApiError {
    ApiError::from(error).in_field("prompt")
}

fn raw_tokens(model: &ServedModel, text: &str) -> Result<Vec<u32>, EngineError> {
    let mode = TokenizeMode { add_special: true, parse_special: true };
    model.tokenize_within(text, mode, model.limits().context)
}

fn part_tokens(model: &ServedModel, parts: &[Part]) -> Result<Vec<u32>, EngineError> {
    model.check_size(parts.iter().map(|part| part.text.as_str()), model.limits().context)?;
    let mut tokens = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        let mode = TokenizeMode { add_special: place == 0, parse_special: !part.is_input };
        tokens.extend(model.tokenize(&part.text, mode)?);
    }
    Ok(tokens)
}

/// The text before the gap, the text after it, and the place where the model goes on.
fn fill_tokens(model: &ServedModel, before: &str, after: &str) -> Result<Vec<u32>, EngineError> {
    let info = model.info();
    let marks = info.special.fill.ok_or_else(|| EngineError::Unsupported { what: "suffix".to_owned() })?;
    model.check_size([before, after], model.limits().context)?;
    let plain = TokenizeMode { add_special: false, parse_special: false };
    let mut tokens: Vec<u32> = info.special.bos.filter(|_| info.add_bos).into_iter().collect();
    tokens.push(marks.prefix);
    tokens.extend(model.tokenize(before, plain)?);
    tokens.push(marks.suffix);
    tokens.extend(model.tokenize(after, plain)?);
    tokens.push(marks.middle);
    Ok(tokens)
}
