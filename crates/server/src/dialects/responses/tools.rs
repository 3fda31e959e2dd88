//! Tools and the choice among them, from the Responses API's shapes to those of a chat turn.
//!
//! Called by `turn`. Functions, alone or in groups, and custom tools: a tool that the API's own servers would run is
//! refused by its name, because a model that was promised a tool and has none would make things up. Web search is the
//! exception: clients offer it without being asked and expect no use of it, so it is left out of the prompt. The tools of
//! MCP servers come in with their lists, because only `mcp` may ask for those.

use std::collections::BTreeMap;

use serde_json::Value;

use super::custom::{self, CUSTOM};
use super::mcp::{Listed, MCP};
use super::namespace::{NAMESPACE, joined};
use super::types::ToolBody;
use crate::dialects::openai::convert::{choice_word, function_tool};
use crate::dialects::openai::types::FunctionDefinition;
use crate::error::ApiError;
use crate::http::body::Object;
use poncho_api::{Choice, Tool};

/// The functions that the model may call.
pub(crate) fn tools(bodies: &[Object<ToolBody>], listed: &[Listed]) -> Result<Vec<Tool>, ApiError> {
    let mut tools = Vec::new();
    for (at, body) in bodies.iter().enumerate() {
        let field = |name: &str| format!("tools[{at}].{name}");
        match body.kind.as_str() {
            "function" => tools.push(function(body, None, field)?),
            CUSTOM => tools.push(custom::tool(body, field)?),
            NAMESPACE => {
                let group = body.name.as_deref().filter(|name| !name.is_empty());
                let group = group.ok_or_else(|| ApiError::field(field("name"), "a namespace needs a name"))?;
                for (inner_at, tool) in body.tools.iter().flatten().enumerate() {
                    let field = |name: &str| field(&format!("tools[{inner_at}].{name}"));
                    if tool.kind != "function" {
                        return Err(not_run(&tool.kind, field("type")));
                    }
                    tools.push(function(tool, Some(group), field)?);
                }
            }
            MCP => {
                let of_it = listed.iter().find(|listed| body.server_label.as_ref() == Some(&listed.label));
                if let Some(listed) = of_it {
                    tools.extend(listed.functions(field)?);
                }
            }
            kind if is_web_search(kind) => {}
            other => return Err(not_run(other, field("type"))),
        }
    }
    Ok(tools)
}

fn function(body: &ToolBody, group: Option<&str>, field: impl Fn(&str) -> String) -> Result<Tool, ApiError> {
    let name = body.name.as_deref().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| ApiError::field(field("name"), "a function needs a name"))?;
    let name = group.map_or_else(|| name.to_owned(), |group| joined(group, name));
    let (description, parameters) = (body.description.clone(), body.parameters.clone());
    function_tool(&FunctionDefinition { name, description, parameters, strict: None }, field)
}

fn not_run(kind: &str, field: String) -> ApiError {
    ApiError::field(field, format!("{kind} tools cannot be run by this server; define a function instead"))
}

pub(crate) fn is_web_search(kind: &str) -> bool {
    kind.starts_with("web_search")
}

/// The tools as the answer repeats them.
pub(crate) fn echo(bodies: &[Object<ToolBody>]) -> Vec<ToolBody> {
    let filled = |body: &Object<ToolBody>| {
        // The API's default, said aloud as it does.
        let strict = body.strict.or_else(|| (body.kind == "function").then_some(true));
        // A header may be a key.
        let hidden = |headers: &BTreeMap<String, String>| {
            headers.keys().map(|name| (name.clone(), "<redacted>".to_owned())).collect()
        };
        ToolBody { strict, headers: body.headers.as_ref().map(hidden), ..body.0.clone() }
    };
    bodies.iter().map(filled).collect()
}

/// Which of them.
pub(crate) fn tool_choice(choice: Option<&Value>, tools: &[Tool]) -> Result<Choice, ApiError> {
    let wrong = |reason: &str| Err(ApiError::field("tool_choice", reason));
    let choice = match choice {
        None | Some(Value::Null) => Choice::Auto,
        Some(Value::String(word)) => choice_word(word, "an object")?,
        Some(Value::Object(object)) => match object.get("type").and_then(Value::as_str) {
            Some("function" | CUSTOM) => Choice::Named(known(object.get("name"), tools, "tool_choice.name")?),
            Some("allowed_tools") => allowed(object, tools)?,
            Some(MCP) => Choice::Among { names: of_server(object, tools, "tool_choice")?, required: true },
            Some(other) => return wrong(&format!("{other} tools cannot be run by this server; name a function")),
            None => return wrong("it needs a type, such as function"),
        },
        Some(_) => return wrong("it must be a string or an object"),
    };
    let needs_tools = !matches!(choice, Choice::Auto | Choice::None);
    if needs_tools && tools.is_empty() { wrong("there are no functions to choose from") } else { Ok(choice) }
}

fn allowed(object: &serde_json::Map<String, Value>, tools: &[Tool]) -> Result<Choice, ApiError> {
    let required = match object.get("mode").and_then(Value::as_str) {
        Some("auto") => false,
        Some("required") => true,
        _ => return Err(ApiError::field("tool_choice.mode", "it must be auto or required")),
    };
    let list = object.get("tools").and_then(Value::as_array);
    let list = list.ok_or_else(|| ApiError::field("tool_choice.tools", "it must be a list of tools"))?;
    let functions = list
        .iter()
        .enumerate()
        .filter(|(_, tool)| !tool.get("type").and_then(Value::as_str).is_some_and(is_web_search));
    let mut names = Vec::new();
    for (at, tool) in functions {
        let field = format!("tool_choice.tools[{at}]");
        match tool.as_object().filter(|tool| tool.get("type").and_then(Value::as_str) == Some(MCP)) {
            Some(tool) => names.extend(of_server(tool, tools, &field)?),
            None => names.push(known(tool.get("name"), tools, &format!("{field}.name"))?),
        }
    }
    Ok(Choice::Among { names, required })
}

/// The tools of an MCP server that a choice names: one, or all.
fn of_server(object: &serde_json::Map<String, Value>, tools: &[Tool], field: &str) -> Result<Vec<String>, ApiError> {
    let label = object.get("server_label").and_then(Value::as_str).unwrap_or_default();
    let name = object.get("name").filter(|name| !name.is_null());
    let name = name.map(|name| joined(label, name.as_str().unwrap_or_default()));
    let is_meant = |tool: &&Tool| match &name {
        Some(name) => tool.name == *name,
        None => tool.name.starts_with(&joined(label, "")),
    };
    let names: Vec<String> = tools.iter().filter(is_meant).map(|tool| tool.name.clone()).collect();
    if names.is_empty() {
        return Err(ApiError::field(field, format!("the MCP server {label:?} has no such tool")));
    }
    Ok(names)
}

fn known(name: Option<&Value>, tools: &[Tool], field: &str) -> Result<String, ApiError> {
    match name.and_then(Value::as_str) {
        Some(name) if tools.iter().any(|tool| tool.name == name) => Ok(name.to_owned()),
        Some(name) => Err(ApiError::field(field, format!("{name:?} is not among the tools"))),
        None => Err(ApiError::field(field, "the name of a function is needed")),
    }
}
