//! Excerpts of stored text: one short line that is harmless for a terminal.
//!
//! Prompt text comes from files that anyone may have written, so it must never reach a terminal unchanged.

/// The first `limit` characters on one line, with control characters and invisible marks escaped.
#[must_use]
pub fn excerpt(text: &str, limit: usize) -> String {
    let mut letters = text.chars();
    let mut line = String::new();
    for letter in letters.by_ref().take(limit) {
        match letter {
            '\'' | '"' | '\\' => line.push(letter),
            // Escapes control characters and the marks that reorder or hide text.
            letter => line.extend(letter.escape_debug()),
        }
    }
    if letters.next().is_some() {
        line.push_str(" ...");
    }
    line
}

/// The first `limit` characters unchanged, for JSON, which escapes them itself.
#[must_use]
pub fn clipped(text: &str, limit: usize) -> &str {
    text.char_indices().nth(limit).and_then(|(end, _)| text.get(..end)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
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
