//! A reply as items, and each step of their growth as an event.
//!
//! Used by `create` for streams and for whole answers alike, so both say the same. Items follow each other: a new one
//! closes the one before. Events are numbered from 0 and are never taken back. `tool_calls` adds the items of calls that
//! this server makes.

pub(crate) mod tool_calls;

use poncho_api::{CallDelta, Delta, TokenLogprob};
use serde::Serialize;
use serde_json::{Value, json};

use super::custom::InputReader;
use super::mcp::Listed;
use super::namespace::Grouped;
use super::object::ResponseOut;
use crate::dialects::openai::convert::chat_logprobs;
use crate::dialects::shared::PonchoReport;
use crate::http::sse::Frame;
use crate::request_id::random_id;
use crate::responses::item::{CallBatch, ContentPart, Item, Role, Status, ThinkingPart, opaque};
use crate::responses::token::TokenOut;

/// What a client wants to see of a reply.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wishes {
    /// Thinking is sent as a summary.
    pub(crate) summary: bool,
    /// Thinking also travels as an opaque text.
    pub(crate) opaque: bool,
    pub(crate) logprobs: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Composer {
    wishes: Wishes,
    /// The functions that the model knows by joined names.
    groups: Vec<Grouped>,
    /// The tools with calls that hold a text.
    custom: Vec<String>,
    /// The tools that this server calls.
    listed: Vec<Listed>,
    /// What the ids of calls start with, if there are such tools.
    batch: Option<CallBatch>,
    items: Vec<Item>,
    /// Items before the current reply of the model.
    round_start: usize,
    /// Whether the last item may still grow.
    is_open: bool,
    /// Where each tool call of the reply stands among the items, and what reads the input of a custom one.
    calls: Vec<(usize, InputReader)>,
    /// Drawn tokens that no text was told for yet.
    drawn: Vec<TokenLogprob>,
    next_number: u64,
}

/// An event about the whole response.
#[derive(Serialize)]
struct ResponseEvent<'a> {
    r#type: &'static str,
    sequence_number: u64,
    response: &'a ResponseOut,
    #[serde(skip_serializing_if = "Option::is_none")]
    poncho: Option<PonchoReport>,
}

impl Composer {
    pub(crate) fn new(wishes: Wishes) -> Self {
        Self { wishes, ..Self::default() }
    }

    /// With functions that have their joined names split again.
    pub(crate) fn with_groups(self, groups: Vec<Grouped>) -> Self {
        Self { groups, ..self }
    }

    /// With tools that take a text.
    pub(crate) fn with_custom(self, custom: Vec<String>) -> Self {
        Self { custom, ..self }
    }

    /// The items so far.
    pub(crate) fn take_items(&mut self) -> Vec<Item> {
        std::mem::take(&mut self.items)
    }

    /// An event about the whole response.
    pub(crate) fn response_event(&mut self, name: &'static str, response: &ResponseOut) -> Frame {
        self.response_event_with(name, response, None)
    }

    /// How far a response is that has nothing to say yet.
    pub(crate) fn waiting(&mut self, response: &ResponseOut, poncho: PonchoReport) -> Frame {
        self.response_event_with("response.in_progress", response, Some(poncho))
    }

    fn response_event_with(
        &mut self,
        name: &'static str,
        response: &ResponseOut,
        poncho: Option<PonchoReport>,
    ) -> Frame {
        let event = ResponseEvent { r#type: name, sequence_number: self.number(), response, poncho };
        Frame::named(name, serde_json::to_string(&event).unwrap_or_default())
    }

    /// Any other event.
    pub(crate) fn event(&mut self, name: &'static str, mut fields: Value) -> Frame {
        if let Some(fields) = fields.as_object_mut() {
            fields.insert("type".to_owned(), name.into());
            fields.insert("sequence_number".to_owned(), self.number().into());
        }
        Frame::named(name, fields.to_string())
    }

    fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// More of the reply.
    pub(crate) fn delta(&mut self, delta: Delta) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.drawn.extend(delta.logprobs);
        if !delta.reasoning.is_empty() {
            self.think(&delta.reasoning, &mut frames);
        }
        if !delta.content.is_empty() {
            self.say(&delta.content, &mut frames);
        }
        for call in delta.calls {
            self.call(call, &mut frames);
        }
        frames
    }

    /// The end of the reply.
    pub(crate) fn end(&mut self, status: Status) -> Vec<Frame> {
        let mut frames = Vec::new();
        // A model that says nothing has said an empty text.
        if self.items.len() == self.round_start && status == Status::Completed {
            self.open_message(&mut frames);
        }
        self.close(status, &mut frames);
        frames
    }

    fn last_index(&self) -> usize {
        self.items.len().saturating_sub(1)
    }

    fn open(&mut self, item: Item, frames: &mut Vec<Frame>) {
        self.close(Status::Completed, frames);
        self.items.push(item);
        self.is_open = true;
        let (index, item) = (self.last_index(), self.items.last());
        let fields = json!({"output_index": index, "item": item});
        frames.push(self.event("response.output_item.added", fields));
    }

    fn think(&mut self, text: &str, frames: &mut Vec<Frame>) {
        let is_summary = self.wishes.summary;
        if !(self.is_open && matches!(self.items.last(), Some(Item::Reasoning { .. }))) {
            let (id, status) = (random_id("rs_"), Status::InProgress);
            let (summary, content) = (Vec::new(), Vec::new());
            self.open(Item::Reasoning { id, summary, content, encrypted_content: None, status }, frames);
            let name = if is_summary { "response.reasoning_summary_part.added" } else { "response.content_part.added" };
            let part = self.thinking_part(String::new());
            let fields = self.about(json!({"part": part}), is_summary);
            frames.push(self.event(name, fields));
        }
        let part = self.thinking_part(String::new());
        if let Some(Item::Reasoning { summary, content, .. }) = self.items.last_mut() {
            let parts = if is_summary { summary } else { content };
            if parts.is_empty() {
                parts.push(part);
            }
            if let Some(ThinkingPart::SummaryText { text: told } | ThinkingPart::ReasoningText { text: told }) =
                parts.last_mut()
            {
                told.push_str(text);
            }
        }
        let name = if is_summary { "response.reasoning_summary_text.delta" } else { "response.reasoning_text.delta" };
        let fields = self.about(json!({"delta": text}), is_summary);
        frames.push(self.event(name, fields));
    }

    fn thinking_part(&self, text: String) -> ThinkingPart {
        if self.wishes.summary { ThinkingPart::SummaryText { text } } else { ThinkingPart::ReasoningText { text } }
    }

    /// Which part of which item an event is about: always the first of the last item.
    fn about(&self, mut fields: Value, is_summary: bool) -> Value {
        if let Some(fields) = fields.as_object_mut() {
            fields.insert("item_id".to_owned(), self.items.last().map(Item::id).into());
            fields.insert("output_index".to_owned(), self.last_index().into());
            fields.insert(if is_summary { "summary_index" } else { "content_index" }.to_owned(), 0.into());
        }
        fields
    }

    fn open_message(&mut self, frames: &mut Vec<Frame>) {
        let (id, status) = (random_id("msg_"), Status::InProgress);
        self.open(Item::Message { id, status, role: Role::Assistant, content: Vec::new() }, frames);
        let part = ContentPart::output_text(String::new(), Vec::new());
        let fields = self.about(json!({"part": part}), false);
        if let Some(Item::Message { content, .. }) = self.items.last_mut() {
            content.push(part);
        }
        frames.push(self.event("response.content_part.added", fields));
    }

    fn say(&mut self, text: &str, frames: &mut Vec<Frame>) {
        if !(self.is_open && matches!(self.items.last(), Some(Item::Message { .. }))) {
            self.open_message(frames);
        }
        let new: Vec<TokenOut> = if self.wishes.logprobs { logprobs_of(&mut self.drawn, text) } else { Vec::new() };
        let fields = self.about(json!({"delta": text, "logprobs": new}), false);
        if let Some(Item::Message { content, .. }) = self.items.last_mut()
            && let Some(ContentPart::OutputText { text: told, logprobs, .. }) = content.last_mut()
        {
            told.push_str(text);
            logprobs.extend(new);
        }
        frames.push(self.event("response.output_text.delta", fields));
    }

    fn call(&mut self, delta: CallDelta, frames: &mut Vec<Frame>) {
        if let Some((call_id, name)) = delta.start {
            let item = self.begun(call_id, name);
            let is_ours = matches!(item, Item::McpCall { .. });
            self.open(item, frames);
            if is_ours {
                let fields = self.about_call(self.last_index());
                frames.push(self.event("response.mcp_call.in_progress", fields));
            }
            self.calls.push((self.last_index(), InputReader::default()));
        }
        let Some((index, reader)) = self.calls.get_mut(delta.index) else { return };
        let (name, id, more) = match self.items.get_mut(*index) {
            Some(Item::FunctionCall { id, arguments, .. }) => {
                arguments.push_str(&delta.arguments);
                ("response.function_call_arguments.delta", id, delta.arguments)
            }
            Some(Item::McpCall { id, arguments, .. }) => {
                arguments.push_str(&delta.arguments);
                ("response.mcp_call_arguments.delta", id, delta.arguments)
            }
            // The API has no event for these; the whole item follows.
            Some(Item::McpApprovalRequest { arguments, .. }) => {
                arguments.push_str(&delta.arguments);
                return;
            }
            Some(Item::CustomToolCall { id, input, .. }) => {
                let more = reader.push(&delta.arguments);
                input.push_str(&more);
                ("response.custom_tool_call_input.delta", id, more)
            }
            _ => return,
        };
        if !more.is_empty() {
            let fields = json!({"item_id": id, "output_index": index, "delta": more});
            frames.push(self.event(name, fields));
        }
    }

    /// A call without its arguments.
    fn begun(&self, call_id: String, name: String) -> Item {
        let status = Status::InProgress;
        if let Some(item) = self.begun_here(&call_id, &name) {
            return item;
        }
        if self.custom.contains(&name) {
            return Item::CustomToolCall { id: random_id("ctc_"), call_id, name, input: String::new(), status };
        }
        let group = self.groups.iter().find(|function| function.called == name);
        let namespace = group.map(|function| function.namespace.clone());
        let name = group.map_or(name, |function| function.name.clone());
        let id = self.batch.as_ref().map_or_else(|| random_id("fc_"), |batch| batch.item_id("fc_", &call_id));
        Item::FunctionCall { id, call_id, name, namespace, arguments: String::new(), status }
    }

    /// The whole input of the call at a place, if it is a custom tool's.
    fn whole_input(&self, place: usize) -> Option<String> {
        self.calls.iter().find(|(index, _)| *index == place).and_then(|(_, reader)| reader.whole())
    }

    fn close(&mut self, ending: Status, frames: &mut Vec<Frame>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let index = self.last_index();
        let wants_opaque = self.wishes.opaque;
        let whole = self.whole_input(index);
        let Some(item) = self.items.last_mut() else { return };
        let thought = item.thinking();
        let events: Vec<(&'static str, Value, bool)> = match item {
            Item::Reasoning { summary, content, encrypted_content, status, .. } => {
                *status = ending;
                *encrypted_content = thought.as_deref().filter(|_| wants_opaque).map(opaque);
                let is_summary = content.is_empty();
                let part = json!(if is_summary { summary.first() } else { content.first() });
                let (text, part_done) = if is_summary {
                    ("response.reasoning_summary_text.done", "response.reasoning_summary_part.done")
                } else {
                    ("response.reasoning_text.done", "response.content_part.done")
                };
                vec![(text, json!({"text": thought}), is_summary), (part_done, json!({"part": part}), is_summary)]
            }
            Item::Message { status, content, .. } => {
                *status = ending;
                let part = json!(content.first());
                let done = json!({"text": part.get("text"), "logprobs": part.get("logprobs")});
                vec![
                    ("response.output_text.done", done, false),
                    ("response.content_part.done", json!({"part": part}), false),
                ]
            }
            Item::FunctionCall { id, name, arguments, status, .. } => {
                *status = ending;
                let done = json!({"item_id": id, "output_index": index, "name": name, "arguments": arguments});
                frames.push(self.event("response.function_call_arguments.done", done));
                Vec::new()
            }
            Item::CustomToolCall { id, input, status, .. } => {
                *status = ending;
                let whole = whole.unwrap_or_else(|| input.clone());
                let rest = whole.strip_prefix(input.as_str()).filter(|rest| !rest.is_empty());
                let rest = rest.map(|rest| json!({"item_id": id, "output_index": index, "delta": rest}));
                let done = json!({"item_id": id, "output_index": index, "input": whole});
                *input = whole;
                for (name, fields) in rest
                    .map(|rest| ("response.custom_tool_call_input.delta", rest))
                    .into_iter()
                    .chain([("response.custom_tool_call_input.done", done)])
                {
                    frames.push(self.event(name, fields));
                }
                Vec::new()
            }
            Item::McpCall { id, arguments, .. } => {
                let done = json!({"item_id": id, "output_index": index, "arguments": arguments});
                frames.push(self.event("response.mcp_call_arguments.done", done));
                // Its item is done when the call has returned.
                return;
            }
            Item::FunctionCallOutput { .. }
            | Item::CustomToolCallOutput { .. }
            | Item::McpListTools { .. }
            | Item::McpApprovalRequest { .. }
            | Item::McpApprovalResponse { .. } => Vec::new(),
        };
        for (name, fields, is_summary) in events {
            let fields = self.about(fields, is_summary);
            frames.push(self.event(name, fields));
        }
        let fields = json!({"output_index": index, "item": self.items.last()});
        frames.push(self.event("response.output_item.done", fields));
    }
}

/// Takes the log probabilities of a text's tokens out of those that were drawn. Tokens before them belong to thinking
/// and marks and are dropped; tokens after them stay for the text that comes next.
fn logprobs_of(drawn: &mut Vec<TokenLogprob>, text: &str) -> Vec<TokenOut> {
    let starts = |first: usize| {
        let tail = drawn.iter().skip(first);
        let mut bytes = text.as_bytes();
        let mut count = 0;
        for token in tail {
            if bytes.is_empty() {
                break;
            }
            let shared = token.token.bytes.len().min(bytes.len());
            let (expected, rest) = bytes.split_at(shared);
            if !token.token.bytes.starts_with(expected) {
                return None;
            }
            bytes = rest;
            count += 1;
        }
        bytes.is_empty().then_some((first, count))
    };
    // A text that is not spelled by its tokens (a broken character) takes all of them.
    let (first, count) = (0..drawn.len()).find_map(starts).unwrap_or((0, drawn.len()));
    let taken: Vec<TokenLogprob> = drawn.drain(..first + count).skip(first).collect();
    chat_logprobs(&taken).content
}

#[cfg(test)]
mod tests {
    use poncho_api::TokenProbability;

    use super::*;

    fn drawn(tokens: &[&str]) -> Vec<TokenLogprob> {
        let token = |text: &&str| TokenProbability { id: 0, bytes: text.as_bytes().to_vec(), logprob: -1.0 };
        tokens.iter().map(|text| TokenLogprob { token: token(text), top: Vec::new() }).collect()
    }

    fn taken(drawn: &mut Vec<TokenLogprob>, text: &str) -> Vec<String> {
        logprobs_of(drawn, text).into_iter().map(|token| token.token).collect()
    }

    #[test]
    fn log_probabilities_follow_the_text() {
        let mut all = drawn(&["<think>", "h", "m", "</think>", "Th", "in", "k!", "<tool>", "{"]);
        assert_eq!(taken(&mut all, "Think"), ["Th", "in", "k!"], "a token that reaches further still belongs to it");
        assert_eq!(all.len(), 2);
        let mut all = drawn(&["</think>", "t", "o"]);
        assert_eq!(taken(&mut all, "t"), ["t"], "a mark is not text");
        assert_eq!(taken(&mut all, "o"), ["o"]);
        assert_eq!(taken(&mut drawn(&["\u{e9}"]), "\u{fffd}"), ["\u{e9}"]);
        assert!(taken(&mut Vec::new(), "x").is_empty());
    }

    fn names(frames: &[Frame]) -> Vec<&'static str> {
        frames.iter().filter_map(|frame| frame.event).collect()
    }

    #[test]
    fn text_after_a_call_is_another_message() {
        let mut composer = Composer::new(Wishes::default());
        let start = Some(("call_1".to_owned(), "f".to_owned()));
        let call = CallDelta { index: 0, start, arguments: "{}".to_owned() };
        composer.delta(Delta { content: "a".into(), calls: vec![call], ..Delta::default() });
        composer.delta(Delta { content: "b".into(), ..Delta::default() });
        let late = CallDelta { index: 0, start: None, arguments: " ".to_owned() };
        let frames = composer.delta(Delta { calls: vec![late], ..Delta::default() });
        assert_eq!(names(&frames), ["response.function_call_arguments.delta"]);
        composer.end(Status::Incomplete);
        let items: Vec<Value> = composer.take_items().iter().map(|item| json!(item)).collect();
        let kinds: Vec<&Value> = items.iter().map(|item| &item["type"]).collect();
        assert_eq!(kinds, ["message", "function_call", "message"]);
        assert_eq!((&items[0]["status"], &items[2]["status"]), (&json!("completed"), &json!("incomplete")));
        assert_eq!(items[1]["arguments"], "{} ");
    }

    #[test]
    fn nothing_said_is_an_empty_text_and_nothing_begun_is_nothing() {
        let mut silent = Composer::new(Wishes::default());
        silent.end(Status::Completed);
        assert_eq!(json!(silent.take_items())[0]["content"][0]["text"], "");
        let mut cut = Composer::new(Wishes::default());
        assert!(cut.end(Status::Incomplete).is_empty() && cut.take_items().is_empty());
    }
}
