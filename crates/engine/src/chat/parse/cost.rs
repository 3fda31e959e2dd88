//! What parsing a long reply costs, counted in bytes and in time.
//!
//! Used by the benchmark and by the tests that hold the bound. It needs no model: the generic parser reads replies that
//! are made up here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use poncho_api::ChatOutput;

use super::{RATE, ReplyParser, START};
use crate::backend::{ChatError, ChatParser};
use crate::chat::delta::Sent;
use crate::chat::marks::ReplyMarks;
use crate::chat::tools::{CALL_OPEN, GenericParser};

/// The marks of the replies here.
pub(super) const THINKING: [&str; 2] = ["<think>", "</think>"];

/// Shapes of a long reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyShape {
    /// Content alone.
    Content,
    /// Thinking for the first half, then content.
    Thinking,
    /// One tool call.
    Call,
}

/// What a reply cost.
#[derive(Debug, Clone, Copy)]
pub struct ParseCost {
    /// Bytes of the reply.
    pub reply_bytes: usize,
    /// Bytes that were parsed while it grew and at its end.
    pub parsed_bytes: usize,
    /// How often the parser was called.
    pub parses: usize,
    /// Time for all of it.
    pub time: Duration,
}

impl ParseCost {
    /// The most bytes that may be parsed for a reply of this length.
    #[must_use]
    pub const fn bound(reply_bytes: usize) -> usize {
        START + (RATE + 1) * reply_bytes
    }
}

/// Feeds a reply of this shape token by token, four bytes each.
#[must_use]
pub fn parse_cost(shape: ReplyShape, tokens: usize) -> ParseCost {
    let words = |count: usize| "word".repeat(count);
    let pieces =
        |text: &str| -> Vec<String> { text.chars().collect::<Vec<char>>().chunks(4).map(String::from_iter).collect() };
    let text = match shape {
        ReplyShape::Content => words(tokens),
        ReplyShape::Thinking => {
            let [open, close] = THINKING;
            format!("{open}{}{close}{}", words(tokens / 2), words(tokens / 2))
        }
        ReplyShape::Call => {
            format!("{CALL_OPEN}{{\"name\": \"f\", \"arguments\": {{\"text\": \"{}\"}}}}</tool_call>", words(tokens))
        }
    };
    let pieces = pieces(&text);
    let counted = Arc::new(Counted::new(Arc::new(generic(false))));
    let parser: Arc<dyn ChatParser> = Arc::clone(&counted) as _;
    let began = Instant::now();
    let (mut reply, mut sent) = (ReplyParser::new(parser, &marks()), Sent::new(None, usize::MAX));
    for piece in &pieces {
        reply.push(piece);
        let _ = reply.advance(&mut sent);
    }
    let _ = reply.whole(false).map(|whole| sent.update(&whole));
    let time = began.elapsed();
    ParseCost { reply_bytes: text.len(), parsed_bytes: counted.bytes(), parses: counted.parses(), time }
}

/// Counts what is parsed.
pub(super) struct Counted {
    inner: Arc<dyn ChatParser>,
    bytes: AtomicUsize,
    parses: AtomicUsize,
}

impl Counted {
    pub(super) fn new(inner: Arc<dyn ChatParser>) -> Self {
        Self { inner, bytes: AtomicUsize::new(0), parses: AtomicUsize::new(0) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn parses(&self) -> usize {
        self.parses.load(Ordering::Relaxed)
    }
}

impl ChatParser for Counted {
    fn parse(&self, generated: &str, partial: bool) -> Result<ChatOutput, ChatError> {
        self.bytes.fetch_add(generated.len(), Ordering::Relaxed);
        self.parses.fetch_add(1, Ordering::Relaxed);
        self.inner.parse(generated, partial)
    }
}

/// Thinking at the start, then content; holds back what may become a mark, as llama.cpp's parsers do.
pub(super) struct Thinker {
    pub(super) opened: bool,
}

impl ChatParser for Thinker {
    fn parse(&self, generated: &str, partial: bool) -> Result<ChatOutput, ChatError> {
        let [open, close] = THINKING;
        let mut output = ChatOutput::default();
        let inside = if self.opened { Some(generated) } else { generated.strip_prefix(open) };
        match inside.map(|inside| (inside, inside.split_once(close))) {
            None if partial && open.starts_with(generated) => {}
            None => generated.clone_into(&mut output.content),
            Some((_, Some((thought, said)))) => {
                thought.clone_into(&mut output.reasoning);
                said.trim_start().clone_into(&mut output.content);
            }
            Some((thought, None)) => {
                let begun = (1..close.len()).rev().filter_map(|len| close.get(..len));
                let certain = begun.filter(|_| partial).find_map(|begun| thought.strip_suffix(begun));
                certain.unwrap_or(thought).clone_into(&mut output.reasoning);
            }
        }
        Ok(output)
    }
}

pub(super) fn generic(starts_thinking: bool) -> GenericParser {
    let [thinking_start, thinking_end] = THINKING.map(str::to_owned);
    let inner = Arc::new(Thinker { opened: starts_thinking });
    GenericParser { inner, thinking_start, thinking_end, starts_thinking }
}

pub(super) fn marks() -> ReplyMarks {
    let texts = THINKING.into_iter().chain([CALL_OPEN]).map(str::to_owned).collect();
    ReplyMarks { texts, end_content: true, end_thinking: true }
}
