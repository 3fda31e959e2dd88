//! From a Responses request to a chat turn, and what of a conversation fits into the context.
//!
//! Called by `create`. Every refusal names the field as this API calls it, also where the engine knows it by another
//! name.

use poncho_api::{ANY_OBJECT, ChatTurn, EngineError, Generate, MAX_TOP_LOGPROBS, Request};
use serde_json::Value;

use super::mcp::Listed;
use super::tools;
use super::types::{ResponseRequestBody, TextFormat};
use crate::dialects::openai::convert::{generation, object_text, template_kwargs};
use crate::error::ApiError;

/// What the API lets a response include.
const INCLUDABLE: [&str; 8] = [
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    REASONING,
    LOGPROBS,
];
/// Thinking as an opaque text.
pub(crate) const REASONING: &str = "reasoning.encrypted_content";
/// Log probabilities of the text.
pub(crate) const LOGPROBS: &str = "message.output_text.logprobs";
/// The API's limits of `metadata`.
const MAX_METADATA: (usize, usize, usize) = (16, 64, 512);

/// What happens to a conversation that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Truncation {
    /// It is refused.
    Disabled,
    /// Its oldest turns are left out.
    Auto,
}

impl Truncation {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Auto => "auto",
        }
    }

    pub(crate) fn read(text: Option<&str>) -> Result<Self, ApiError> {
        match text {
            None | Some("disabled") => Ok(Self::Disabled),
            Some("auto") => Ok(Self::Auto),
            Some(other) => Err(ApiError::field("truncation", format!("it is {other:?} and must be disabled or auto"))),
        }
    }
}

/// Refuses what this server cannot do, and what the API would refuse.
pub(crate) fn check(body: &ResponseRequestBody) -> Result<(), ApiError> {
    if body.background.unwrap_or(false) {
        let reason = "responses are not made in the background; leave it out, or stream";
        return Err(ApiError::field("background", reason));
    }
    if body.conversation.is_some() {
        let reason = "conversations are not kept; use previous_response_id or send the items";
        return Err(ApiError::field("conversation", reason));
    }
    if body.prompt.is_some() {
        return Err(ApiError::field("prompt", "prompt templates are not kept; send input and instructions"));
    }
    if body.max_output_tokens == Some(0) {
        return Err(ApiError::field("max_output_tokens", "it is 0 and nothing could be said; ask for at least 1"));
    }
    if let Some(top) = body.top_logprobs.filter(|top| *top > MAX_TOP_LOGPROBS) {
        return Err(ApiError::field("top_logprobs", format!("it is {top} and may be at most {MAX_TOP_LOGPROBS}")));
    }
    let unknown = body.include.iter().flatten().enumerate().find(|(_, what)| !INCLUDABLE.contains(&what.as_str()));
    if let Some((at, what)) = unknown {
        let reason = format!("it is {what:?} and must be one of {}", INCLUDABLE.join(", "));
        return Err(ApiError::field(format!("include[{at}]"), reason));
    }
    check_words(body)?;
    let (pairs, key, value) = MAX_METADATA;
    let metadata = body.metadata.iter().flatten();
    let is_long = |(name, text): (&String, &String)| name.chars().count() > key || text.chars().count() > value;
    if body.metadata.as_ref().is_some_and(|all| all.len() > pairs) || metadata.into_iter().any(is_long) {
        let reason = format!("it may have {pairs} pairs of at most {key} and {value} characters");
        return Err(ApiError::field("metadata", reason));
    }
    Ok(())
}

fn check_words(body: &ResponseRequestBody) -> Result<(), ApiError> {
    let summary = body.reasoning.as_ref().and_then(|reasoning| reasoning.summary());
    let verbosity = body.text.as_ref().and_then(|text| text.verbosity.as_deref());
    let words: [(&str, Option<&str>, &[&str]); 2] = [
        ("reasoning.summary", summary, &["auto", "concise", "detailed", "none"]),
        ("text.verbosity", verbosity, &["low", "medium", "high"]),
    ];
    for (field, word, known) in words {
        if let Some(word) = word.filter(|word| !known.contains(word)) {
            return Err(ApiError::field(field, format!("it is {word:?} and must be one of {}", known.join(", "))));
        }
    }
    Ok(())
}

/// Whether log probabilities are wanted, and how many alternatives.
pub(crate) fn logprobs(body: &ResponseRequestBody) -> Option<u8> {
    let top = body.top_logprobs.unwrap_or(0);
    (top > 0 || body.includes(LOGPROBS)).then_some(top)
}

/// The turn that a request asks for.
pub(crate) fn chat_turn(
    body: &ResponseRequestBody,
    messages: Vec<Value>,
    base: &Request,
    truncation: Truncation,
    listed: &[Listed],
) -> Result<Generate, ApiError> {
    let tools = tools::tools(body.tools.as_deref().unwrap_or_default(), listed)?;
    let mut generation = generation(body.shared(), base)?;
    generation.logprobs = logprobs(body);
    let effort = body.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    let (thinking, template_kwargs) = template_kwargs(body.chat_template_kwargs.as_ref(), effort)?;
    let format = body.text.as_ref().and_then(|text| text.format.as_deref());
    generation.thinking = thinking;
    let turn = ChatTurn {
        messages,
        choice: tools::tool_choice(body.tool_choice.as_ref(), &tools)?,
        tools,
        parallel_calls: body.parallel_tool_calls.unwrap_or(true),
        json_schema: format.map(schema).transpose()?.flatten(),
        template_kwargs,
        drops_oldest: truncation == Truncation::Auto,
        ..ChatTurn::default()
    };
    Ok(Generate::chat(turn, generation))
}

fn schema(format: &TextFormat) -> Result<Option<String>, ApiError> {
    match format.kind.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(ANY_OBJECT.to_owned())),
        "json_schema" => {
            let field = || "text.format.schema".to_owned();
            let schema = format.schema.as_ref().ok_or_else(|| ApiError::field(field(), "a schema is needed"))?;
            if format.name.as_ref().is_none_or(String::is_empty) {
                return Err(ApiError::field("text.format.name", "a schema needs a name"));
            }
            object_text(schema, field).map(Some)
        }
        other => {
            let known = "text, json_object or json_schema";
            Err(ApiError::field("text.format.type", format!("it is {other:?} and must be {known}")))
        }
    }
}

/// The same error with this API's name for the field.
pub(crate) fn in_this_api(error: ApiError) -> ApiError {
    match error {
        ApiError::Engine(EngineError::GrammarInvalid { reason }) => ApiError::field("text.format", reason),
        other => other.renamed("messages", "input"),
    }
}
