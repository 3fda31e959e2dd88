//! `POST /api/generate`: a single prompt, in the model's template, in one that the request brings, as it is, or around
//! a gap.
//!
//! Texts of a client never become special tokens unless it asked for `raw`: a client that writes a whole prompt
//! writes its marks too.

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use poncho_api::{ChatTurn, Generate, Grammar, GrammarSource, Input, Prompt, Request};
use serde_json::json;
use tokio::time::Instant;

use super::call::{Call, generation, needs_thinking, unload};
use super::convert::{check_images, schema, thinking};
use super::ignored;
use super::lines::{Endpoint, ReplyLines};
use super::types::{GenerateBody, Think};
use crate::config::KeepAlive;
use crate::dialects::poncho_options::PromptOrigin;
use crate::dialects::shared::Origin;
use crate::dialects::template_variables::warn_of_variables;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Checked;
use crate::models::served::ServedModel;
use crate::models::tags;
use crate::models::template::{Template, Values};
use crate::owner::Owner;

/// Answers a prompt; without one it only loads or unloads the model.
pub(crate) async fn create(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    Checked { body, unknown }: Checked<GenerateBody>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let name = tags::required(body.model.as_deref())?.to_owned();
    let shared = body.shared();
    let endpoint = Endpoint::Generate { tells_context: !body.raw.unwrap_or(false) };
    if shared.keep_alive.is_some_and(KeepAlive::is_over) && text(body.prompt.as_ref()).is_empty() {
        return unload(&app, ReplyLines::new(&name, endpoint, arrived), ignored::of_reply(unknown)).await;
    }
    let model = app.models.resolve_keeping(&name, shared.keep_alive).await?;
    let read = read(&body, &model)?;
    let before = context(&body, &model)?;
    let json_schema = schema(shared.format)?;
    let mut request = Request { tokens: before, ..generation(&shared, &headers, model.defaults().generation())? };
    let is_written = matches!(read, Read::Plain(Prompt::Written(_)));
    let origin = if is_written { PromptOrigin::Written } else { PromptOrigin::Composed };
    shared.poncho.apply(&mut request, origin)?;
    let mut warnings = ignored::of_reply(unknown);
    if let Read::Plain(prompt) = &read {
        let advice = "thinking is part of the model's template, and this prompt does not use it; leave it out";
        warnings.ignored_if(shared.think.is_some(), "think", advice);
        let drops_system = matches!(prompt, Prompt::Fill { .. }) && !text(body.system.as_ref()).is_empty();
        warnings.ignored_if(drops_system, "system", "the text around a gap has no system prompt; leave it out");
    }
    let asked = asked(read, json_schema, shared.think, request);
    warn_of_variables(&mut warnings, &model, &asked, "think").await;
    let reporting = ignored::reporting(&app, &model, &shared, &headers, warnings)?;
    let call = Call::new(Origin { app, model, owner, arrived }, &name, endpoint, &shared, reporting);
    if text(body.prompt.as_ref()).is_empty() {
        return Ok(call.idle());
    }
    call.answer(asked).await.map_err(|error| error.renamed("messages", "prompt").renamed("suffix", "prompt"))
}

/// The prompt of a request, to be looked at.
pub(crate) fn prompt(body: &GenerateBody, model: &ServedModel, base: &Request) -> Result<Generate, ApiError> {
    if text(body.prompt.as_ref()).is_empty() {
        return Err(ApiError::field("prompt", "it is empty"));
    }
    let shared = body.shared();
    let request = Request { tokens: context(body, model)?, ..base.clone() };
    Ok(asked(read(body, model)?, schema(shared.format)?, shared.think, request))
}

/// What becomes the prompt.
enum Read {
    /// A message, in the model's template.
    Message { system: String, text: String },
    /// Used as it is.
    Plain(Prompt),
}

fn text(field: Option<&String>) -> &str {
    field.map_or("", String::as_str)
}

fn read(body: &GenerateBody, model: &ServedModel) -> Result<Read, ApiError> {
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
        return Ok(Read::Plain(Prompt::Parts(parsed.render(Values { system, prompt, suffix }))));
    }
    if !suffix.is_empty() {
        if model.info().special.fill.is_none() {
            let reason = "this model does not support insert: its vocabulary has no marks for a gap; leave it out";
            return Err(ApiError::field("suffix", reason));
        }
        let (before, after) = (Input::Text(prompt.to_owned()), suffix.to_owned());
        return Ok(Read::Plain(Prompt::Fill { before, after }));
    }
    if body.raw.unwrap_or(false) {
        return Ok(Read::Plain(Prompt::Written(Input::Text(prompt.to_owned()))));
    }
    Ok(Read::Message { system: system.to_owned(), text: prompt.to_owned() })
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

/// The reply that is asked for.
fn asked(read: Read, json_schema: Option<String>, think: Option<Think>, request: Request) -> Generate {
    match read {
        Read::Message { system, text } => {
            let system = Some(json!({"role": "system", "content": system})).filter(|_| !system.is_empty());
            let (thinking, template_kwargs) = thinking(think);
            let turn = ChatTurn {
                messages: system.into_iter().chain([json!({"role": "user", "content": text})]).collect(),
                json_schema,
                template_kwargs,
                needs_thinking: needs_thinking(think),
                ..ChatTurn::default()
            };
            Generate::chat(turn, Request { thinking, ..request })
        }
        Read::Plain(prompt) => {
            let source = json_schema.map(GrammarSource::JsonSchema);
            let grammar = source.map(|source| Grammar { source, triggers: Vec::new(), accepted: Vec::new() });
            Generate::new(prompt, Request { grammar, ..request })
        }
    }
}
