//! Text of models and servers on a terminal: nothing in it may be obeyed by the terminal.
//!
//! Used wherever a reply, a name or a message of a server is shown, and for log lines. Line ends and tabs stay; every other control
//! character and every mark that turns text around becomes visible. Works a character at a time, so a text may be cut
//! anywhere between two characters. Files and pipes get the text as it is.

/// What is shown for a character; `None` for nothing.
fn shown(letter: char) -> Option<char> {
    match letter {
        '\n' | '\t' => Some(letter),
        // Half of a line end of other systems; alone it would write over the line.
        '\r' => None,
        // The pictures of the control characters stand in the same order as these do.
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(letter)),
        '\x7f' => Some('\u{2421}'),
        '\u{80}'..='\u{9f}' => Some(char::REPLACEMENT_CHARACTER),
        // Line and paragraph separators, and the marks that change the direction of text.
        '\u{2028}'
        | '\u{2029}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{61c}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}' => Some(char::REPLACEMENT_CHARACTER),
        // Invisible characters that carry hidden text.
        '\u{e0000}'..='\u{e007f}' => Some(char::REPLACEMENT_CHARACTER),
        _ => Some(letter),
    }
}

/// Whether a terminal does something else with a character than to show it, line ends and tabs included.
pub(crate) fn is_obeyed(letter: char) -> bool {
    matches!(letter, '\n' | '\t') || shown(letter) != Some(letter)
}

/// A text of several lines.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter_map(shown).collect()
}

/// A name or message that has to stay on its line.
pub(crate) fn printable_line(text: &str) -> String {
    text.chars().filter_map(shown).map(|letter| if matches!(letter, '\n' | '\t') { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_become_pictures() {
        assert_eq!(printable("a\x1b[2Jb\x1b]0;title\x07c"), "a\u{241b}[2Jb\u{241b}]0;title\u{2407}c");
        assert_eq!(printable("\u{9b}31m\u{90}x\u{7f}\0"), "\u{fffd}31m\u{fffd}x\u{2421}\u{2400}");
        assert_eq!(printable("a\u{202e}b\u{2066}c\u{2028}d\u{e0041}"), "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}");
    }

    #[test]
    fn nothing_that_a_terminal_obeys_comes_through() {
        for number in 0..=0x10_ffff_u32 {
            let Some(letter) = char::from_u32(number) else { continue };
            let text = printable(&letter.to_string());
            let harmless = |letter: char| matches!(letter, '\n' | '\t') || !letter.is_control();
            assert!(text.chars().all(harmless), "{number:x}");
        }
    }

    #[test]
    fn plain_text_stays_as_it_is_wherever_it_is_cut() {
        let text = "Gr\u{fc}\u{df}e,\n\tfamily: \u{1f468}\u{200d}\u{1f469} \u{4f60}\u{597d}";
        assert_eq!(printable(text), text);
        for (cut, _) in text.char_indices() {
            let (one, two) = text.split_at(cut);
            assert_eq!(printable(one) + &printable(two), text);
        }
        assert_eq!(printable("a\r\nb\rc"), "a\nbc");
        assert_eq!(printable_line("a\r\nb\tc"), "a b c");
    }
}
