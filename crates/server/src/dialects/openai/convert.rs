//! From OpenAI's fields to turns and generations, and from replies back to OpenAI's parts.
//!
//! Every refusal names the field. Messages are rebuilt field by field, so that a template sees only what is
//! known here; the order inside schemas is kept, because replies follow it.

use std::collections::BTreeMap;

use poncho_api::{
    ANY_OBJECT, CallDelta, ChatTurn, Choice, Completion, Finish, Generate, MAX_TOP_LOGPROBS, Request, Sampling,
    Thinking, TokenLogprob, TokenProbability, Tool, with_named_root,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::answers::{CallOut, ChatLogprobs, Envelope, FunctionOut, PromptDetails, Usage};
use super::types::{
    ChatRequestBody, Content, FunctionDefinition, Message, ResponseFormat, Shared, ToolCallBody, ToolDefinition,
};
use crate::error::{ApiError, NO_IMAGES};
use crate::models::served::ServedModel;
use crate::request_id::{random_id, unix_seconds};
use crate::responses::token::TokenOut;

/// The most replies to one prompt.
const MAX_CHOICES: u32 = 8;
/// What JSON can hold of minus infinity, as OpenAI writes it.
const LOWEST_LOGPROB: f32 = -9999.0;

/// How many replies are asked for.
pub(crate) fn choices(n: Option<u32>, session: Option<&str>) -> Result<u32, ApiError> {
    let n = n.unwrap_or(1);
    if !(1..=MAX_CHOICES).contains(&n) {
        return Err(ApiError::field("n", format!("it is {n} and must be from 1 to {MAX_CHOICES}")));
    }
    if n > 1 && session.is_some() {
        return Err(ApiError::field(
            "n",
            "a session holds one conversation; ask for one reply or leave the session out",
        ));
    }
    Ok(n)
}

/// Limits and sampling; `base` has what is left out.
pub(crate) fn generation(shared: Shared, base: &Request) -> Result<Request, ApiError> {
    let default = base.sampling.clone();
    let mut logit_bias = Vec::new();
    for (token, bias) in shared.logit_bias.unwrap_or_default() {
        let id = token.parse().map_err(|_| ApiError::field(format!("logit_bias.{token}"), "it is not a token id"))?;
        logit_bias.push((id, bias));
    }
    Ok(Request {
        max_tokens: shared.max_tokens.or(base.max_tokens),
        sampling: Sampling {
            temperature: shared.temperature.unwrap_or(default.temperature),
            top_p: shared.top_p.unwrap_or(default.top_p),
            top_k: shared.top_k.unwrap_or(default.top_k),
            min_p: shared.min_p.unwrap_or(default.min_p),
            repetition_penalty: shared.repetition_penalty.unwrap_or(default.repetition_penalty),
            presence_penalty: shared.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: shared.frequency_penalty.unwrap_or(default.frequency_penalty),
            seed: shared.seed.map(i64::cast_unsigned).or(default.seed),
            logit_bias,
            ..default
        },
        stop: shared.stop.map_or_else(|| base.stop.clone(), |stop| stop.0),
        logprobs: None,
        session_id: shared.session_id,
        exact: shared.exact.unwrap_or(false),
        ignore_eos: shared.ignore_eos.unwrap_or(false),
        ..Request::default()
    })
}

/// The turn that a chat request asks for.
pub(crate) fn chat_turn(body: &ChatRequestBody, base: &Request) -> Result<Generate, ApiError> {
    if body.messages.is_empty() {
        return Err(ApiError::field("messages", "it is empty; send at least one message"));
    }
    if let Some(other) = body.modalities.iter().flatten().find(|kind| *kind != "text") {
        return Err(ApiError::field("modalities", format!("it has {other:?}, and replies are text; leave it out")));
    }
    let messages = body.messages.iter().enumerate().map(|(at, message)| message_json(at, message));
    let tools = body.tools.iter().flatten().enumerate().map(|(at, tool)| tool_json(at, tool));
    let tools = tools.collect::<Result<Vec<Tool>, ApiError>>()?;
    let mut generation = generation(body.shared(), base)?;
    generation.max_tokens = body.max_completion_tokens.or(body.max_tokens).or(base.max_tokens);
    if let Some(top) = body.top_logprobs.filter(|top| *top > MAX_TOP_LOGPROBS) {
        return Err(ApiError::field("top_logprobs", format!("it is {top} and may be at most {MAX_TOP_LOGPROBS}")));
    }
    generation.logprobs = match (body.logprobs.unwrap_or(false), body.top_logprobs) {
        (true, top) => Some(top.unwrap_or(0)),
        (false, None | Some(0)) => None,
        (false, Some(_)) => return Err(ApiError::field("top_logprobs", "it needs logprobs; set logprobs to true")),
    };
    let (thinking, template_kwargs) =
        template_kwargs(body.chat_template_kwargs.as_ref(), body.reasoning_effort.as_deref())?;
    generation.thinking = thinking;
    let turn = ChatTurn {
        messages: messages.collect::<Result<_, _>>()?,
        choice: tool_choice(body.tool_choice.as_ref(), &tools)?,
        tools,
        parallel_calls: body.parallel_tool_calls.unwrap_or(true),
        json_schema: json_schema(body.response_format.as_deref())?,
        template_kwargs,
        ..ChatTurn::default()
    };
    Ok(Generate::chat(turn, generation))
}

fn message_json(at: usize, message: &Message) -> Result<Value, ApiError> {
    let field = |name: &str| format!("messages[{at}].{name}");
    // Templates know one role for instructions.
    let role = match message.role.as_str() {
        "developer" => "system",
        known @ ("system" | "user" | "assistant" | "tool") => known,
        other => {
            let known = "system, developer, user, assistant or tool";
            return Err(ApiError::field(field("role"), format!("it is {other:?} and must be {known}")));
        }
    };
    let mut written = Map::from_iter([("role".to_owned(), Value::from(role))]);
    let content = message.content.as_ref().map(|content| content_json(at, content)).transpose()?;
    let calls = message.tool_calls.as_deref().unwrap_or_default();
    if content.is_none() && (role != "assistant" || calls.is_empty()) {
        return Err(ApiError::field(field("content"), format!("a message of the {role} needs content")));
    }
    written.insert("content".to_owned(), content.unwrap_or(Value::Null));
    match (role, &message.tool_call_id) {
        ("tool", None) => {
            return Err(ApiError::field(field("tool_call_id"), "a tool's message needs the id of the call it answers"));
        }
        ("tool", Some(id)) => drop(written.insert("tool_call_id".to_owned(), Value::from(id.as_str()))),
        _ => {}
    }
    if role == "assistant" {
        if !calls.is_empty() {
            written.insert("tool_calls".to_owned(), calls.iter().map(|call| call_json(call)).collect());
        }
        if let Some(reasoning) = &message.reasoning_content {
            written.insert("reasoning_content".to_owned(), Value::from(reasoning.as_str()));
        }
    }
    if let Some(name) = &message.name {
        written.insert("name".to_owned(), Value::from(name.as_str()));
    }
    Ok(Value::Object(written))
}

fn content_json(at: usize, content: &Content) -> Result<Value, ApiError> {
    let parts = match content {
        Content::Text(text) => return Ok(Value::from(text.as_str())),
        Content::Parts(parts) => parts,
    };
    let texts = parts.iter().enumerate().map(|(place, part)| {
        let field = |name: &str| format!("messages[{at}].content[{place}]{name}");
        let text = match part.kind.as_str() {
            "text" => part.text.as_ref().ok_or_else(|| ApiError::field(field(".text"), "a text part needs a text")),
            "refusal" => {
                part.refusal.as_ref().ok_or_else(|| ApiError::field(field(".refusal"), "a refusal needs a text"))
            }
            "image_url" => Err(ApiError::field(field(".type"), NO_IMAGES)),
            other => {
                Err(ApiError::field(field(".type"), format!("{other} parts cannot be read by this model; send text")))
            }
        };
        Ok(json!({"type": "text", "text": text?}))
    });
    texts.collect()
}

fn call_json(call: &ToolCallBody) -> Value {
    let arguments = match &call.function.arguments {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => "{}".to_owned(),
        Some(other) => other.to_string(),
    };
    json!({"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}})
}

/// A tool as templates want it.
pub(crate) fn tool_json(at: usize, tool: &ToolDefinition) -> Result<Tool, ApiError> {
    let field = |name: &str| format!("tools[{at}].{name}");
    if tool.kind != "function" {
        return Err(ApiError::field(field("type"), format!("it is {:?}; only functions can be called", tool.kind)));
    }
    let function = tool.function.as_ref().ok_or_else(|| ApiError::field(field("function"), "a function needs it"))?;
    function_tool(function, |name| field(&format!("function.{name}")))
}

/// A function as templates want it; `field` names its fields as the request has them.
pub(crate) fn function_tool(function: &FunctionDefinition, field: impl Fn(&str) -> String) -> Result<Tool, ApiError> {
    if function.name.is_empty() {
        return Err(ApiError::field(field("name"), "it is empty"));
    }
    if let Some(parameters) = &function.parameters {
        object_text(parameters, || field("parameters"))?;
    }
    Ok(Tool::function(&function.name, function.description.as_deref(), function.parameters.as_deref())?)
}

/// The text of a schema, as it was written but for references to all of it.
pub(crate) fn object_text(raw: &RawValue, field: impl FnOnce() -> String) -> Result<String, ApiError> {
    if raw.get().starts_with('{') {
        return Ok(with_named_root(raw.get()).into_owned());
    }
    Err(ApiError::field(field(), "it must be a JSON schema, which is an object"))
}

/// A choice of one word; `other_form` is what it may be instead.
pub(crate) fn choice_word(word: &str, other_form: &str) -> Result<Choice, ApiError> {
    match word {
        "auto" => Ok(Choice::Auto),
        "none" => Ok(Choice::None),
        "required" => Ok(Choice::Required),
        other => {
            let reason = format!("it is {other:?} and must be auto, none, required or {other_form}");
            Err(ApiError::field("tool_choice", reason))
        }
    }
}

fn tool_choice(choice: Option<&Value>, tools: &[Tool]) -> Result<Choice, ApiError> {
    let wrong = |reason: String| Err(ApiError::field("tool_choice", reason));
    let choice = match choice {
        None | Some(Value::Null) => Choice::Auto,
        Some(Value::String(word)) => choice_word(word, "a function")?,
        Some(value) if value.get("type").and_then(Value::as_str) == Some("allowed_tools") => {
            allowed(value.get("allowed_tools").unwrap_or(&Value::Null), tools)?
        }
        Some(value) => match value.pointer("/function/name").and_then(Value::as_str) {
            Some(name) if tools.iter().any(|tool| tool.name == name) => Choice::Named(name.to_owned()),
            Some(name) => return wrong(format!("{name:?} is not among the tools")),
            None => return wrong("it must be a string or name a function".to_owned()),
        },
    };
    let needs_tools = !matches!(choice, Choice::Auto | Choice::None);
    if needs_tools && tools.is_empty() { wrong("there are no tools to choose from".to_owned()) } else { Ok(choice) }
}

/// Some of the tools.
fn allowed(allowed: &Value, tools: &[Tool]) -> Result<Choice, ApiError> {
    let field = |name: &str| format!("tool_choice.allowed_tools.{name}");
    let required = match allowed.get("mode").and_then(Value::as_str) {
        Some("auto") => false,
        Some("required") => true,
        _ => return Err(ApiError::field(field("mode"), "it must be auto or required")),
    };
    let list = allowed.get("tools").and_then(Value::as_array);
    let list = list.ok_or_else(|| ApiError::field(field("tools"), "it must be a list of tools"))?;
    let mut names = Vec::new();
    for (at, tool) in list.iter().enumerate() {
        let field = || field(&format!("tools[{at}].function.name"));
        match tool.pointer("/function/name").and_then(Value::as_str) {
            Some(name) if tools.iter().any(|tool| tool.name == name) => names.push(name.to_owned()),
            Some(name) => return Err(ApiError::field(field(), format!("{name:?} is not among the tools"))),
            None => return Err(ApiError::field(field(), "the name of a function is needed")),
        }
    }
    Ok(Choice::Among { names, required })
}

fn json_schema(format: Option<&ResponseFormat>) -> Result<Option<String>, ApiError> {
    let Some(format) = format else { return Ok(None) };
    match format.kind.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(ANY_OBJECT.to_owned())),
        "json_schema" => {
            let field = || "response_format.json_schema.schema".to_owned();
            let schema = format.json_schema.as_ref().and_then(|format| format.schema.as_ref());
            let schema = schema.ok_or_else(|| ApiError::field(field(), "a schema is needed"))?;
            object_text(schema, field).map(Some)
        }
        other => {
            let known = "text, json_object or json_schema";
            Err(ApiError::field("response_format.type", format!("it is {other:?} and must be {known}")))
        }
    }
}

/// The template's variables, and what they say about thinking.
pub(crate) fn template_kwargs(
    kwargs: Option<&BTreeMap<String, Value>>,
    effort: Option<&str>,
) -> Result<(Thinking, String), ApiError> {
    let mut kwargs = kwargs.cloned().unwrap_or_default();
    let mut thinking = match kwargs.get("enable_thinking") {
        None => Thinking::Default,
        Some(Value::Bool(true)) => Thinking::On,
        Some(Value::Bool(false)) => Thinking::Off,
        Some(_) => return Err(ApiError::field("chat_template_kwargs.enable_thinking", "it must be true or false")),
    };
    match effort {
        None => {}
        Some("none") => thinking = Thinking::Off,
        Some(effort) => drop(kwargs.entry("reasoning_effort".to_owned()).or_insert_with(|| effort.into())),
    }
    if kwargs.is_empty() {
        return Ok((thinking, String::new()));
    }
    let text = serde_json::to_string(&kwargs).map_err(|_| ApiError::Internal { doing: "wrote template variables" })?;
    Ok((thinking, text))
}

/// The fields that an answer starts with.
pub(crate) fn envelope(model: &ServedModel, prefix: &str, object: &'static str) -> Envelope {
    let report = model.report();
    let identity: Vec<u8> =
        report.fingerprint.iter().take(4).chain(report.context_hash.iter().take(4)).copied().collect();
    Envelope {
        id: random_id(prefix),
        object,
        created: unix_seconds(),
        model: model.id().to_owned(),
        system_fingerprint: format!("fp_{}", poncho_api::to_hex(&identity)),
    }
}

/// OpenAI's word for why a reply ended.
pub(crate) const fn finish_word(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
    }
}

impl Usage {
    /// Adds a reply; the first reply to a prompt also counts the prompt.
    pub(crate) fn add(&mut self, completion: &Completion, is_first: bool) {
        if is_first {
            self.prompt_tokens += completion.prompt_tokens;
            let cached = completion.cached_tokens.min(completion.prompt_tokens);
            self.prompt_tokens_details =
                PromptDetails { cached_tokens: self.prompt_tokens_details.cached_tokens + cached };
        }
        self.completion_tokens += completion.completion_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}

impl From<CallDelta> for CallOut {
    fn from(delta: CallDelta) -> Self {
        let (id, name) = delta.start.unzip();
        let kind = id.is_some().then_some("function");
        Self { index: Some(delta.index), id, kind, function: FunctionOut { name, arguments: delta.arguments } }
    }
}

/// Log probabilities in the shape of chat answers.
pub(crate) fn chat_logprobs(logprobs: &[TokenLogprob]) -> ChatLogprobs {
    let content = logprobs.iter().map(|logprob| TokenOut {
        top_logprobs: Some(logprob.top.iter().map(token_out).collect()),
        ..token_out(&logprob.token)
    });
    ChatLogprobs { content: content.collect(), refusal: None }
}

fn token_out(token: &TokenProbability) -> TokenOut {
    TokenOut {
        token: token_text(token),
        logprob: finite(token.logprob),
        bytes: token.bytes.clone(),
        top_logprobs: None,
    }
}

/// A token's text, as far as it is one.
pub(crate) fn token_text(token: &TokenProbability) -> String {
    String::from_utf8_lossy(&token.bytes).into_owned()
}

/// A log probability that JSON can hold.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LOWEST_LOGPROB }
}
