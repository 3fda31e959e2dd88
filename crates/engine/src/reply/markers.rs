//! Thinking and tool-call markers: which part of the reply each token belongs to.
//!
//! The worker pushes every drawn token; what comes out are the same tokens, in order, with their class, and the ends of
//! blocks. Tokens that may begin a marker are held until that is decided. The machine also says how the next token is
//! drawn and when a thinking block must be closed. It must never lose, invent or reorder a token.

pub use poncho_api::{MarkerSet, ThinkingMarkers, ToolMarkers};

use crate::reply::pattern::Pattern;

/// Where a reply starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// Outside of any block.
    #[default]
    Text,
    /// In a thinking block that the prompt opened.
    Thinking,
}

impl Start {
    /// Where the reply to this prompt starts: inside a thinking block, if the template itself opened one at the very
    /// end of the prompt. A marker further up is history and says nothing about the reply.
    #[must_use]
    pub fn of(markers: &MarkerSet, prompt: &[u32]) -> Self {
        // Templates write no more than a line break after the marker.
        const SLACK: usize = 2;
        let Some(thinking) = markers.thinking.as_ref().filter(|thinking| !thinking.open.is_empty()) else {
            return Self::Text;
        };
        let opened = (0..=SLACK).any(|after| {
            let Some((head, tail)) = prompt.len().checked_sub(after).and_then(|at| prompt.split_at_checked(at)) else {
                return false;
            };
            let closes = |close: &Vec<u32>| !close.is_empty() && tail.windows(close.len()).any(|part| part == close);
            head.ends_with(&thinking.open) && !thinking.close.iter().any(closes)
        });
        if opened { Self::Thinking } else { Self::Text }
    }
}

/// What a token is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The reply itself.
    Text,
    /// A marker of a thinking block.
    ThinkingMarker,
    /// A thinking block.
    Thinking,
    /// The opening or closing marker of a tool call.
    ToolMarker,
    /// A tool call outside of its payload, and the payload's markers.
    ToolSyntax,
    /// The payload of a tool call.
    ToolPayload,
}

/// How a block came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    /// Its closing marker.
    Marker,
    /// The end of the reply.
    EndOfReply,
}

/// What comes out of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkerEvent {
    /// A token is decided.
    Token(u32, Class),
    /// The thinking block before this event is over.
    ThinkingEnd(EndedBy),
    /// The tool call before this event is over.
    ToolEnd(EndedBy),
}

/// How the next token is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplingMode {
    /// As the request says.
    Request,
    /// The most likely token: tool-call syntax has one right spelling.
    Greedy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MarkerState {
    Text,
    Thinking,
    Tool,
    Payload,
}

impl MarkerState {
    const fn class(self) -> Class {
        match self {
            Self::Text => Class::Text,
            Self::Thinking => Class::Thinking,
            Self::Tool => Class::ToolSyntax,
            Self::Payload => Class::ToolPayload,
        }
    }
}

/// A marker that is looked for in one state and leads to another.
#[derive(Debug, Clone)]
struct Watch {
    from: MarkerState,
    to: MarkerState,
    class: Class,
    end: Option<MarkerEvent>,
    pattern: Pattern<u32>,
    progress: usize,
}

/// The machine of one reply.
#[derive(Debug, Clone)]
pub struct MarkerMachine {
    watches: Vec<Watch>,
    state: MarkerState,
    /// Tokens that may begin a marker.
    held: Vec<u32>,
    thinking_budget: Option<u32>,
    thinking_tokens: u32,
}

impl MarkerMachine {
    /// A machine for one reply. The budget counts the thinking tokens of the whole reply.
    #[must_use]
    pub fn new(set: &MarkerSet, start: Start, thinking_budget: Option<u32>) -> Self {
        let mut watches = Vec::new();
        let mut watch = |from, to, class, end, tokens: &[u32]| {
            watches.extend(Pattern::new(tokens).map(|pattern| Watch { from, to, class, end, pattern, progress: 0 }));
        };
        if let Some(thinking) = &set.thinking {
            watch(MarkerState::Text, MarkerState::Thinking, Class::ThinkingMarker, None, &thinking.open);
            let end = Some(MarkerEvent::ThinkingEnd(EndedBy::Marker));
            for close in &thinking.close {
                watch(MarkerState::Thinking, MarkerState::Text, Class::ThinkingMarker, end, close);
            }
        }
        if let Some(tool) = &set.tool_call {
            watch(MarkerState::Text, MarkerState::Tool, Class::ToolMarker, None, &tool.open);
            let end = Some(MarkerEvent::ToolEnd(EndedBy::Marker));
            watch(MarkerState::Tool, MarkerState::Text, Class::ToolMarker, end, &tool.close);
            if let Some((open, close)) = &tool.payload {
                watch(MarkerState::Tool, MarkerState::Payload, Class::ToolSyntax, None, open);
                watch(MarkerState::Payload, MarkerState::Tool, Class::ToolSyntax, None, close);
                watch(MarkerState::Payload, MarkerState::Text, Class::ToolMarker, end, &tool.close);
            }
        }
        let state = match start {
            Start::Text => MarkerState::Text,
            Start::Thinking => MarkerState::Thinking,
        };
        Self { watches, state, held: Vec::new(), thinking_budget, thinking_tokens: 0 }
    }

    /// Takes a drawn token and appends what is decided now to `out`.
    pub fn push(&mut self, token: u32, out: &mut Vec<MarkerEvent>) {
        if self.state == MarkerState::Thinking {
            self.thinking_tokens = self.thinking_tokens.saturating_add(1);
        }
        self.held.push(token);
        let (mut undecided, mut found): (usize, Option<(usize, usize)>) = (0, None);
        for (index, watch) in self.watches.iter_mut().enumerate().filter(|(_, watch)| watch.from == self.state) {
            watch.progress = watch.pattern.advance(watch.progress, token);
            undecided = undecided.max(watch.progress);
            let len = watch.pattern.items().len();
            if watch.progress == len && found.is_none_or(|(_, longest)| len > longest) {
                found = Some((index, len));
            }
        }
        let Some((index, len)) = found else { return self.let_go(undecided, self.state.class(), out) };
        self.let_go(len, self.state.class(), out);
        if let Some(watch) = self.watches.get(index) {
            let (class, end, to) = (watch.class, watch.end, watch.to);
            self.let_go(0, class, out);
            out.extend(end);
            self.state = to;
        }
        self.watches.iter_mut().for_each(|watch| watch.progress = 0);
    }

    /// The reply ended: what is held is decided, and an open block is over.
    pub fn finish(&mut self, out: &mut Vec<MarkerEvent>) {
        self.let_go(0, self.state.class(), out);
        match self.state {
            MarkerState::Text => {}
            MarkerState::Thinking => out.push(MarkerEvent::ThinkingEnd(EndedBy::EndOfReply)),
            MarkerState::Tool | MarkerState::Payload => out.push(MarkerEvent::ToolEnd(EndedBy::EndOfReply)),
        }
        self.state = MarkerState::Text;
        self.watches.iter_mut().for_each(|watch| watch.progress = 0);
    }

    /// How the next token is drawn.
    #[must_use]
    pub fn sampling_mode(&self) -> SamplingMode {
        match self.state {
            MarkerState::Tool => SamplingMode::Greedy,
            MarkerState::Text | MarkerState::Thinking | MarkerState::Payload => SamplingMode::Request,
        }
    }

    /// The tokens to force next, if the thinking budget is used up: what is missing of the closing marker. Push the
    /// first of them instead of a drawn token and ask again.
    #[must_use]
    pub fn must_close(&self) -> Option<&[u32]> {
        let budget = self.thinking_budget.filter(|_| self.state == MarkerState::Thinking)?;
        let close = self.watches.iter().find(|watch| watch.from == MarkerState::Thinking)?;
        (self.thinking_tokens >= budget).then(|| close.pattern.items().get(close.progress..).unwrap_or_default())
    }

    /// Whether the machine can ever say anything but "text".
    #[must_use]
    pub fn is_trivial(&self) -> bool {
        self.watches.is_empty() && self.state == MarkerState::Text
    }

    /// Emits all held tokens but the last `keep`.
    fn let_go(&mut self, keep: usize, class: Class, out: &mut Vec<MarkerEvent>) {
        let count = self.held.len().saturating_sub(keep);
        out.extend(self.held.drain(..count).map(|token| MarkerEvent::Token(token, class)));
    }
}

#[cfg(test)]
mod tests;
