//! `POST /api/cache/explain`: why a prompt is not cached, for a request body of any dialect.
//!
//! The dialect comes from the query or from the fields of the body; its own code then makes the prompt, so that what is
//! explained is what would be computed. Errors have OpenAI's shape. With several API keys, each sees its own rows only:
//! no prompt text but the caller's own leaves here.

use axum::Extension;
use axum::extract::State;
use axum::http::Uri;
use poncho_api::{
    Around, CauseWords, Explained, ExplainedRow, Generate, MessagePlace, Prompt, RemotePrefix, Request, Resumption,
};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::dialects::anthropic::convert::asked as anthropic_prompt;
use crate::dialects::anthropic::ignored as anthropic_ignored;
use crate::dialects::ollama::{chat as ollama_chat, generate as ollama_generate, ignored as ollama_ignored};
use crate::dialects::openai::convert::chat_turn;
use crate::dialects::openai::ignored as openai_ignored;
use crate::dialects::openai::types::CompletionRequestBody;
use crate::dialects::query;
use crate::dialects::responses::{create as responses, ignored as responses_ignored};
use crate::dialects::shared::{WithWarnings, warn_of_model};
use crate::dialects::template_variables::warn_of_variables;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::{Json, JsonBytes, parse};
use crate::http::unknown_fields::{self, UnknownField};
use crate::http::warnings::{Ignored, Warnings};
use crate::models::served::ServedModel;
use crate::owner::Owner;
use crate::responses::store::OwnResponses;

/// Where a prompt differs from the most similar cached one, and what to do about it.
pub(crate) async fn explain_miss(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    uri: Uri,
    body: JsonBytes,
) -> Result<Json<WithWarnings<Value>>, ApiError> {
    let shape: Shape = parse(&body.0)?;
    let dialect = match named(&uri)? {
        Some(dialect) => dialect,
        None => shape.dialect()?,
    };
    let model = app.models.resolve_or_only(shape.model.as_deref()).await?;
    let stored = OwnResponses { store: &app.responses, owner };
    let (asked, warnings) = dialect.checked_prompt(&body.0, &shape, &model, stored, Vec::new()).await?;
    let model = model.asked_by(app.keys.tenant(owner));
    let mut answer = explained(model.id(), model.explained(asked, None).await?);
    hide_stored_text(&mut answer, app.keys.sees_rows_text(owner));
    Ok(Json(WithWarnings::new(&app, answer, warnings)))
}

/// The dialects of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
    Responses,
    Ollama,
}

/// The dialect that the query names.
fn named(uri: &Uri) -> Result<Option<Dialect>, ApiError> {
    match query::value(uri, "dialect").as_deref() {
        None => Ok(None),
        Some("openai") => Ok(Some(Dialect::OpenAi)),
        Some("anthropic") => Ok(Some(Dialect::Anthropic)),
        Some("responses") => Ok(Some(Dialect::Responses)),
        Some("ollama") => Ok(Some(Dialect::Ollama)),
        Some(_) => Err(ApiError::field("dialect", "it must be openai, anthropic, responses or ollama")),
    }
}

/// The fields that show which dialect a body has.
#[derive(Deserialize)]
pub(crate) struct Shape {
    model: Option<String>,
    messages: Option<Box<RawValue>>,
    prompt: Option<IgnoredAny>,
    input: Option<IgnoredAny>,
    previous_response_id: Option<IgnoredAny>,
    tools: Option<Box<RawValue>>,
    // Anthropic's.
    system: Option<IgnoredAny>,
    anthropic_version: Option<IgnoredAny>,
    stop_sequences: Option<IgnoredAny>,
    thinking: Option<IgnoredAny>,
    // Ollama's.
    options: Option<IgnoredAny>,
    keep_alive: Option<IgnoredAny>,
    format: Option<IgnoredAny>,
    think: Option<IgnoredAny>,
    raw: Option<IgnoredAny>,
    template: Option<IgnoredAny>,
    context: Option<IgnoredAny>,
}

/// The fields of a message, a tool and a call that only one dialect has. All of them are optional, so that a wrong body
/// is refused by the dialect and not here.
#[derive(Deserialize)]
struct MessageShape<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    images: Option<IgnoredAny>,
    #[serde(borrow)]
    tool_calls: Option<Vec<CallShape<'a>>>,
}

#[derive(Deserialize)]
struct CallShape<'a> {
    #[serde(borrow)]
    function: Option<FunctionShape<'a>>,
}

#[derive(Deserialize)]
struct FunctionShape<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct BlockShape<'a> {
    #[serde(rename = "type")]
    kind: Option<&'a str>,
}

#[derive(Deserialize)]
struct ToolShape {
    input_schema: Option<IgnoredAny>,
}

impl MessageShape<'_> {
    /// Whether a block of its content is one that only Anthropic's messages have.
    fn has_anthropic_block(&self) -> bool {
        let blocks: Vec<BlockShape<'_>> =
            self.content.and_then(|content| serde_json::from_str(content.get()).ok()).unwrap_or_default();
        let kinds = ["tool_use", "tool_result", "thinking", "redacted_thinking"];
        blocks.iter().any(|block| block.kind.is_some_and(|kind| kinds.contains(&kind)))
    }

    /// Whether it has images beside its text, or a call with arguments that are not a text.
    fn is_ollama(&self) -> bool {
        let has_object = |call: &CallShape<'_>| {
            let arguments = call.function.as_ref().and_then(|function| function.arguments);
            arguments.is_some_and(|text| text.get().starts_with('{'))
        };
        self.images.is_some() || self.tool_calls.iter().flatten().any(has_object)
    }
}

impl Shape {
    /// The model that the body names.
    pub(crate) fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn dialect(&self) -> Result<Dialect, ApiError> {
        let is_ollama = [&self.options, &self.keep_alive, &self.format, &self.think].into_iter().any(Option::is_some);
        match (&self.messages, &self.prompt) {
            (Some(_), Some(_)) => Err(ApiError::field("prompt", "send a prompt or messages, not both")),
            (Some(messages), None) => Ok(self.chat_dialect(messages, is_ollama)),
            (None, _) if self.input.is_some() || self.previous_response_id.is_some() => Ok(Dialect::Responses),
            (None, Some(_)) => {
                let generates = [&self.raw, &self.template, &self.context, &self.system].into_iter();
                let is_ollama = is_ollama || generates.into_iter().any(Option::is_some);
                Ok(if is_ollama { Dialect::Ollama } else { Dialect::OpenAi })
            }
            (None, None) => Err(ApiError::field("messages", "send the messages of a chat, or a prompt")),
        }
    }

    fn chat_dialect(&self, messages: &RawValue, is_ollama: bool) -> Dialect {
        let messages: Vec<MessageShape<'_>> = serde_json::from_str(messages.get()).unwrap_or_default();
        let tools = self.tools.as_ref().and_then(|tools| serde_json::from_str::<Vec<ToolShape>>(tools.get()).ok());
        let has_schema = tools.iter().flatten().any(|tool| tool.input_schema.is_some());
        let fields = [&self.system, &self.anthropic_version, &self.stop_sequences, &self.thinking];
        if has_schema
            || fields.into_iter().any(Option::is_some)
            || messages.iter().any(MessageShape::has_anthropic_block)
        {
            Dialect::Anthropic
        } else if is_ollama || messages.iter().any(MessageShape::is_ollama) {
            Dialect::Ollama
        } else {
            Dialect::OpenAi
        }
    }
}

impl Dialect {
    /// The prompt of a body, and the warnings about it. `extra` are parameters that the endpoint does not have.
    pub(crate) async fn checked_prompt(
        self,
        body: &[u8],
        shape: &Shape,
        model: &ServedModel,
        stored: OwnResponses<'_>,
        extra: Vec<UnknownField>,
    ) -> Result<(Generate, Warnings), ApiError> {
        let (asked, mut unknown) = unknown_fields::collected(|| self.prompt(body, shape, model, stored));
        let asked = asked?;
        unknown.extend(extra);
        let (ignored, effort): (&[Ignored], _) = match self {
            Self::OpenAi if shape.prompt.is_some() => (&openai_ignored::PLAIN, ""),
            Self::OpenAi => (&openai_ignored::CHAT, "reasoning_effort"),
            Self::Anthropic => (&anthropic_ignored::MESSAGES, "output_config.effort"),
            Self::Responses => (&responses_ignored::RESPONSES, "reasoning.effort"),
            Self::Ollama => (&ollama_ignored::REPLY, "think"),
        };
        let mut warnings = Warnings::about(unknown, ignored);
        warn_of_model(&mut warnings, model);
        warn_of_variables(&mut warnings, model, &asked, effort).await;
        Ok((asked, warnings))
    }

    /// The prompt of a body, made as the dialect's endpoint makes it.
    fn prompt(
        self,
        body: &[u8],
        shape: &Shape,
        model: &ServedModel,
        stored: OwnResponses<'_>,
    ) -> Result<Generate, ApiError> {
        let base = Request::default();
        match self {
            Self::OpenAi if shape.prompt.is_some() => match parse::<CompletionRequestBody>(body)?.prompt.one() {
                Some(input) => Ok(Generate::new(Prompt::Written(input), base)),
                None => Err(ApiError::field("prompt", "it must be a text or a list of tokens")),
            },
            Self::OpenAi => chat_turn(&parse(body)?, &base),
            Self::Anthropic => {
                let signing_key = model.report().signing_key.as_ref();
                Ok(anthropic_prompt(&parse(body)?, signing_key, &base)?.generate)
            }
            Self::Responses => responses::prompt(stored, &parse(body)?, &base),
            Self::Ollama if shape.messages.is_some() => ollama_chat::prompt(&parse(body)?, &base),
            Self::Ollama => ollama_generate::prompt(&parse(body)?, model, &base),
        }
    }
}

/// An admin learns about the rows of all keys, but no word of them.
pub(super) fn hide_stored_text(answer: &mut Value, sees_text: bool) {
    if let Value::Object(fields) = answer
        && !sees_text
    {
        fields.insert("cached".to_owned(), Value::Null);
    }
}

/// The JSON of an explanation.
pub(super) fn explained(model: &str, found: Explained) -> Value {
    let CauseWords { word, reason, fix } = found.cause.words();
    let around = |around: Around| json!({"before": around.before, "after": around.after});
    let row = |row: ExplainedRow| json!({"key": row.key, "tokens": row.tokens, "tier": row.tier});
    let remote =
        |RemotePrefix { key, tokens, bytes, tier }| json!({"key": key, "tokens": tokens, "bytes": bytes, "tier": tier});
    let message = |message: MessagePlace| json!({"number": message.number, "role": message.role});
    let resumption = |place: Resumption| json!({"cached": place.cached, "asked": place.asked});
    let offset = found.divergence.as_ref().map(|divergence| divergence.offset);
    let resumes = found.divergence.as_ref().and_then(|divergence| divergence.resumes);
    let (cached, asked) = found.divergence.map(|divergence| (divergence.cached, divergence.asked)).unzip();
    json!({
        "model": model,
        "tokens": found.tokens,
        "agree": found.agree,
        "usable": found.usable,
        "lost": found.lost,
        "offset": offset,
        "message": found.message.map(message),
        "cause": word,
        "reason": reason,
        "fix": fix,
        "row": found.row.map(row),
        "cached": cached.map(around),
        "asked": asked.map(around),
        "resumes": resumes.map(resumption),
        "remote": found.remote.map(remote),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(body: &Value) -> Result<Dialect, ApiError> {
        parse::<Shape>(body.to_string().as_bytes())?.dialect()
    }

    #[test]
    fn the_fields_of_a_body_show_its_dialect() {
        let user = json!([{"role": "user", "content": "Hi"}]);
        let with = |messages: Value| json!({"model": "m", "messages": messages});
        for (body, expected) in [
            (json!({"messages": user}), Dialect::OpenAi),
            (
                json!({"messages": user, "max_tokens": 5, "temperature": 0, "tools": [{"type": "function"}]}),
                Dialect::OpenAi,
            ),
            (json!({"prompt": "Hi"}), Dialect::OpenAi),
            (json!({"prompt": [1, 2]}), Dialect::OpenAi),
            (json!({"messages": user, "system": "Be kind.", "max_tokens": 5}), Dialect::Anthropic),
            (json!({"messages": user, "tools": [{"name": "a", "input_schema": {}}]}), Dialect::Anthropic),
            (
                with(json!([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}])),
                Dialect::Anthropic,
            ),
            (with(json!([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])), Dialect::OpenAi),
            (json!({"messages": user, "options": {"temperature": 0}}), Dialect::Ollama),
            (json!({"messages": user, "keep_alive": "5m"}), Dialect::Ollama),
            (
                with(
                    json!([{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": {"b": 1}}}]}]),
                ),
                Dialect::Ollama,
            ),
            (
                with(json!([{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}])),
                Dialect::OpenAi,
            ),
            (json!({"prompt": "Hi", "system": "Be kind."}), Dialect::Ollama),
            (json!({"prompt": "Hi", "raw": true}), Dialect::Ollama),
            (json!({"input": "Hi"}), Dialect::Responses),
            (json!({"input": [], "instructions": "Be kind."}), Dialect::Responses),
            // A wrong body is refused by its dialect.
            (json!({"messages": 5}), Dialect::OpenAi),
            (json!({"messages": user, "tools": 5}), Dialect::OpenAi),
        ] {
            assert_eq!(dialect(&body).unwrap(), expected, "{body}");
        }
        assert!(dialect(&json!({})).is_err() && dialect(&json!({"prompt": "x", "messages": []})).is_err());
    }
}
