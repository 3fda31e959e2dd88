//! `POST /api/cache/explain`: why a prompt is not cached, for a request body of any dialect.
//!
//! The dialect comes from the query or from the fields of the body; its own code then makes the prompt, so that what is
//! explained is what would be computed. Errors have OpenAI's shape. With several API keys, each sees its own rows only:
//! no prompt text but the caller's own leaves here.

use std::borrow::Cow;

use axum::Extension;
use axum::extract::State;
use axum::http::Uri;
use poncho_api::{
    Around, Cause, CauseWords, Explained, ExplainedRow, Generate, MessagePlace, Prompt, RemotePrefix, Request,
    Resumption,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::dialects::anthropic::convert::asked as anthropic_prompt;
use crate::dialects::anthropic::ignored as anthropic_ignored;
use crate::dialects::ollama::{chat as ollama_chat, generate as ollama_generate, ignored as ollama_ignored};
use crate::dialects::openai::convert::chat_turn;
use crate::dialects::openai::ignored as openai_ignored;
use crate::dialects::openai::types::{CompletionRequestBody, ConversationBody};
use crate::dialects::responses::{create as responses, ignored as responses_ignored};
use crate::dialects::shared::{WithWarnings, query_value, warn_of_model};
use crate::dialects::template_variables::warn_of_variables;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::{Json, JsonBytes, parse};
use crate::http::token_list::TokenList;
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
    let found = model.explained(asked, None).await?;
    let answer = Explanation::new(model.id(), found, app.keys.sees_rows_text(owner));
    Ok(Json(WithWarnings::new(&app, json!(answer), warnings)))
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
    match query_value(uri, "dialect").as_deref() {
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

/// Where a prompt differs from the most similar cached one.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Explanation {
    model: String,
    /// Tokens of the prompt.
    tokens: usize,
    /// Leading tokens that agree with a stored row.
    agree: usize,
    /// Leading tokens that the model can resume from.
    usable: usize,
    /// Tokens that are stored behind what differs, and have to be computed again.
    lost: usize,
    /// The first token that differs.
    offset: Option<usize>,
    /// The message that differs.
    message: Option<MessagePlace>,
    cause: Cause,
    reason: &'static str,
    /// What to do; null if there is nothing to do.
    fix: Option<&'static str>,
    /// The row that the prompt was compared with.
    row: Option<ExplainedRow>,
    /// The stored text at the difference, for the key that sent it.
    cached: Option<Around>,
    /// The prompt's own text there.
    asked: Option<Around>,
    /// Where both go on with the same text.
    resumes: Option<Resumption>,
    /// A longer beginning of the prompt that other machines have.
    remote: Option<RemotePrefix>,
}

impl Explanation {
    /// An admin learns about the rows of all keys, but no word of them.
    pub(super) fn new(model: &str, found: Explained, sees_text: bool) -> Self {
        let CauseWords { reason, fix, .. } = found.cause.words();
        let offset = found.divergence.as_ref().map(|divergence| divergence.offset);
        let resumes = found.divergence.as_ref().and_then(|divergence| divergence.resumes);
        let (cached, asked) = found.divergence.map(|divergence| (divergence.cached, divergence.asked)).unzip();
        Self {
            model: model.to_owned(),
            tokens: found.tokens,
            agree: found.agree,
            usable: found.usable,
            lost: found.lost,
            offset,
            message: found.message,
            cause: found.cause,
            reason,
            fix,
            row: found.row,
            cached: cached.filter(|_| sees_text),
            asked,
            resumes,
            remote: found.remote,
        }
    }
}

/// `POST /api/cache/explain`: a conversation, or a prompt.
pub(crate) enum PromptBody {}

impl JsonSchema for PromptBody {
    fn schema_name() -> Cow<'static, str> {
        "PromptRequest".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (name, tokens) = (generator.subschema_for::<Option<String>>(), generator.subschema_for::<TokenList>());
        json_schema!({"anyOf": [
            generator.subschema_for::<ConversationBody>(),
            {
                "type": "object",
                "properties": {"model": name, "prompt": {"anyOf": [{"type": "string"}, tokens]}},
                "required": ["prompt"],
            },
        ]})
    }
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
