//! From drawn tokens to events: markers, UTF-8, stop sequences.
//!
//! One value per request, fed by the worker with each drawn token. It must never send a part of a matched stop sequence
//! or half a character, and never lose a byte of a tool call. A request for raw text gets all of it as text, in the order
//! in which it was drawn; markers then still count thinking, sign it and keep stop sequences out of it.

use crate::SigningKey;
use crate::backend::{Model, SpecialText};
use crate::calls::event::StreamEvent;
use crate::calls::request::{Request, Thinking};
use crate::calls::stream::EventSender;
use crate::reply::detokenize::Utf8Stream;
use crate::reply::markers::{Class, MarkerEvent, MarkerMachine, MarkerSet, SamplingMode, Start};
use crate::reply::stop::StopMatcher;

/// See the module.
pub(crate) struct Output {
    machine: MarkerMachine,
    trivial: bool,
    stops: StopMatcher,
    has_stops: bool,
    text: Utf8Stream,
    thinking: Block,
    tool: Block,
    shown_tokens: Vec<u32>,
    raw_text: bool,
    signing_key: Option<SigningKey>,
    reply: String,
    /// Scratch, kept between tokens.
    bytes: Vec<u8>,
    decided: Vec<MarkerEvent>,
}

/// A thinking block or a tool call: its text as it comes, and all its bytes for the end.
#[derive(Default)]
struct Block {
    utf8: Utf8Stream,
    all: Vec<u8>,
}

impl Output {
    pub(crate) fn new(request: &Request, markers: &MarkerSet, signing_key: Option<SigningKey>) -> Self {
        let budget = match request.thinking {
            Thinking::Off => Some(0),
            Thinking::On | Thinking::Default => request.thinking_budget,
        };
        let own = request.thinking_markers.clone().map(|own| MarkerSet { thinking: Some(own), ..markers.clone() });
        let markers = own.as_ref().unwrap_or(markers);
        let machine = MarkerMachine::new(markers, Start::of(markers, &request.tokens), budget);
        Self {
            trivial: machine.is_trivial(),
            machine,
            stops: StopMatcher::new(&request.stop),
            has_stops: !request.stop.is_empty(),
            text: Utf8Stream::new(),
            thinking: Block::default(),
            tool: Block::default(),
            shown_tokens: request.shown_tokens.clone(),
            raw_text: request.raw_text,
            signing_key,
            reply: String::new(),
            bytes: Vec::new(),
            decided: Vec::new(),
        }
    }

    /// How the next token is drawn.
    pub(crate) fn sampling_mode(&self) -> SamplingMode {
        if self.trivial { SamplingMode::Request } else { self.machine.sampling_mode() }
    }

    /// The token to force next, if a thinking block has to be closed.
    pub(crate) fn forced_token(&self) -> Option<u32> {
        if self.trivial { None } else { self.machine.must_close().and_then(|tokens| tokens.first()).copied() }
    }

    /// Takes a drawn token. Returns the place of the stop sequence that is now complete, if one is.
    pub(crate) fn push(&mut self, token: u32, model: &dyn Model, events: &EventSender) -> Option<usize> {
        if self.trivial {
            return self.push_class(token, Class::Text, model, events);
        }
        let mut decided = std::mem::take(&mut self.decided);
        self.machine.push(token, &mut decided);
        let matched = self.apply(&decided, model, events);
        decided.clear();
        self.decided = decided;
        matched
    }

    /// The reply ended; what was held back comes out, unless a stop sequence ended it.
    pub(crate) fn finish(&mut self, stopped: bool, model: &dyn Model, events: &EventSender) {
        let mut decided = std::mem::take(&mut self.decided);
        self.machine.finish(&mut decided);
        self.apply(&decided, model, events);
        if stopped {
            return;
        }
        let tail = self.release_text();
        self.send_text(tail, events);
    }

    /// The reply's text so far.
    pub(crate) fn take_reply(&mut self) -> String {
        std::mem::take(&mut self.reply)
    }

    fn apply(&mut self, decided: &[MarkerEvent], model: &dyn Model, events: &EventSender) -> Option<usize> {
        let mut matched = None;
        for event in decided {
            match *event {
                MarkerEvent::Token(token, class) => {
                    if let Some(stop) = self.push_class(token, class, model, events) {
                        matched = matched.or(Some(stop));
                    }
                }
                MarkerEvent::ThinkingEnd(_) => {
                    let tail = self.thinking.utf8.flush().to_owned();
                    self.send_block(tail, StreamEvent::ThinkingDelta, events);
                    let block = std::mem::take(&mut self.thinking).all;
                    let signature = self.signing_key.as_ref().map(|key| key.sign(&block));
                    events.send(StreamEvent::ThinkingEnd { signature });
                }
                MarkerEvent::ToolEnd(_) => {
                    let tail = self.tool.utf8.flush().to_owned();
                    self.send_block(tail, StreamEvent::ToolCallDelta, events);
                    events.send(StreamEvent::ToolCallEnd { bytes: std::mem::take(&mut self.tool).all });
                }
            }
        }
        matched
    }

    fn push_class(&mut self, token: u32, class: Class, model: &dyn Model, events: &EventSender) -> Option<usize> {
        // The bytes of a tool call are kept exactly as they were drawn, control tokens too.
        let shown = matches!(class, Class::ToolMarker | Class::ToolSyntax | Class::ToolPayload)
            || (class == Class::ThinkingMarker && self.raw_text)
            || (!self.shown_tokens.is_empty() && self.shown_tokens.contains(&token));
        self.bytes.clear();
        model.token_bytes(token, if shown { SpecialText::Render } else { SpecialText::Hide }, &mut self.bytes);
        match class {
            Class::Text => return self.push_text(events),
            Class::ThinkingMarker if self.raw_text => {
                let text = self.thinking.utf8.push(&self.bytes).to_owned();
                self.send_block(text, StreamEvent::ThinkingDelta, events);
            }
            Class::ThinkingMarker => {}
            Class::Thinking => {
                self.thinking.all.extend_from_slice(&self.bytes);
                let text = self.thinking.utf8.push(&self.bytes).to_owned();
                self.send_block(text, StreamEvent::ThinkingDelta, events);
            }
            Class::ToolMarker | Class::ToolSyntax | Class::ToolPayload => {
                self.tool.all.extend_from_slice(&self.bytes);
                let text = self.tool.utf8.push(&self.bytes).to_owned();
                self.send_block(text, StreamEvent::ToolCallDelta, events);
            }
        }
        None
    }

    /// Sends a part of a block: as its own event, or as text, after the text that was held back before it.
    fn send_block(&mut self, text: String, event: fn(String) -> StreamEvent, events: &EventSender) {
        if text.is_empty() {
            return;
        }
        if self.raw_text {
            let before = self.release_text();
            self.send_text(before + &text, events);
        } else {
            events.send(event(text));
        }
    }

    /// The text that was held back: a stop sequence that it may have begun is none.
    fn release_text(&mut self) -> String {
        let tail = self.text.flush().to_owned();
        if !self.has_stops {
            return tail;
        }
        let outcome = self.stops.push(&tail);
        let mut text = outcome.emit.to_owned();
        if outcome.matched.is_none() {
            text.push_str(self.stops.flush());
        }
        text
    }

    fn send_text(&mut self, text: String, events: &EventSender) {
        if !text.is_empty() {
            self.reply.push_str(&text);
            events.send(StreamEvent::Text(text));
        }
    }

    fn push_text(&mut self, events: &EventSender) -> Option<usize> {
        let text = self.text.push(&self.bytes);
        let (emit, matched) = if self.has_stops {
            let outcome = self.stops.push(text);
            (outcome.emit, outcome.matched)
        } else {
            (text, None)
        };
        if !emit.is_empty() {
            self.reply.push_str(emit);
            events.send(StreamEvent::Text(emit.to_owned()));
        }
        matched
    }
}
