//! The events of a streamed message: blocks that open, grow and close one after the other.
//!
//! One message per stream. A block is closed before the next opens and its number is never used again; thinking is
//! signed when its block closes. Between the start and the end of the message only blocks, pings and an error come.

use super::convert::Display;
use super::messages::{Style, empty_object, stop_reason};
use super::signature::sign;
use super::types::{BlockOut, DeltaOut, EventOut, MessageOut, StopOut, Usage};
use crate::error::{ApiError, Family};
use crate::http::heartbeat::Heartbeat;
use crate::http::sse::{Events, Frame};
use poncho_api::{CallDelta, Delta, Finished, Started};

/// See the module.
pub(crate) struct MessageEvents {
    style: Style,
    is_begun: bool,
    blocks: Blocks,
}

impl MessageEvents {
    pub(crate) fn new(style: Style) -> Self {
        Self { style, is_begun: false, blocks: Blocks::default() }
    }

    fn begin(&mut self, usage: Usage) -> Vec<Frame> {
        if std::mem::replace(&mut self.is_begun, true) {
            return Vec::new();
        }
        let message = MessageOut {
            id: &self.style.id,
            kind: "message",
            role: "assistant",
            model: &self.style.model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage,
            diagnostics: self.style.diagnostics(usage.cache_read_input_tokens),
            poncho: None,
        };
        vec![EventOut::MessageStart { message }.into(), EventOut::Ping { poncho: None }.into()]
    }

    fn grow(&mut self, delta: Delta) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.style.display != Display::Hidden && !delta.reasoning.is_empty() {
            self.blocks.thinking(&self.style, delta.reasoning, &mut frames);
        }
        self.blocks.text(&self.style, delta.content, &mut frames);
        for call in delta.calls {
            self.blocks.call(&self.style, call, &mut frames);
        }
        frames
    }
}

impl Events for MessageEvents {
    fn waiting(&mut self, heartbeat: Heartbeat) -> Vec<Frame> {
        vec![EventOut::Ping { poncho: Some(heartbeat.into()) }.into()]
    }

    fn started(&mut self, _index: usize, started: Started) -> Vec<Frame> {
        self.begin(started.into())
    }

    fn delta(&mut self, _index: usize, delta: Delta) -> Vec<Frame> {
        let mut frames = self.begin(Usage::default());
        frames.extend(self.grow(delta));
        frames
    }

    fn done(&mut self, _index: usize, mut finished: Box<Finished>) -> Vec<Frame> {
        let usage = Usage::from(&finished.completion);
        let mut frames = self.begin(Usage { output_tokens: 0, ..usage });
        frames.extend(self.grow(std::mem::take(&mut finished.rest)));
        self.blocks.close(&self.style, &mut frames);
        let (stop_reason, stop_sequence) = stop_reason(&self.style, &finished);
        let delta = StopOut { stop_reason, stop_sequence: stop_sequence.as_deref() };
        let poncho = self.style.reporting.of(&finished);
        frames.push(EventOut::MessageDelta { delta, usage, poncho }.into());
        frames
    }

    fn end(&mut self) -> Vec<Frame> {
        vec![EventOut::MessageStop.into()]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![Frame { event: Some("error"), data: error.body(Family::Anthropic).to_string() }]
    }
}

/// The block that is open, if one is.
#[derive(Debug, Default, PartialEq, Eq)]
enum Open {
    #[default]
    Nothing,
    /// With all of its text, for the signature.
    Thinking(String),
    Text,
    /// With its place among the calls of the reply.
    Call(usize),
}

#[derive(Default)]
struct Blocks {
    open: Open,
    /// The number of the open block, or of the next one.
    index: usize,
    /// White space that waits for a text: alone it makes no block.
    held: String,
}

impl Blocks {
    fn thinking(&mut self, style: &Style, more: String, frames: &mut Vec<Frame>) {
        if !matches!(self.open, Open::Thinking(_)) {
            let block = BlockOut::Thinking { thinking: String::new(), signature: String::new() };
            self.start(style, Open::Thinking(String::new()), block, frames);
        }
        if let Open::Thinking(all) = &mut self.open {
            all.push_str(&more);
        }
        if style.display == Display::Full {
            self.delta(DeltaOut::Thinking { thinking: more }, frames);
        }
    }

    fn text(&mut self, style: &Style, more: String, frames: &mut Vec<Frame>) {
        if more.is_empty() {
            return;
        }
        let mut text = more;
        if self.open != Open::Text {
            text.insert_str(0, &std::mem::take(&mut self.held));
            if text.trim().is_empty() {
                self.held = text;
                return;
            }
            self.start(style, Open::Text, BlockOut::Text { text: String::new() }, frames);
        }
        self.delta(DeltaOut::Text { text }, frames);
    }

    fn call(&mut self, style: &Style, call: CallDelta, frames: &mut Vec<Frame>) {
        if let Some((id, name)) = call.start {
            let block = BlockOut::ToolUse { id, name, input: empty_object() };
            self.start(style, Open::Call(call.index), block, frames);
        }
        // A call that was closed can no longer grow.
        if self.open == Open::Call(call.index) && !call.arguments.is_empty() {
            self.delta(DeltaOut::InputJson { partial_json: call.arguments }, frames);
        }
    }

    fn start(&mut self, style: &Style, open: Open, content_block: BlockOut, frames: &mut Vec<Frame>) {
        self.close(style, frames);
        frames.push(EventOut::ContentBlockStart { index: self.index, content_block }.into());
        self.open = open;
    }

    fn close(&mut self, style: &Style, frames: &mut Vec<Frame>) {
        let closed = std::mem::take(&mut self.open);
        if closed == Open::Nothing {
            return;
        }
        if let Open::Thinking(all) = closed {
            let signature = sign(style.signing_key.as_ref(), &all);
            self.delta(DeltaOut::Signature { signature }, frames);
        }
        frames.push(EventOut::ContentBlockStop { index: self.index }.into());
        self.index += 1;
    }

    fn delta(&self, delta: DeltaOut, frames: &mut Vec<Frame>) {
        frames.push(EventOut::ContentBlockDelta { index: self.index, delta }.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::dialects::shared::Reporting;

    fn events(display: Display) -> MessageEvents {
        MessageEvents::new(Style {
            id: "msg_1".into(),
            model: "stub".into(),
            display,
            stop_sequences: vec![],
            signing_key: None,
            reporting: Reporting::default(),
        })
    }

    fn call(index: usize, start: Option<&str>, arguments: &str) -> Delta {
        let start = start.map(|name| (format!("toolu_{index}"), name.to_owned()));
        Delta { calls: vec![CallDelta { index, start, arguments: arguments.to_owned() }], ..Delta::default() }
    }

    fn said(text: &str) -> Delta {
        Delta { content: text.to_owned(), ..Delta::default() }
    }

    fn thought(text: &str) -> Delta {
        Delta { reasoning: text.to_owned(), ..Delta::default() }
    }

    /// What each event does to which block.
    fn written(display: Display, deltas: Vec<Delta>) -> Vec<String> {
        let mut events = events(display);
        let mut frames: Vec<Frame> = deltas.into_iter().flat_map(|delta| events.grow(delta)).collect();
        let style = self::events(display).style;
        events.blocks.close(&style, &mut frames);
        let tell = |frame: &Frame| {
            let data: Value = serde_json::from_str(&frame.data).unwrap();
            assert_eq!(data["type"], frame.event.unwrap());
            let what = data["content_block"]["type"].as_str().or(data["delta"]["type"].as_str()).unwrap_or("stop");
            let texts = ["thinking", "text", "partial_json"].map(|name| data["delta"][name].as_str().unwrap_or(""));
            format!("{} {what} {}", data["index"], texts.concat()).trim_end().to_owned()
        };
        frames.iter().map(tell).collect()
    }

    #[test]
    fn blocks_follow_each_other() {
        let deltas = vec![
            thought("hm"),
            thought(" so"),
            said("\n\n"),
            said("Yes"),
            said(" "),
            call(0, Some("f"), ""),
            call(0, None, "{}"),
            call(1, Some("g"), "{\"a\":1}"),
            said("\n"),
            thought("again"),
        ];
        let expected = [
            "0 thinking",
            "0 thinking_delta hm",
            "0 thinking_delta  so",
            "0 signature_delta",
            "0 stop",
            "1 text",
            "1 text_delta \n\nYes",
            "1 text_delta",
            "1 stop",
            "2 tool_use",
            "2 input_json_delta {}",
            "2 stop",
            "3 tool_use",
            "3 input_json_delta {\"a\":1}",
            "3 stop",
            "4 thinking",
            "4 thinking_delta again",
            "4 signature_delta",
            "4 stop",
        ];
        assert_eq!(written(Display::Full, deltas), expected);
    }

    #[test]
    fn thinking_is_shown_as_it_was_asked_for() {
        let deltas = || vec![thought("hm"), said("Yes")];
        assert_eq!(written(Display::Hidden, deltas()), ["0 text", "0 text_delta Yes", "0 stop"]);
        let omitted = ["0 thinking", "0 signature_delta", "0 stop", "1 text", "1 text_delta Yes", "1 stop"];
        assert_eq!(written(Display::Omitted, deltas()), omitted);
    }

    #[test]
    fn white_space_alone_makes_no_block_and_a_closed_call_does_not_grow() {
        assert_eq!(written(Display::Full, vec![said("\n"), said(" ")]), [""; 0]);
        let late = vec![call(0, Some("f"), "{}"), call(1, Some("g"), "{}"), call(0, None, "late")];
        assert!(!written(Display::Full, late).iter().any(|line| line.contains("late")));
    }

    #[test]
    fn a_message_begins_once() {
        let mut events = events(Display::Full);
        let names = |frames: Vec<Frame>| frames.iter().map(|frame| frame.event.unwrap()).collect::<Vec<_>>();
        let first = events.started(0, Started { prompt: 9, cached_tokens: 4 });
        let data: Value = serde_json::from_str(&first[0].data).unwrap();
        let usage = json!({"input_tokens": 0, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 0});
        assert_eq!(data["message"]["usage"], usage);
        assert_eq!(names(first), ["message_start", "ping"]);
        assert_eq!(names(events.delta(0, said("a"))), ["content_block_start", "content_block_delta"]);
        assert_eq!(names(events.end()), ["message_stop"]);
        let failed = events.failed(&ApiError::Cancelled);
        assert_eq!(failed[0].event, Some("error"));
        assert!(failed[0].data.contains("overloaded_error"), "{}", failed[0].data);
    }
}
