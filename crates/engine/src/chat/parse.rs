//! The one parser of a reply: raw text in, piece by piece, content, thinking and tool calls out.
//!
//! Fed by `reply.rs`. Only the template's parser knows the form of a reply, and it reads whole replies. So it is asked
//! where it matters: at the start, after a mark, and inside a tool call. Once a piece came out unchanged as content or
//! thinking, the text that follows is the same up to the next mark, and is sent without parsing.
//!
//! Parsing is paid from an allowance: `START` bytes, and `RATE` more for each byte of the reply. A parse of the text so far
//! costs its length. A reply of `n` bytes therefore parses at most `START + RATE * n` bytes while it grows, and `n` more at
//! its end, whatever it holds. When the allowance is short, the next parse waits until the text has grown by a
//! `RATE`th of its length at most. It must never take back what was sent.

use std::sync::Arc;

use poncho_api::{ChatOutput, Delta};

use crate::backend::{ChatError, ChatParser};
use crate::chat::delta::{Kind, Sent};
use crate::chat::marks::{Found, MarkScanner, ReplyMarks};

/// Bytes that may be parsed for each byte of the reply.
const RATE: usize = 32;
/// Bytes that may be parsed besides: a short reply is parsed with every piece.
const START: usize = 256 * 1024;

/// Text that needs no parsing until the next mark.
#[derive(Debug, Clone, Copy)]
struct Plain {
    kind: Kind,
    /// How far the text is sent. White space waits for what follows it: before a mark it may be layout.
    sent: usize,
}

/// See the module.
pub(crate) struct ReplyParser {
    parser: Arc<dyn ChatParser>,
    scanner: MarkScanner,
    end_content: bool,
    end_thinking: bool,
    raw: String,
    /// How much of the text the scanner has seen.
    scanned: usize,
    /// Length of the text that was last parsed, or sent as plain text.
    parsed: usize,
    /// Whether a mark came since then.
    is_marked: bool,
    plain: Option<Plain>,
    allowance: usize,
}

impl ReplyParser {
    pub(crate) fn new(parser: Arc<dyn ChatParser>, marks: &ReplyMarks) -> Self {
        Self {
            parser,
            scanner: MarkScanner::new(&marks.texts),
            end_content: marks.end_content,
            end_thinking: marks.end_thinking,
            raw: String::new(),
            scanned: 0,
            parsed: 0,
            is_marked: false,
            plain: None,
            allowance: START,
        }
    }

    /// Takes more of the text.
    pub(crate) fn push(&mut self, text: &str) {
        self.raw.push_str(text);
    }

    /// The text so far.
    pub(crate) fn raw(&self) -> &str {
        &self.raw
    }

    /// What the text so far adds to what was sent.
    pub(crate) fn advance(&mut self, sent: &mut Sent) -> Delta {
        let piece = self.raw.get(self.scanned..).unwrap_or_default();
        if piece.is_empty() {
            return Delta::default();
        }
        let found = self.scanner.scan(piece);
        self.allowance = self.allowance.saturating_add(RATE.saturating_mul(piece.len()));
        self.scanned = self.raw.len();
        self.is_marked |= found.mark.is_some();
        let mut delta = Delta::default();
        if let Some(Plain { kind, sent: from }) = self.plain {
            let end = found.mark.unwrap_or(self.raw.len().saturating_sub(found.held));
            let text = self.raw.get(from..end).unwrap_or_default().trim_end();
            delta = sent.append(kind, text);
            self.parsed = from + text.len();
            self.plain = found.mark.is_none().then_some(Plain { kind, sent: self.parsed });
        }
        if self.plain.is_some() || self.allowance < self.raw.len() {
            return delta;
        }
        self.allowance -= self.raw.len();
        // A text that cannot be read yet says nothing.
        if let Ok(output) = self.parser.parse(&self.raw, true) {
            let more = sent.update(&output);
            self.plain = self.plain_after(&more, found);
            self.parsed = self.raw.len();
            self.is_marked = false;
            delta.append(more);
        }
        delta
    }

    /// Parses the whole reply; `is_cut` if the model did not end it.
    pub(crate) fn whole(&self, is_cut: bool) -> Result<ChatOutput, ChatError> {
        self.parser.parse(&self.raw, is_cut)
    }

    /// Whether the text since the last parse came out unchanged as one kind, so that what follows will too.
    fn plain_after(&self, more: &Delta, found: Found) -> Option<Plain> {
        if self.is_marked || found.held > 0 || !more.calls.is_empty() {
            return None;
        }
        let (kind, shown) = match (more.content.as_str(), more.reasoning.as_str()) {
            (content, "") if self.end_content => (Kind::Content, content),
            ("", thinking) if self.end_thinking => (Kind::Thinking, thinking),
            _ => return None,
        };
        let new = self.raw.get(self.parsed..)?;
        if shown.trim().is_empty() || shown.trim() != new.trim() {
            return None;
        }
        let (space_shown, text_end) = (shown.get(shown.trim_end().len()..)?, self.parsed + new.trim_end().len());
        let sent = text_end + space_shown.len();
        self.raw.get(text_end..)?.starts_with(space_shown).then_some(Plain { kind, sent })
    }
}

#[cfg(any(test, feature = "testing"))]
pub(crate) mod cost;
#[cfg(test)]
mod tests;
