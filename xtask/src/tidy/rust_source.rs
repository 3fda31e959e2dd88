//! Rust text with its comments, strings and character literals blanked out.
//!
//! Used by the rules that look for words in code, so that a word in a sentence or in a message
//! does not count. It is a scanner, not a parser: it knows where literals begin and end, no more.

/// The same text, the same line ends; everything that is not code becomes spaces.
pub(crate) fn code_only(text: &str) -> String {
    Scanner { chars: text.chars().collect(), at: 0, code: String::with_capacity(text.len()) }.run()
}

/// Lines (counted from 1) of code on which the word stands by itself.
pub(crate) fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let stands_alone = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let before = line.get(..at).and_then(|text| text.chars().next_back());
            let after = line.get(at + word.len()..).and_then(|text| text.chars().next());
            // A word that itself ends with a sign (`todo!`) has no right-hand neighbour to join.
            let joins_after = word.ends_with(is_part) && after.is_some_and(is_part);
            let joins_before = word.starts_with(is_part) && before.is_some_and(is_part);
            !joins_before && !joins_after
        })
    };
    code.lines().enumerate().filter(|(_, line)| stands_alone(line)).map(|(index, _)| index + 1).collect()
}

struct Scanner {
    chars: Vec<char>,
    at: usize,
    code: String,
}

impl Scanner {
    fn run(mut self) -> String {
        while let Some(c) = self.peek(0) {
            match (c, self.peek(1)) {
                ('/', Some('/')) => self.blank_while(|scanner| scanner.peek(0) != Some('\n')),
                ('/', Some('*')) => self.blank_block_comment(),
                ('"', _) => self.blank_string(),
                ('\'', Some('\\')) => {
                    self.blank(3);
                    self.blank_while(|scanner| scanner.peek(0) != Some('\''));
                    self.blank(1);
                }
                ('\'', Some(_)) if self.peek(2) == Some('\'') => self.blank(3),
                _ => {
                    self.code.push(c);
                    self.at += 1;
                }
            }
        }
        self.code
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn blank(&mut self, count: usize) {
        for _ in 0..count {
            if let Some(c) = self.peek(0) {
                self.code.push(if c == '\n' { '\n' } else { ' ' });
                self.at += 1;
            }
        }
    }

    fn blank_while(&mut self, go_on: impl Fn(&Self) -> bool) {
        while self.peek(0).is_some() && go_on(self) {
            self.blank(1);
        }
    }

    fn blank_block_comment(&mut self) {
        let mut depth = 0_usize;
        while self.peek(0).is_some() {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => {
                    depth += 1;
                    self.blank(2);
                }
                (Some('*'), Some('/')) => {
                    depth -= 1;
                    self.blank(2);
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.blank(1),
            }
        }
    }

    fn blank_string(&mut self) {
        let raw = self.raw_hashes();
        self.blank(1);
        while let Some(c) = self.peek(0) {
            match raw {
                None if c == '\\' => self.blank(2),
                None if c == '"' => return self.blank(1),
                Some(hashes) if c == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#')) => {
                    return self.blank(1 + hashes);
                }
                _ => self.blank(1),
            }
        }
    }

    /// At a quote: how many `#` belong to it, if an `r` before them makes the string raw.
    fn raw_hashes(&self) -> Option<usize> {
        let mut before = self.chars.get(..self.at)?.iter().rev().copied().peekable();
        let mut hashes = 0;
        while before.next_if_eq(&'#').is_some() {
            hashes += 1;
        }
        before.next_if_eq(&'r')?;
        before.next_if(|c| matches!(c, 'b' | 'c'));
        let inside_a_name = before.peek().is_some_and(|c| c.is_alphanumeric() || *c == '_');
        (!inside_a_name).then_some(hashes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_code_stays() {
        let cases = [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* unsafe */ y */ b", "a                        b"),
            ("f(\"unsafe\")", "f(        )"),
            ("f(\"a\\\"unsafe\")", "f(           )"),
            ("f(r#\"a\"unsafe\"#)", "f(r#           )"),
            ("f(br\"\\\") + unsafe", "f(br   ) + unsafe"),
            ("x('\"') + unsafe", "x(   ) + unsafe"),
            ("x('\\'') + unsafe", "x(    ) + unsafe"),
            ("x(b'\\\\', \"unsafe\")", "x(b    ,         )"),
            ("fn f<'a>(x: &'a str) { unsafe }", "fn f<'a>(x: &'a str) { unsafe }"),
            ("var\"unsafe\"", "var        "),
            ("\"two\nlines\" x", "    \n       x"),
        ];
        for (text, expected) in cases {
            assert_eq!(code_only(text), expected, "{text}");
        }
    }

    #[test]
    fn an_unfinished_literal_ends_with_the_text() {
        for text in ["\"open", "r##\"open\"#", "/* open", "'\\", "x '"] {
            assert_eq!(code_only(text).chars().count(), text.chars().count(), "{text}");
        }
    }

    #[test]
    fn words_are_found_only_whole() {
        assert_eq!(lines_with_word("unsafe {\nunsafe_code\n(unsafe)\nnot_unsafe", "unsafe"), [1, 3]);
        assert_eq!(lines_with_word("todo!()\nmytodo!()\n todo!{}", "todo!"), [1, 3]);
    }
}
