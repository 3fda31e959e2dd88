//! From a request in Anthropic's dialect to a turn: tools, thinking, output format, sampling.
//!
//! Every refusal names the field. Limits that Anthropic documents are kept where a client could come to rely on them
//! (temperature, stop sequences); those that only protect Anthropic's machines are not.

use poncho_api::{ChatTurn, Choice, Generate, MAX_STOP_BYTES, MAX_STOPS, Mode, Request, SigningKey, Thinking, Tool};
use serde_json::json;

use super::conversation::{Conversation, conversation};
use super::types::{MessagesBody, OutputFormat, ThinkingBody, ToolBody, ToolChoiceBody};
use crate::dialects::openai::convert::generation;
use crate::dialects::openai::types::Shared;
use crate::error::ApiError;

/// Whether the client sees what the model thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Display {
    /// Nobody asked: no block at all.
    Hidden,
    /// A block with a signature and no text.
    Omitted,
    /// Everything.
    Full,
}

/// What a request asks for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) generate: Generate,
    pub(crate) display: Display,
}

/// Reads a request. With a key, thinking that comes back must carry its signature.
pub(crate) fn asked(body: &MessagesBody, key: Option<&SigningKey>, base: &Request) -> Result<Asked, ApiError> {
    let Conversation { messages, reply_start, marked } = conversation(body, key)?;
    let tools = body.tools.iter().flatten().enumerate().map(|(at, tool)| function(at, tool));
    let tools = tools.collect::<Result<Vec<Tool>, ApiError>>()?;
    let choice = tool_choice(body.tool_choice.as_deref(), &tools)?;
    let json_schema = json_schema(body)?;
    let is_formed = json_schema.is_some() || matches!(choice, Choice::Required | Choice::Named(_));
    if is_formed && !reply_start.is_empty() {
        let reason = "a reply with a prescribed format cannot be started by the client; end with a user message";
        return Err(ApiError::field("messages", reason));
    }
    let Thoughts { mut thinking, budget, display } = thoughts(body.thinking.as_deref())?;
    if !reply_start.is_empty() {
        // Thinking comes before the reply, and the reply has begun.
        thinking = Thinking::Off;
    }
    let parallel = body.tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use) != Some(true);
    let turn = ChatTurn {
        messages,
        tools,
        choice,
        parallel_calls: parallel,
        json_schema,
        template_kwargs: template_kwargs(body)?,
        reply_start,
        marked,
        ..ChatTurn::default()
    };
    let request = Request { thinking, thinking_budget: budget, ..sampling(body, base)? };
    Ok(Asked { generate: Generate::chat(turn, request), display })
}

fn sampling(body: &MessagesBody, base: &Request) -> Result<Request, ApiError> {
    if let Some(temperature) = body.temperature.filter(|temperature| !(0.0..=1.0).contains(temperature)) {
        return Err(ApiError::field("temperature", format!("it is {temperature} and must be from 0 to 1")));
    }
    let stops = body.stop_sequences.as_ref().map(|stops| &stops.0);
    let texts = stops.map(|stops| stops.0.as_slice()).unwrap_or_default();
    if texts.len() > MAX_STOPS {
        let reason = format!("it has {} entries and may have {MAX_STOPS}", texts.len());
        return Err(ApiError::field("stop_sequences", reason));
    }
    for (at, stop) in texts.iter().enumerate() {
        let reason = match stop {
            stop if stop.trim().is_empty() => "it must have more than white space".to_owned(),
            stop if stop.len() > MAX_STOP_BYTES => format!("it may have at most {MAX_STOP_BYTES} bytes"),
            _ => continue,
        };
        return Err(ApiError::field(format!("stop_sequences[{at}]"), reason));
    }
    let shared = Shared {
        max_tokens: body.max_tokens,
        temperature: body.temperature,
        top_p: body.top_p,
        top_k: body.top_k,
        min_p: body.min_p,
        repetition_penalty: body.repetition_penalty,
        seed: body.seed,
        stop: stops.cloned(),
        session_id: body.session_id.clone(),
        exact: body.exact,
        ignore_eos: body.ignore_eos,
        ..Shared::default()
    };
    let generation = generation(shared, base)?;
    // Anthropic's way to warm the cache.
    let mode = if body.max_tokens == Some(0) { Mode::PrefillOnly } else { Mode::Complete };
    Ok(Request { mode, ..generation })
}

fn function(at: usize, tool: &ToolBody) -> Result<Tool, ApiError> {
    let field = |name: &str| format!("tools[{at}].{name}");
    let name = tool.name.as_deref().unwrap_or_default();
    match tool.kind.as_deref() {
        None | Some("custom") => {}
        Some(kind) => {
            let reason = format!(
                "the tool {name:?} of the type {kind:?} is Anthropic's own and not part of this server; leave it out or \
                 define a custom tool"
            );
            return Err(ApiError::field(field("type"), reason));
        }
    }
    if name.is_empty() {
        return Err(ApiError::field(field("name"), "a tool needs a name"));
    }
    let schema = tool.input_schema.as_deref();
    let schema = schema.ok_or_else(|| ApiError::field(field("input_schema"), "a custom tool needs one"))?;
    if !schema.get().starts_with('{') {
        return Err(ApiError::field(field("input_schema"), "it must be a JSON schema, which is an object"));
    }
    Ok(Tool::function(name, tool.description.as_deref(), Some(schema))?)
}

fn tool_choice(choice: Option<&ToolChoiceBody>, tools: &[Tool]) -> Result<Choice, ApiError> {
    let Some(choice) = choice else { return Ok(Choice::Auto) };
    let wanted = match choice.kind.as_str() {
        "auto" => return Ok(Choice::Auto),
        "none" => return Ok(Choice::None),
        "any" => Choice::Required,
        "tool" => {
            let name = choice.name.as_deref();
            let name =
                name.ok_or_else(|| ApiError::field("tool_choice.name", "a choice of one tool needs its name"))?;
            if !tools.iter().any(|tool| tool.name == name) {
                return Err(ApiError::field("tool_choice.name", format!("{name:?} is not among the tools")));
            }
            Choice::Named(name.to_owned())
        }
        other => {
            let reason = format!("it is {other:?} and must be auto, any, tool or none");
            return Err(ApiError::field("tool_choice.type", reason));
        }
    };
    if tools.is_empty() {
        return Err(ApiError::field("tool_choice", "there are no tools to choose from"));
    }
    Ok(wanted)
}

struct Thoughts {
    thinking: Thinking,
    budget: Option<u32>,
    display: Display,
}

fn thoughts(body: Option<&ThinkingBody>) -> Result<Thoughts, ApiError> {
    let off = Thoughts { thinking: Thinking::Off, budget: None, display: Display::Hidden };
    let Some(body) = body else { return Ok(off) };
    let display = match body.display.as_deref() {
        None | Some("summarized") => Display::Full,
        Some("omitted") => Display::Omitted,
        Some(other) => {
            let reason = format!("it is {other:?} and must be summarized or omitted");
            return Err(ApiError::field("thinking.display", reason));
        }
    };
    match (body.kind.as_str(), body.budget_tokens) {
        ("disabled", _) => Ok(off),
        ("adaptive", _) => Ok(Thoughts { thinking: Thinking::Default, budget: None, display }),
        ("enabled", Some(budget)) if budget > 0 => {
            Ok(Thoughts { thinking: Thinking::On, budget: Some(budget), display })
        }
        ("enabled", _) => {
            Err(ApiError::field("thinking.budget_tokens", "enabled thinking needs a budget of at least 1"))
        }
        (other, _) => {
            let reason = format!("it is {other:?} and must be enabled, disabled or adaptive");
            Err(ApiError::field("thinking.type", reason))
        }
    }
}

fn json_schema(body: &MessagesBody) -> Result<Option<String>, ApiError> {
    let newer = body.output_config.as_ref().and_then(|config| config.format.as_deref());
    let older = body.output_format.as_deref();
    let named = newer.map(|format| ("output_config.format", format)).or(older.map(|format| ("output_format", format)));
    let Some((field, OutputFormat { kind, schema })) = named else { return Ok(None) };
    if kind != "json_schema" {
        return Err(ApiError::field(format!("{field}.type"), format!("it is {kind:?} and must be json_schema")));
    }
    match schema.as_deref().map(|schema| schema.get()).filter(|schema| schema.starts_with('{')) {
        Some(schema) => Ok(Some(poncho_api::with_named_root(schema).into_owned())),
        None => Err(ApiError::field(format!("{field}.schema"), "it must be a JSON schema, which is an object")),
    }
}

/// The effort, for templates that know it; they know three.
fn template_kwargs(body: &MessagesBody) -> Result<String, ApiError> {
    let Some(effort) = body.output_config.as_ref().and_then(|config| config.effort.as_deref()) else {
        return Ok(String::new());
    };
    let effort = match effort {
        known @ ("low" | "medium" | "high") => known,
        "xhigh" | "max" => "high",
        other => {
            let reason = format!("it is {other:?} and must be low, medium, high, xhigh or max");
            return Err(ApiError::field("output_config.effort", reason));
        }
    };
    Ok(json!({"reasoning_effort": effort}).to_string())
}

#[cfg(test)]
mod tests;
