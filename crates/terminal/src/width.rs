//! The width of the terminal, and of texts in it.
//!
//! Used by tables and wrapped replies. A character may take no column, one or two.

use std::io::{self, IsTerminal};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Narrower terminals are treated as if they had this many columns.
const LEAST: usize = 20;
/// Stands for the part of a text that does not fit.
const ELLIPSIS: char = '\u{2026}';

/// The columns of standard output; `None` if it is not a terminal or does not know its size.
#[must_use]
pub fn terminal_width() -> Option<usize> {
    let out = io::stdout();
    let size = out.is_terminal().then(|| rustix::termios::tcgetwinsize(&out).ok()).flatten()?;
    (size.ws_col > 0).then(|| usize::from(size.ws_col).max(LEAST))
}

/// The columns that a text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// The columns that a character takes; a control character takes none.
pub(crate) fn width_of(letter: char) -> usize {
    letter.width().unwrap_or(0)
}

/// The text with its middle left out if it takes more columns than `limit`: the start and the end of a name or a path
/// distinguish it best.
#[must_use]
pub fn shortened(text: &str, limit: usize) -> String {
    if width(text) <= limit {
        return text.to_owned();
    }
    // The ellipsis takes one column. A longer start than end: names begin with what they are.
    let left = limit.saturating_sub(1);
    let (start, end) = (left.div_ceil(2), left / 2);
    let take = |letters: &mut dyn Iterator<Item = char>, limit: usize| -> Vec<char> {
        let mut used = 0;
        letters
            .take_while(|letter| {
                used += width_of(*letter);
                used <= limit
            })
            .collect()
    };
    let head = take(&mut text.chars(), start);
    let tail = take(&mut text.chars().rev(), end);
    head.into_iter().chain([ELLIPSIS]).chain(tail.into_iter().rev()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_loses_its_middle() {
        for (text, limit, expected) in [
            ("short", 5, "short"),
            ("hf:owner/repository:Q4_K_M", 11, "hf:ow\u{2026}4_K_M"),
            ("abcdef", 4, "ab\u{2026}f"),
            ("abcdef", 1, "\u{2026}"),
            ("\u{4f60}\u{597d}\u{4f60}\u{597d}", 5, "\u{4f60}\u{2026}\u{597d}"),
            ("", 0, ""),
        ] {
            let shown = shortened(text, limit);
            assert_eq!(shown, expected);
            assert!(width(&shown) <= limit.max(1), "{shown}");
        }
    }
}
