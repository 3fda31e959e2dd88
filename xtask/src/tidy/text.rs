//! The words of a file that people read: prose of a document, comments and strings of a source.
//!
//! Used by the rule about words. Words come with their lines and without the line breaks between them, so that a phrase
//! is found although it is wrapped.

use super::document::prose;
use super::rust_source::code_only;
use super::tree::extension;

/// A word in lower case, or one of `.`, `` ` `` for the end of a sentence and for code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    /// Counted from 1.
    pub(crate) line: usize,
}

/// Stands where a sentence, a cell or a string ends.
pub(crate) const END: &str = ".";
/// Stands for a span of code.
pub(crate) const CODE: &str = "`";

/// The words that people read in this file.
pub(crate) fn words(path: &str, text: &str) -> Vec<Word> {
    match extension(path) {
        Some("md") => prose(text).flat_map(|(line, prose)| words_of_line(line, prose)).collect(),
        Some("rs") => {
            let readable = readable_text(text);
            let lines = readable.lines().map(without_comment_mark);
            lines.enumerate().flat_map(|(index, line)| words_of_line(index + 1, line)).collect()
        }
        _ => text.lines().enumerate().flat_map(|(index, line)| words_of_line(index + 1, line)).collect(),
    }
}

/// Rust text with its code blanked out: comments and literals are left.
fn readable_text(text: &str) -> String {
    let code = code_only(text);
    let kept = |(original, code): (char, char)| match (original, code) {
        ('\n', _) => '\n',
        // What the scanner blanked is text; a space is a space in both.
        (original, ' ') => original,
        _ => '\u{1}',
    };
    text.chars().zip(code.chars()).map(kept).collect()
}

/// A sentence goes on past the mark of the next comment line.
fn without_comment_mark(line: &str) -> &str {
    let start = line.trim_start();
    ["///", "//!", "//"].iter().find_map(|mark| start.strip_prefix(mark)).unwrap_or(line)
}

fn words_of_line(line: usize, text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut add = |text: &str| words.push(Word { text: text.to_owned(), line });
    let pieces: Vec<&str> = text.split('`').collect();
    // An odd number of ticks: the last one opens nothing.
    let paired = if pieces.len() % 2 == 1 { pieces.len() } else { pieces.len() - 1 };
    for (index, piece) in pieces.iter().enumerate() {
        if index % 2 == 1 && index < paired {
            add(CODE);
            continue;
        }
        let is_part = |c: char| c.is_alphanumeric() || c == '\'' || c == '_';
        let mut rest = *piece;
        while let Some(first) = rest.chars().next() {
            let length = rest.find(|c| is_part(c) != is_part(first)).unwrap_or(rest.len());
            let (run, after) = rest.split_at(length);
            if is_part(first) {
                add(&run.trim_matches('\'').to_lowercase());
            } else if run.contains(['.', ',', ';', ':', '!', '?', '|', '(', ')', '"', '\u{1}']) {
                add(END);
            }
            rest = after;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str, text: &str) -> String {
        words(path, text).iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn documents_give_their_prose_without_code() {
        assert_eq!(read("a.md", "Is `this`, it's\nFine.\n```\ncode\n```\n"), "is ` . it's fine .");
    }

    #[test]
    fn sources_give_comments_and_strings() {
        assert_eq!(read("a.rs", "//! One\n//! two.\nfn code() {}\n"), "one two . .");
        assert_eq!(read("a.rs", "f(\"one two\")"), ". one two .");
        assert_eq!(read("a.rs", "let name = 1; // one ` tick"), ". one tick");
        assert_eq!(read("a.py", "# One two\nx = 'y'\n"), "one two x y");
    }

    #[test]
    fn words_know_their_lines() {
        let lines: Vec<usize> = words("a.md", "one\n\ntwo\n").iter().map(|word| word.line).collect();
        assert_eq!(lines, [1, 3]);
    }
}
