//! Text of models and servers made harmless: a terminal must not execute any of it.
//!
//! Used wherever a reply, a name or a message of a server is shown, and for log lines. Line ends and tabs stay; every
//! other control character and every bidirectional mark becomes visible. It works on single characters, so a text may be
//! cut between any two of them. Files and pipes get the text unchanged.

/// The visible form of a character; `None` if it is dropped.
fn shown(letter: char) -> Option<char> {
    match letter {
        '\n' | '\t' => Some(letter),
        // Part of a Windows line end; alone it would overwrite the line.
        '\r' => None,
        // Unicode has a picture for each control character, in the same order.
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(letter)),
        '\x7f' => Some('\u{2421}'),
        '\u{80}'..='\u{9f}' => Some(char::REPLACEMENT_CHARACTER),
        // Line and paragraph separators, and bidirectional marks.
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

/// Whether a terminal executes a character instead of showing it; true for line ends and tabs.
#[must_use]
pub fn is_obeyed(letter: char) -> bool {
    matches!(letter, '\n' | '\t') || shown(letter) != Some(letter)
}

/// Makes a text of several lines harmless.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().filter_map(shown).collect()
}

/// Makes a name or a message harmless and keeps it on one line.
#[must_use]
pub fn printable_line(text: &str) -> String {
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
    fn no_control_character_comes_through() {
        for number in 0..=0x10_ffff_u32 {
            let Some(letter) = char::from_u32(number) else { continue };
            let text = printable(&letter.to_string());
            let harmless = |letter: char| matches!(letter, '\n' | '\t') || !letter.is_control();
            assert!(text.chars().all(harmless), "{number:x}");
        }
    }

    #[test]
    fn plain_text_is_unchanged_wherever_it_is_cut() {
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
