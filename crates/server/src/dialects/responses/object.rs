//! The response object: every field that the API has, from the first event of a stream to the last.
//!
//! Made by `create` when a request was taken, filled when its reply ended, written into answers, events and the store.

use std::collections::BTreeMap;

use poncho_api::{Completion, Finish, Finished, Sampling};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::tools;
use super::turn::Truncation;
use super::types::{ReasoningConfig, ResponseRequestBody, TextConfig, TextFormat, ToolBody};
use crate::dialects::shared::PonchoReport;
use crate::error::{ApiError, Family};
use crate::forms::left_out;
use crate::http::body::Object;
use crate::request_id::{random_id, unix_seconds};
use crate::responses::item::Item;

/// See the module.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Response", transform = left_out)]
pub(crate) struct ResponseOut {
    pub(crate) id: String,
    #[schemars(extend("enum" = ["response"]))]
    object: &'static str,
    created_at: u64,
    pub(crate) status: ResponseStatus,
    background: bool,
    completed_at: Option<u64>,
    error: Option<ErrorOut>,
    incomplete_details: Option<IncompleteDetails>,
    instructions: Option<String>,
    max_output_tokens: Option<u32>,
    max_tool_calls: Option<u32>,
    model: String,
    pub(crate) output: Vec<Item>,
    parallel_tool_calls: bool,
    previous_response_id: Option<String>,
    prompt_cache_key: Option<String>,
    prompt_cache_retention: Option<String>,
    reasoning: ReasoningConfig,
    safety_identifier: Option<String>,
    service_tier: &'static str,
    store: bool,
    temperature: f32,
    text: TextConfig,
    tool_choice: Value,
    tools: Vec<ToolBody>,
    top_logprobs: u8,
    top_p: f32,
    #[schemars(extend("enum" = ["auto", "disabled"]))]
    truncation: &'static str,
    usage: Option<UsageOut>,
    user: Option<String>,
    metadata: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    poncho: Option<PonchoReport>,
}

/// How far a response has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResponseStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

impl ResponseStatus {
    /// The event that reports it.
    pub(crate) const fn event(self) -> &'static str {
        match self {
            Self::InProgress => "response.in_progress",
            Self::Completed => "response.completed",
            Self::Incomplete => "response.incomplete",
            Self::Failed => "response.failed",
        }
    }
}

/// Why a response failed.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ResponseError")]
struct ErrorOut {
    code: String,
    message: String,
}

/// Why a response is not whole.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct IncompleteDetails {
    #[schemars(extend("enum" = ["max_output_tokens"]))]
    reason: &'static str,
}

/// What a response cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ResponseUsage")]
struct UsageOut {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "InputTokensDetails")]
struct InputDetails {
    cached_tokens: usize,
    /// Prompt tokens that were computed and that the next request may find in the cache.
    cache_write_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "OutputTokensDetails")]
struct OutputDetails {
    reasoning_tokens: usize,
}

impl UsageOut {
    fn new(completion: &Completion, reasoning_tokens: usize) -> Self {
        let cached_tokens = completion.cached_tokens.min(completion.prompt_tokens);
        Self {
            input_tokens: completion.prompt_tokens,
            input_tokens_details: InputDetails {
                cached_tokens,
                cache_write_tokens: completion.prompt_tokens - cached_tokens,
            },
            output_tokens: completion.completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens },
            total_tokens: completion.prompt_tokens + completion.completion_tokens,
        }
    }
}

impl UsageOut {
    fn plus(self, more: Self) -> Self {
        let (mine, its) = (self.input_tokens_details, more.input_tokens_details);
        let (thought, also) = (self.output_tokens_details, more.output_tokens_details);
        Self {
            input_tokens: self.input_tokens + more.input_tokens,
            input_tokens_details: InputDetails {
                cached_tokens: mine.cached_tokens + its.cached_tokens,
                cache_write_tokens: mine.cache_write_tokens + its.cache_write_tokens,
            },
            output_tokens: self.output_tokens + more.output_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: thought.reasoning_tokens + also.reasoning_tokens },
            total_tokens: self.total_tokens + more.total_tokens,
        }
    }
}

/// A response of which nothing is said yet. What was left out of the request is filled in with what is used.
pub(crate) fn begin(
    body: &ResponseRequestBody,
    model: &str,
    sampling: &Sampling,
    truncation: Truncation,
) -> ResponseOut {
    let text = body.text.as_deref().cloned().unwrap_or_default();
    let plain = TextFormat { kind: "text".to_owned(), name: None, description: None, schema: None, strict: None };
    let reasoning = body.reasoning.as_deref().cloned().unwrap_or_default();
    ResponseOut {
        id: random_id("resp_"),
        object: "response",
        created_at: unix_seconds(),
        status: ResponseStatus::InProgress,
        background: false,
        completed_at: None,
        error: None,
        incomplete_details: None,
        instructions: body.instructions.clone(),
        max_output_tokens: body.max_output_tokens,
        max_tool_calls: body.max_tool_calls,
        model: model.to_owned(),
        output: Vec::new(),
        parallel_tool_calls: body.parallel_tool_calls.unwrap_or(true),
        previous_response_id: body.previous_response_id.clone(),
        prompt_cache_key: body.prompt_cache_key.clone(),
        prompt_cache_retention: body.prompt_cache_retention.clone(),
        reasoning: ReasoningConfig { summary: reasoning.summary().map(str::to_owned), ..reasoning },
        safety_identifier: body.safety_identifier.clone(),
        service_tier: "default",
        store: body.store.unwrap_or(true),
        temperature: sampling.temperature,
        text: TextConfig {
            format: Some(text.format.unwrap_or(Object(plain))),
            verbosity: Some(text.verbosity.unwrap_or_else(|| "medium".to_owned())),
        },
        tool_choice: body.tool_choice.clone().unwrap_or_else(|| json!("auto")),
        tools: tools::echo(body.tools.as_deref().unwrap_or_default()),
        top_logprobs: body.top_logprobs.unwrap_or(0),
        top_p: sampling.top_p,
        truncation: truncation.as_str(),
        usage: None,
        user: body.user.clone(),
        metadata: body.metadata.clone().unwrap_or_default(),
        poncho: None,
    }
}

impl ResponseOut {
    /// Fills in how it ended.
    pub(crate) fn finish(&mut self, finished: &Finished, output: Vec<Item>, poncho: Option<PonchoReport>) {
        self.output = output;
        self.count(finished);
        self.poncho = poncho;
        if finished.finish == Finish::Length {
            self.status = ResponseStatus::Incomplete;
            self.incomplete_details = Some(IncompleteDetails { reason: "max_output_tokens" });
        } else {
            self.status = ResponseStatus::Completed;
            self.completed_at = Some(unix_seconds());
        }
    }

    /// Adds the cost of a reply of the model; a response that calls tools itself is made of several.
    pub(crate) fn count(&mut self, finished: &Finished) {
        let more = UsageOut::new(&finished.completion, finished.reasoning_tokens);
        self.usage = Some(self.usage.map_or(more, |before| before.plus(more)));
    }

    /// Fills in why it failed; what was said until then stays.
    pub(crate) fn fail(&mut self, error: &ApiError, output: Vec<Item>) {
        let body = error.body(Family::OpenAi);
        let said = |name: &str| body.pointer(&format!("/error/{name}")).and_then(Value::as_str).map(str::to_owned);
        // This object has its own few codes; the rest keeps ours.
        let code = match said("type").as_deref() {
            Some("rate_limit_error") => "rate_limit_exceeded".to_owned(),
            Some("invalid_request_error") => said("code").unwrap_or_else(|| "invalid_prompt".to_owned()),
            _ => "server_error".to_owned(),
        };
        self.status = ResponseStatus::Failed;
        self.error = Some(ErrorOut { code, message: error.to_string() });
        self.output = output;
    }
}
