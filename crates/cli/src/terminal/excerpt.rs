//! Stored text on a terminal: one line, cut short, with nothing in it that a terminal would obey.
//!
//! Prompt text comes out of files that anybody may have written, so it must never reach a terminal as it is.

/// The first `limit` characters on one line. Control characters and invisible marks are spelled out.
pub(crate) fn excerpt(text: &str, limit: usize) -> String {
    let mut letters = text.chars();
    let mut line = String::new();
    for letter in letters.by_ref().take(limit) {
        match letter {
            '\'' | '"' | '\\' => line.push(letter),
            // Spells out controls, and the marks that turn text around or hide it.
            letter => line.extend(letter.escape_debug()),
        }
    }
    if letters.next().is_some() {
        line.push_str(" ...");
    }
    line
}

/// The first `limit` characters as they are, for JSON, which escapes them itself.
pub(crate) fn clipped(text: &str, limit: usize) -> &str {
    text.char_indices().nth(limit).and_then(|(end, _)| text.get(..end)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_comes_through() {
        let shown = excerpt("a\x1b[2Jb\r\n\t\u{202e}c\u{7f}\u{9b}d", 100);
        assert!(shown.chars().all(|letter| letter.is_ascii_graphic()), "{shown:?}");
        assert!(shown.starts_with("a\\u{1b}[2Jb\\r\\n\\t"));
        assert_eq!(excerpt("it's \"caf\u{e9}\" \\", 100), "it's \"caf\u{e9}\" \\");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(excerpt("\u{e9}\u{e9}\u{e9}", 2), "\u{e9}\u{e9} ...");
        assert_eq!(excerpt("\u{e9}\u{e9}\u{e9}", 3), "\u{e9}\u{e9}\u{e9}");
        assert_eq!(clipped("\u{e9}\u{e9}\u{e9}", 2), "\u{e9}\u{e9}");
        assert_eq!(clipped("ab", 5), "ab");
    }
}
