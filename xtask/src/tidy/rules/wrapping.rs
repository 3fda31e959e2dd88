//! Rule: the lines of documents are wrapped at one width, so that a diff shows what changed and not where lines broke.
//!
//! Prose is filled up to the limit. Tables, headings, code blocks, pictures and a line that is one long link are left
//! as they are.

use crate::tidy::document::{prose, table_cells};
use crate::tidy::{Finding, Tree};

/// As wide as the sources.
const MAX_WIDTH: usize = 120;

/// A line shorter than this that has room for the next word was broken by hand.
const MIN_WIDTH: usize = 100;

/// Documents that the rule does not cover yet. The aim is an empty list.
const NOT_YET: &[&str] = &["CHANGELOG.md", "docs/configuration.md"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let not_yet = tree.exempt(NOT_YET);
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension(&["md"]).filter(|(path, _)| !not_yet.contains(path)) {
        let lines: Vec<(usize, &str)> = prose(text).collect();
        for (index, (number, line)) in lines.iter().enumerate() {
            if !is_wrapped(line) {
                continue;
            }
            let width = line.chars().count();
            let next = lines.get(index + 1).filter(|(next, _)| *next == number + 1).map(|(_, next)| *next);
            if width > MAX_WIDTH && line.trim().contains(' ') {
                let problem = format!("the line has {width} characters, {MAX_WIDTH} is the limit");
                findings.push(Finding::new(path, *number, problem, "wrap it"));
            } else if let Some(next) = next.filter(|next| continues(next))
                && width < MIN_WIDTH
                && width + 1 + first_word_width(next) <= MAX_WIDTH
            {
                let problem = format!("the line breaks after {width} characters, {MAX_WIDTH} is the width");
                findings.push(Finding::new(path, *number, problem, "fill the paragraph"));
            }
        }
    }
    findings
}

/// Whether the line is prose that can be wrapped.
fn is_wrapped(line: &str) -> bool {
    let start = line.trim_start();
    !(start.is_empty()
        || start.starts_with('#')
        || start.starts_with("<!--")
        || start.starts_with("![")
        || table_cells(line).is_some())
}

/// Whether the line goes on with the paragraph above it.
fn continues(line: &str) -> bool {
    let start = line.trim_start();
    let first = start.split(' ').next().unwrap_or_default();
    let is_numbered = first.strip_suffix('.').is_some_and(|digits| digits.chars().all(|c| c.is_ascii_digit()));
    is_wrapped(line) && !["-", "*", "+", ">"].contains(&first) && !is_numbered && !start.starts_with("```")
}

/// The width of what would move up: a word, or a span of code, which is not broken.
fn first_word_width(line: &str) -> usize {
    let mut is_code = false;
    let is_part = |c: &char| {
        is_code ^= *c == '`';
        is_code || !c.is_whitespace()
    };
    line.trim_start().chars().take_while(is_part).count()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::rules::found;

    #[test]
    fn a_long_line_and_a_line_that_is_broken_too_early_are_found() {
        let long = "word ".repeat(25);
        let text = format!("{}\n\nA short line\nand the rest.\n", long.trim_end());
        let findings = found(check, &[("guides/a.md", &text)]);
        assert_eq!(
            findings,
            [
                "guides/a.md:1: the line has 124 characters, 120 is the limit; wrap it",
                "guides/a.md:3: the line breaks after 12 characters, 120 is the width; fill the paragraph"
            ]
        );
    }

    #[test]
    fn tables_code_links_lists_and_filled_paragraphs_pass() {
        let wide = "x".repeat(130);
        let filled = "word ".repeat(23);
        let text = format!(
            "# {wide} y\n\n| {wide} | y |\n\n```sh\n{wide} y\nz\n```\n\n{wide}\n\n- one\n- two\n1. three\n2. four\n\n\
             Last line\n```sh\nx\n```\n{filled}\nwords.\n"
        );
        assert_eq!(found(check, &[("guides/a.md", &text.replace(" \n", "\n"))]), Vec::<String>::new());
    }
}
