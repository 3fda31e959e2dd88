//! Text that arrives in pieces, wrapped at words.
//!
//! Used by the chat for replies on a terminal. Every piece is shown at once. A word that turns out too long for its line
//! is taken back with backspaces and written on the next line. Line ends of the text stay. A word that is longer than a
//! line is left to the terminal.

use std::mem;

use crate::width::{width, width_of};

/// Columns between the stops of a tab.
const TAB: usize = 8;
/// Removes the last column that was shown, on any terminal.
const TAKE_BACK: &str = "\x08 \x08";

/// See the module.
#[derive(Debug, Clone)]
pub struct Wrapper {
    /// Columns of a line; `None` wraps nothing.
    limit: Option<usize>,
    /// The column after all that was shown.
    column: usize,
    /// Spaces before the next word, which a line end may replace.
    spaces: String,
    /// The current word.
    word: Word,
}

/// A word that may go on.
#[derive(Debug, Clone, Default)]
enum Word {
    #[default]
    None,
    /// It begins a line, so it cannot be moved.
    First,
    /// What was shown of it, after something else on its line.
    Later(String),
}

impl Wrapper {
    /// Starts at the beginning of a line of a terminal with this many columns.
    #[must_use]
    pub fn new(columns: Option<usize>) -> Self {
        // The last column stays free: a terminal that has just filled it takes a backspace for another one.
        let limit = columns.map(|columns| columns.saturating_sub(1).max(1));
        Self { limit, column: 0, spaces: String::new(), word: Word::None }
    }

    /// Takes a piece of the text and returns what to show.
    pub fn push(&mut self, piece: &str) -> String {
        let Some(limit) = self.limit else { return piece.to_owned() };
        let mut shown = String::new();
        // Where the word begins in `shown`, and how much of it was shown before.
        let (mut start, mut before) = (0, if let Word::Later(word) = &self.word { width(word) } else { 0 });
        for letter in piece.chars() {
            match letter {
                '\n' => {
                    // Spaces at the end of a line are not visible.
                    self.spaces.clear();
                    self.word = Word::None;
                    self.column = 0;
                    shown.push('\n');
                    continue;
                }
                ' ' | '\t' => {
                    self.spaces.push(letter);
                    self.word = Word::None;
                    continue;
                }
                _ => {}
            }
            let taken = width_of(letter);
            match &mut self.word {
                Word::None => {
                    self.begin_word(taken, limit, &mut shown);
                    (start, before) = (shown.len(), 0);
                }
                Word::Later(word) if self.column + taken > limit => {
                    let word = mem::take(word);
                    shown.truncate(start);
                    shown.push_str(&TAKE_BACK.repeat(before));
                    shown.push('\n');
                    shown.push_str(&word);
                    (self.column, self.word) = (width(&word), Word::First);
                }
                Word::First | Word::Later(_) => {}
            }
            if let Word::Later(word) = &mut self.word {
                word.push(letter);
            }
            shown.push(letter);
            // The terminal goes on in the next line where a word fills one; the next word begins its own.
            self.column = (self.column + taken).min(limit);
            if taken > 1 {
                // Scripts with wide characters have no spaces: a line may end after any of them.
                self.word = Word::None;
            }
        }
        shown
    }

    /// Ends the current word. The next text continues on the same line.
    pub fn end(&mut self) -> String {
        self.word = Word::None;
        self.column = after(self.column, &self.spaces);
        mem::take(&mut self.spaces)
    }

    fn begin_word(&mut self, taken: usize, limit: usize, shown: &mut String) {
        let spaces = mem::take(&mut self.spaces);
        let gap = after(self.column, &spaces);
        if self.column > 0 && gap + taken > limit {
            shown.push('\n');
            self.column = 0;
        } else {
            shown.push_str(&spaces);
            self.column = gap;
        }
        self.word = if self.column == 0 { Word::First } else { Word::Later(String::new()) };
    }
}

/// The column after some spaces and tabs.
fn after(column: usize, spaces: &str) -> usize {
    spaces.chars().fold(column, |column, letter| if letter == '\t' { (column / TAB + 1) * TAB } else { column + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a terminal shows after some bytes; spaces at the end of a line are not visible.
    fn screen(bytes: &str) -> String {
        let (mut lines, mut column) = (vec![Vec::new()], 0);
        for letter in bytes.chars() {
            let line = lines.last_mut().unwrap();
            match letter {
                '\n' => {
                    lines.push(Vec::new());
                    column = 0;
                }
                '\x08' => column -= 1,
                letter => {
                    line.truncate(column);
                    line.push(letter);
                    column += 1;
                }
            }
        }
        let lines = lines.iter().map(|line: &Vec<char>| line.iter().collect::<String>().trim_end().to_owned());
        lines.collect::<Vec<_>>().join("\n")
    }

    /// In a terminal with one column more, which stays free.
    fn wrapped(text: &str, limit: usize) -> String {
        let mut wrapper = Wrapper::new(Some(limit + 1));
        wrapper.push(text) + &wrapper.end()
    }

    #[test]
    fn lines_end_between_words() {
        assert_eq!(wrapped("the quick brown fox", 10), "the quick\nbrown fox");
        assert_eq!(screen(&wrapped("the quick brown fox", 9)), "the quick\nbrown fox");
        assert_eq!(screen(&wrapped("the quick brown fox", 8)), "the\nquick\nbrown\nfox");
        assert_eq!(wrapped("a b", 80), "a b");
        assert_eq!(wrapped("one\n\n  two  \nthree", 80), "one\n\n  two\nthree");
        assert_eq!(wrapped("ab\tcd", 10), "ab\tcd");
        assert_eq!(screen(&wrapped("ab\tcde", 10)), "ab\ncde");
        assert_eq!(wrapped("end ", 10), "end ");
    }

    #[test]
    fn what_has_no_spaces_is_left_to_the_terminal_or_cut_between_characters() {
        assert_eq!(screen(&wrapped("see abcdefghijkl now", 6)), "see\nabcdefghijkl\nnow");
        assert_eq!(wrapped("\u{4f60}\u{597d}\u{4f60}", 4), "\u{4f60}\u{597d}\n\u{4f60}");
    }

    #[test]
    fn a_piece_is_shown_at_once_wherever_the_text_is_cut() {
        let text = "A reply of  some words,\nwith more of them, and a-very-long-word-at-the-end here";
        for limit in [5, 12, 30] {
            let whole = screen(&wrapped(text, limit));
            for (cut, _) in text.char_indices() {
                let mut wrapper = Wrapper::new(Some(limit + 1));
                let (one, two) = text.split_at(cut);
                let first = wrapper.push(one);
                assert_eq!(screen(&first).trim_end(), screen(&wrapped(one, limit)).trim_end(), "{cut}");
                assert_eq!(screen(&(first + &wrapper.push(two))), whole, "{cut} {limit}");
            }
        }
        let mut wrapper = Wrapper::new(None);
        assert_eq!(wrapper.push("as it ") + &wrapper.push("is"), "as it is");
    }
}
