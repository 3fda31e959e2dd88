//! What wakes a lazy grammar: tokens, and regular expressions over what was written before.
//!
//! Used by the backend's grammar while it sleeps. The expressions are ECMAScript's, as llama.cpp's templates write them;
//! they are searched byte by byte, because a reply may end inside a character. A search never recurses and gives up
//! after a bounded number of steps.

use fancy_regex::Regex;

use super::invalid;
use crate::backend::{GrammarError, GrammarTrigger, Token};

/// See the module.
#[derive(Debug)]
pub(crate) struct Triggers {
    tokens: Vec<Token>,
    patterns: Vec<Regex>,
}

impl Triggers {
    /// Refuses a pattern that is not a regular expression.
    pub(crate) fn new(triggers: &[GrammarTrigger]) -> Result<Self, GrammarError> {
        let mut made = Self { tokens: Vec::new(), patterns: Vec::new() };
        for trigger in triggers {
            match trigger {
                GrammarTrigger::Token(token) => made.tokens.push(*token),
                GrammarTrigger::Pattern(pattern) => {
                    let regex = Regex::new(&over_bytes(pattern)).map_err(|error| {
                        let reason: String = error.to_string().chars().take(200).collect();
                        invalid(format!("the trigger {pattern:?} is not a regular expression: {reason}"))
                    })?;
                    made.patterns.push(regex);
                }
            }
        }
        Ok(made)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.patterns.is_empty()
    }

    pub(crate) fn is_token(&self, token: Token) -> bool {
        self.tokens.contains(&token)
    }

    /// The byte from which on the grammar holds: the first group that matched something, or the match.
    pub(crate) fn find(&self, written: &Written) -> Option<usize> {
        let matched = self.patterns.iter().find_map(|pattern| pattern.captures(&written.0).ok().flatten())?;
        let groups = matched.iter().skip(1).flatten().find(|group| group.start() < group.end());
        let start = groups.or_else(|| matched.get(0))?.start();
        Some(written.0.get(..start)?.chars().count())
    }
}

/// Bytes that were written, each as the character with its number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written(String);

impl Written {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend(bytes.iter().map(|byte| char::from(*byte)));
    }
}

/// The pattern over such bytes: characters beyond ASCII become their bytes, and the short classes mean ASCII only.
fn over_bytes(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut in_brackets = false;
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        match (character, in_brackets) {
            ('\\', _) => {
                let escaped = rest.next();
                match escaped.and_then(short_class) {
                    Some(class) if in_brackets => out.push_str(class),
                    Some(class) => {
                        out.push('[');
                        out.push_str(class);
                        out.push(']');
                    }
                    None => {
                        out.push('\\');
                        out.extend(escaped);
                    }
                }
            }
            ('[', true) => out.push_str(r"\["),
            ('[', false) => {
                in_brackets = true;
                out.push('[');
            }
            (']', _) => {
                in_brackets = false;
                out.push(']');
            }
            (ascii, _) if ascii.is_ascii() => out.push(ascii),
            (other, _) => {
                let mut buffer = [0; 4];
                out.extend(other.encode_utf8(&mut buffer).bytes().map(char::from));
            }
        }
    }
    out
}

/// What stands in brackets for a short class.
fn short_class(letter: char) -> Option<&'static str> {
    Some(match letter {
        's' => r"\t-\r\x20",
        'S' => r"\x00-\x08\x0e-\x1f\x21-\xff",
        'd' => "0-9",
        'D' => r"\x00-\x2f\x3a-\xff",
        'w' => "0-9A-Za-z_",
        'W' => r"\x00-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\xff",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pattern: &str, text: &str) -> Option<usize> {
        let triggers = Triggers::new(&[GrammarTrigger::Pattern(pattern.to_owned())]).unwrap();
        let mut written = Written::default();
        written.push(text.as_bytes());
        triggers.find(&written)
    }

    #[test]
    fn the_patterns_of_templates_are_found_where_their_group_begins() {
        let cases = [
            (r"<\|start\|>assistant(\s+to)", "é<|start|>assistant to", Some(20)),
            (r"^\s+to$", " to", Some(0)),
            (r"^\s+to$", "x to", None),
            (">>>(?!all)", ">>>all >>>get", Some(7)),
            (r"(?:^|<\|start\|>assistant)( to=(?!self<\|message\|>)[^<]*?<\|message\|>)", " to=f<|message|>", Some(0)),
            (r"(?:^|<\|start\|>assistant)( to=(?!self<\|message\|>)[^<]*?<\|message\|>)", " to=self<|message|>", None),
            ("<｜tool▁calls▁begin｜>", "ü <｜tool▁calls▁begin｜>", Some(3)),
            (r"[\s\S]*?(go)[\s\S]*", "let us go", Some(7)),
        ];
        for (pattern, text, at) in cases {
            assert_eq!(find(pattern, text), at, "{pattern} {text}");
        }
        assert!(Triggers::new(&[GrammarTrigger::Pattern("(".to_owned())]).is_err());
    }

    /// Hardening 14.1: a relative. `std::regex` recurses once for each character of the reply.
    #[test]
    fn a_long_reply_is_searched_without_recursing() {
        assert_eq!(find(r"[\s\S]*?(go)", &format!("{}go", "a".repeat(2_000_000))), Some(2_000_000));
    }
}
