//! Recorded conversations as tokens: for each request the prompt, and the reply that the trace has.
//!
//! Used by the benchmark of drafts. Messages are written in one plain form; what matters is what repeats in them.

use std::path::Path;
use std::sync::Arc;

use poncho_engine::backend::{Model, TokenizeMode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A request and its recorded reply.
#[derive(Serialize, Deserialize)]
pub(crate) struct Exchange {
    pub(crate) prompt: Vec<u32>,
    pub(crate) reply: Vec<u32>,
}

impl Exchange {
    pub(crate) fn whole(&self) -> Vec<u32> {
        [self.prompt.as_slice(), &self.reply].concat()
    }
}

/// A recorded conversation.
#[derive(Serialize, Deserialize)]
pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) exchanges: Vec<Exchange>,
}

/// The traces of a folder, without the shortened ones, in the tokens of the model; or those of a file of tokens.
pub(crate) fn read(folder: &Path, model: impl FnOnce() -> Arc<dyn Model>) -> Vec<Trace> {
    if folder.is_file() {
        return serde_json::from_str(&std::fs::read_to_string(folder).unwrap()).unwrap();
    }
    let model = model();
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap().to_string_lossy();
        name.ends_with(".json") && !name.ends_with(".short.json")
    });
    files.sort();
    files.iter().map(|file| trace(file, &*model)).collect()
}

/// Writes the tokens of traces, for a machine without the model that they are from.
pub(crate) fn write(file: &Path, traces: &[Trace]) {
    std::fs::write(file, serde_json::to_string(traces).unwrap()).unwrap();
}

fn trace(file: &Path, model: &dyn Model) -> Trace {
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let exchanges = trace["requests"].as_array().unwrap().iter().filter_map(|request| exchange(&trace, request, model));
    Trace { name: file.file_stem().unwrap().to_string_lossy().into_owned(), exchanges: exchanges.collect() }
}

fn exchange(trace: &Value, request: &Value, model: &dyn Model) -> Option<Exchange> {
    let turns = match request["thread"].as_str() {
        Some(thread) => &trace["threads"][thread],
        None => &trace["turns"],
    };
    let turns = turns.as_array()?;
    let upto = usize::try_from(request["upto"].as_u64()?).ok()?;
    let (sent, next) = match request["edits"]["order"].as_array() {
        None => (turns.iter().take(upto).collect::<Vec<_>>(), turns.get(upto)),
        Some(order) => {
            let order: Vec<usize> =
                order.iter().map(|place| usize::try_from(place.as_u64().unwrap()).unwrap()).collect();
            (order.iter().map(|place| &turns[*place]).collect(), turns.get(order.last()? + 1))
        }
    };
    let next = next.filter(|message| message["role"] == "assistant")?;
    let chosen = |all: &str, one: &str, number: &str| match request[number].as_u64() {
        Some(number) => trace[all][usize::try_from(number).unwrap()].clone(),
        None => trace[one].clone(),
    };
    let mut text = String::new();
    let (system, tools) = (chosen("systems", "system", "sys"), chosen("toolsets", "tools", "tset"));
    text += &format!("<|im_start|>system\n{}\n", system.as_str().unwrap_or_default());
    for tool in tools.as_array().into_iter().flatten() {
        text += &format!("{tool}\n");
    }
    text += "<|im_end|>\n";
    for message in sent {
        text +=
            &format!("<|im_start|>{}\n{}<|im_end|>\n", message["role"].as_str().unwrap_or("user"), content(message));
    }
    text += "<|im_start|>assistant\n";
    Some(Exchange { prompt: tokens(model, &text), reply: tokens(model, &format!("{}<|im_end|>", content(next))) })
}

/// The text of a message with its tool calls.
fn content(message: &Value) -> String {
    let mut text = String::new();
    for field in ["reasoning_content", "content"] {
        match &message[field] {
            Value::String(part) => text += part,
            Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).for_each(|part| text += part),
            _ => {}
        }
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        let arguments = function["arguments"].as_str().unwrap_or_default();
        text += &format!("<tool_call>\n{{\"name\": {}, \"arguments\": {arguments}}}\n</tool_call>", function["name"]);
    }
    text
}

fn tokens(model: &dyn Model, text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    model.tokenize(text, TokenizeMode { add_special: false, parse_special: true }, &mut tokens).unwrap();
    tokens
}
