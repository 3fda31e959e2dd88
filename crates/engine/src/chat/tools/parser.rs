//! Reads replies in the generic format: text, then calls between marks.
//!
//! Made by `turn.rs` around the template's own parser, which still reads everything before the first call (thinking
//! above all). While a reply grows it holds back what may become a mark, and the space before it, so that what it says
//! of a part is always a beginning of what it says of the whole.

use std::sync::Arc;

use crate::backend::{ChatError, ChatOutput, ChatParser};
use poncho_api::ChatToolCall;

use super::scan::fields;
use super::{CALL_CLOSE, CALL_OPEN};

/// See the module.
pub(crate) struct GenericParser {
    /// Reads what comes before the calls.
    pub(crate) inner: Arc<dyn ChatParser>,
    pub(crate) thinking_start: String,
    pub(crate) thinking_end: String,
    /// Whether the reply begins inside a thinking block.
    pub(crate) starts_thinking: bool,
}

impl ChatParser for GenericParser {
    fn parse(&self, generated: &str, partial: bool) -> Result<ChatOutput, ChatError> {
        let Some((head, calls)) = self.split(generated) else {
            let certain = generated.get(..self.held_from(generated)).unwrap_or(generated);
            let head = if partial { certain } else { generated };
            return self.inner.parse(head, partial);
        };
        let mut output = self.inner.parse(head.trim_end(), true)?;
        let mut rest = calls;
        while let Some((before, after)) = rest.split_once(CALL_OPEN) {
            add_text(&mut output, before);
            let Some((inside, after)) = after.split_once(CALL_CLOSE) else {
                return match read_call(held_back(after, CALL_CLOSE), false) {
                    Some(call) => {
                        output.tool_calls.push(call);
                        Ok(output)
                    }
                    None if partial => Ok(output),
                    None => Err(unreadable(after)),
                };
            };
            output.tool_calls.push(read_call(inside, true).ok_or_else(|| unreadable(inside))?);
            rest = after;
        }
        add_text(&mut output, if partial { held_back(rest, CALL_OPEN).trim_end() } else { rest });
        Ok(output)
    }
}

impl GenericParser {
    /// What comes before the first call, and the rest from its mark on. A mark inside a thinking block opens nothing.
    fn split<'t>(&self, text: &'t str) -> Option<(&'t str, &'t str)> {
        let from = self.answer_start(text)?;
        let at = from + text.get(from..)?.find(CALL_OPEN)?;
        text.split_at_checked(at)
    }

    /// Where the thinking block is over; `None` while it goes on.
    fn answer_start(&self, text: &str) -> Option<usize> {
        let thinks = !self.thinking_end.is_empty()
            && (self.starts_thinking
                || (!self.thinking_start.is_empty() && text.trim_start().starts_with(&self.thinking_start)));
        if !thinks {
            return Some(0);
        }
        text.find(&self.thinking_end).map(|at| at + self.thinking_end.len())
    }

    /// Where a text that still grows stops being certain.
    fn held_from(&self, text: &str) -> usize {
        match self.answer_start(text) {
            // Only the answer can open a call; thinking is sent as it comes.
            Some(from) => from.max(held_back(text, CALL_OPEN).trim_end().len()),
            None => text.len(),
        }
    }
}

/// Text between and after calls; the space around them is layout.
fn add_text(output: &mut ChatOutput, text: &str) {
    if !text.trim().is_empty() {
        output.content.push_str(text);
    }
}

/// The text without an end that may be the beginning of a mark.
fn held_back<'t>(text: &'t str, mark: &str) -> &'t str {
    let beginnings = (1..mark.len()).rev().filter_map(|len| mark.get(..len));
    beginnings.into_iter().find_map(|part| text.strip_suffix(part)).unwrap_or(text)
}

/// A call, as far as it is written.
fn read_call(text: &str, is_whole: bool) -> Option<ChatToolCall> {
    let mut call = ChatToolCall::default();
    let mut has_arguments = false;
    for (name, value, finished) in fields(text) {
        match name.as_str() {
            "name" if finished => call.name = serde_json::from_str(value).ok()?,
            "arguments" if value.starts_with('"') => {
                has_arguments = true;
                // Written as a text with JSON inside; half of it says nothing.
                call.arguments = if finished { serde_json::from_str(value).ok()? } else { String::new() };
            }
            "arguments" => {
                has_arguments = true;
                value.clone_into(&mut call.arguments);
            }
            _ => {}
        }
    }
    if is_whole {
        serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
        if !has_arguments {
            call.arguments = "{}".to_owned();
        }
    }
    Some(call).filter(|call| !call.name.is_empty())
}

fn unreadable(text: &str) -> ChatError {
    ChatError::Unparsable { reason: format!("{} bytes between call marks are not a call", text.len()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All of it is content.
    struct Plain;

    impl ChatParser for Plain {
        fn parse(&self, generated: &str, _partial: bool) -> Result<ChatOutput, ChatError> {
            Ok(ChatOutput { content: generated.to_owned(), ..ChatOutput::default() })
        }
    }

    fn parser() -> GenericParser {
        let (thinking_start, thinking_end) = ("<think>".to_owned(), "</think>".to_owned());
        GenericParser { inner: Arc::new(Plain), thinking_start, thinking_end, starts_thinking: false }
    }

    #[test]
    fn calls_are_told_apart_from_text() {
        let text = "Look:\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</x>\"}}\n</tool_call>\n<tool_call>\n{\"arguments\": \"{\\\"b\\\":1}\", \"name\": \"g\"}\n</tool_call>\n";
        let output = parser().parse(text, false).unwrap();
        assert_eq!(output.content, "Look:");
        let calls: Vec<(&str, &str)> =
            output.tool_calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
        assert_eq!(calls, [("f", "{\"a\": \"</x>\"}"), ("g", "{\"b\":1}")]);
        let bare = parser().parse("<tool_call>{\"name\": \"f\"}</tool_call>", false).unwrap();
        assert_eq!((bare.content.as_str(), bare.tool_calls[0].arguments.as_str()), ("", "{}"));
        assert_eq!(parser().parse("no call <tool", false).unwrap().content, "no call <tool");
    }

    #[test]
    fn a_mark_in_thinking_opens_nothing() {
        let text = "<think>a <tool_call> is</think>so";
        assert!(parser().parse(text, false).unwrap().tool_calls.is_empty());
        assert_eq!(parser().parse(text, true).unwrap().content, text);
        let called = format!("{text}<tool_call>{{\"name\":\"f\"}}</tool_call>");
        assert_eq!(parser().parse(&called, false).unwrap().tool_calls.len(), 1);
    }

    #[test]
    fn what_is_no_call_is_an_error() {
        for broken in [
            "<tool_call>x</tool_call>",
            "<tool_call>{\"name\": 5}</tool_call>",
            "<tool_call>{\"name\":\"f\",}</tool_call>",
            "<tool_call>{\"na",
        ] {
            assert!(parser().parse(broken, false).is_err(), "{broken}");
        }
        assert!(parser().parse("<tool_call>{\"na", true).unwrap().tool_calls.is_empty());
    }

    proptest! {
        #[test]
        fn a_part_is_a_beginning_of_the_whole(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "a", " ", "\n", "<", "<tool", "<tool_call>", "</tool_call>", "{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}",
                "{", "}", "\"", "<think>", "</think>", "é",
            ]), 0..12),
        ) {
            let text: String = pieces.concat();
            let Ok(whole) = parser().parse(&text, false) else { return Ok(()) };
            for (at, _) in text.char_indices() {
                let part = parser().parse(&text[..at], true);
                let Ok(part) = part else { continue };
                prop_assert!(whole.content.starts_with(&part.content), "{part:?} of {whole:?}");
                prop_assert!(part.tool_calls.len() <= whole.tool_calls.len());
                for (one, all) in part.tool_calls.iter().zip(&whole.tool_calls) {
                    prop_assert_eq!(&one.name, &all.name);
                    prop_assert!(all.arguments.starts_with(&one.arguments));
                }
            }
        }
    }
}
