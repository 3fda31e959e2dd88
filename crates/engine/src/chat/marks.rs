//! The marks of a reply's form, found in text that arrives piece by piece.
//!
//! `turn.rs` collects them from the template, `parse.rs` scans each byte of a reply once. Text that cannot belong to a mark
//! is known to be what the text before it was. A form with marks that cannot be named must say so, or a mark would
//! be sent as text.

use crate::backend::{ChatPrompt, GrammarTrigger};
use crate::reply::pattern::Pattern;

/// What calls of a template without a mark of their own can begin with.
const CALL_STARTS: [&str; 4] = ["<", "[", "{", "`"];
/// Some templates let a reply in JSON stand in a block of code, and their parsers take it out.
const CODE_BLOCK: &str = "```";

/// The texts that change what a reply's text is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReplyMarks {
    pub(crate) texts: Vec<String>,
    /// Whether all marks are known that can follow content.
    pub(crate) end_content: bool,
    /// Whether all marks are known that can follow thinking.
    pub(crate) end_thinking: bool,
}

impl ReplyMarks {
    /// The marks of a reply to this prompt. `has_tools` if the template was given tools that the reply may call.
    pub(crate) fn of(prompt: &ChatPrompt, has_tools: bool) -> Self {
        let thinking = std::iter::once(&prompt.thinking_start).chain(&prompt.thinking_ends);
        let mut texts: Vec<String> = thinking.chain(&prompt.preserved_tokens).cloned().collect();
        let mut end_content = true;
        if !has_tools {
            texts.extend((!prompt.grammar.is_empty()).then(|| CODE_BLOCK.to_owned()));
        } else if !prompt.grammar.is_empty() && !prompt.grammar_lazy {
            // The call must come, and nothing names how it begins.
            end_content = false;
        } else if prompt.grammar_triggers.is_empty() {
            texts.extend(CALL_STARTS.map(str::to_owned));
        }
        for trigger in &prompt.grammar_triggers {
            match trigger {
                // The start of a reply is always parsed.
                GrammarTrigger::Pattern(pattern) if pattern.starts_with('^') => {}
                GrammarTrigger::Pattern(pattern) => match literal_start(pattern) {
                    Some(text) => texts.push(text),
                    None => end_content = false,
                },
                GrammarTrigger::Token(_) => end_content = false,
            }
        }
        let end_thinking = prompt.thinking_ends.iter().any(|end| !end.trim().is_empty());
        Self { texts, end_content, end_thinking }
    }
}

/// The text that every match of a regular expression begins with; `None` if that cannot be said.
fn literal_start(pattern: &str) -> Option<String> {
    let mut text = String::new();
    let mut rest = pattern.chars();
    let mut depth = 0_usize;
    while let Some(c) = rest.next() {
        match c {
            '\\' => text.push(rest.next().filter(|escaped| !escaped.is_alphanumeric())?),
            '|' => return None,
            // The last character may be left out.
            '*' | '?' | '{' => {
                text.pop();
                break;
            }
            '(' | '[' => {
                depth = 1;
                break;
            }
            '.' | '^' | '$' | ')' | ']' | '}' | '+' => break,
            c => text.push(c),
        }
    }
    for c in rest {
        match c {
            // An alternative has a start of its own.
            '|' if depth == 0 => return None,
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Some(text).filter(|text| !text.trim().is_empty())
}

/// What a piece brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Where the first mark starts that is complete with this piece, as an offset in the whole text.
    pub(crate) mark: Option<usize>,
    /// How many bytes at the end of the text may begin a mark.
    pub(crate) held: usize,
}

/// Scans one reply.
pub(crate) struct MarkScanner {
    patterns: Vec<(Pattern<u8>, usize)>,
    scanned: usize,
}

impl MarkScanner {
    pub(crate) fn new(texts: &[String]) -> Self {
        // The space around a mark is layout that a model may leave out.
        let patterns = texts.iter().filter_map(|text| Pattern::new(text.trim().as_bytes()));
        Self { patterns: patterns.map(|pattern| (pattern, 0)).collect(), scanned: 0 }
    }

    /// Takes the next piece of the text.
    pub(crate) fn scan(&mut self, piece: &str) -> Found {
        let mut mark: Option<usize> = None;
        for byte in piece.bytes() {
            self.scanned += 1;
            for (pattern, progress) in &mut self.patterns {
                *progress = pattern.advance(*progress, byte);
                if *progress == pattern.items().len() {
                    let start = self.scanned - *progress;
                    mark = Some(mark.map_or(start, |first| first.min(start)));
                }
            }
        }
        let begun = self.patterns.iter().filter(|(pattern, progress)| *progress < pattern.items().len());
        Found { mark, held: begun.map(|(_, progress)| *progress).max().unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_pattern_is_read_as_far_as_it_is_certain() {
        for (pattern, start) in [
            (r"\[TOOL_CALLS\]", Some("[TOOL_CALLS]")),
            (">>>(?!all)", Some(">>>")),
            (r"<\|start\|>assistant(\s+to)", Some("<|start|>assistant")),
            ("ab*c", Some("a")),
            ("a+", Some("a")),
            ("a|b", None),
            ("ab(c)|d", None),
            ("a(b|c)", Some("a")),
            (r"\s*x", None),
            ("(?:^|x)y", None),
            ("", None),
        ] {
            assert_eq!(literal_start(pattern).as_deref(), start, "{pattern}");
        }
    }

    #[test]
    fn marks_are_found_across_pieces_and_their_beginnings_held() {
        let mut scanner = MarkScanner::new(&["<think>".to_owned(), " </think>\n".to_owned(), String::new()]);
        assert_eq!(scanner.scan("a <th"), Found { mark: None, held: 3 });
        assert_eq!(scanner.scan("e"), Found { mark: None, held: 0 });
        assert_eq!(scanner.scan("é</thi"), Found { mark: None, held: 5 });
        assert_eq!(scanner.scan("nk>so <"), Found { mark: Some("a <theé".len()), held: 1 });
    }
}
