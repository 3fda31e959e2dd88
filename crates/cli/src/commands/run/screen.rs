//! The look of replies and remarks: harmless and styled on a terminal, unchanged in a pipe.
//!
//! Used by `once.rs` and `chat.rs`. Every text of a model or a server that is shown goes through here.

use std::io::{self, IsTerminal, Write};

use anstyle::Style;
use poncho_terminal::{printable, printable_line};

use super::reply::{Facts, Piece};

const DIM: Style = Style::new().dimmed();

/// Where a reply goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Screen {
    /// A terminal, with or without styles.
    Terminal { styled: bool },
    /// A file or a pipe: the reply only, untouched.
    Plain,
}

impl Screen {
    /// What standard output is.
    pub(crate) fn of_stdout() -> Self {
        if io::stdout().is_terminal() { Self::Terminal { styled: wants_styles() } } else { Self::Plain }
    }

    /// Shows a piece of a reply at once. Thoughts are shown on a terminal only.
    pub(crate) fn piece(self, out: &mut impl Write, piece: &Piece) -> io::Result<()> {
        match (self, piece) {
            (Self::Plain, Piece::Text(text)) => out.write_all(text.as_bytes())?,
            (Self::Plain, Piece::Thought(_)) => {}
            (Self::Terminal { .. }, Piece::Text(text)) => out.write_all(printable(text).as_bytes())?,
            (Self::Terminal { styled }, Piece::Thought(text)) => {
                out.write_all(dim(&printable(text), styled).as_bytes())?;
            }
        }
        out.flush()
    }

    /// A line about the conversation, dim.
    pub(crate) fn remark(self, out: &mut impl Write, text: &str) -> io::Result<()> {
        let styled = self == Self::Terminal { styled: true };
        writeln!(out, "{}", dim(&printable(text), styled))?;
        out.flush()
    }
}

fn dim(text: &str, styled: bool) -> String {
    if styled { format!("{DIM}{text}{DIM:#}") } else { text.to_owned() }
}

/// Whether the user and the terminal want styles; see no-color.org.
pub(crate) fn wants_styles() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// The line after a reply.
pub(crate) fn summary(facts: &Facts) -> String {
    let hit = match facts.hit.as_deref() {
        Some("cold") => "cold".to_owned(),
        Some(kind) => format!("{} hit", printable_line(kind)),
        None => "done".to_owned(),
    };
    let mut line = format!(
        "{hit}: {} cached + {} new tokens, {} generated",
        facts.cached_tokens, facts.new_tokens, facts.reply_tokens
    );
    if let Some(rate) = facts.tokens_per_second {
        line.push_str(&format!(" at {rate:.1} tokens/s"));
    }
    if facts.finish_reason.as_deref() == Some("length") {
        line.push_str(", stopped at the limit");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(screen: Screen, piece: &Piece) -> String {
        let mut out = Vec::new();
        screen.piece(&mut out, piece).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_terminal_never_gets_what_the_model_meant_for_it() {
        let text = Piece::Text("a\x1b]0;owned\x07b".to_owned());
        let thought = Piece::Thought("\x1b[2J".to_owned());
        let terminal = Screen::Terminal { styled: true };
        assert_eq!(shown(terminal, &text), "a\u{241b}]0;owned\u{2407}b");
        assert_eq!(shown(terminal, &thought), "\x1b[2m\u{241b}[2J\x1b[0m");
        assert_eq!(shown(Screen::Terminal { styled: false }, &thought), "\u{241b}[2J");
    }

    #[test]
    fn a_pipe_gets_the_reply_and_nothing_else() {
        assert_eq!(shown(Screen::Plain, &Piece::Text("a\x1bb\r\n".to_owned())), "a\x1bb\r\n");
        assert_eq!(shown(Screen::Plain, &Piece::Thought("hm".to_owned())), "");
    }

    #[test]
    fn the_summary_says_what_the_cache_did() {
        let mut facts = Facts { cached_tokens: 5, new_tokens: 2, reply_tokens: 9, ..Facts::default() };
        assert_eq!(summary(&facts), "done: 5 cached + 2 new tokens, 9 generated");
        facts.hit = Some("cold".to_owned());
        facts.tokens_per_second = Some(12.345);
        assert_eq!(summary(&facts), "cold: 5 cached + 2 new tokens, 9 generated at 12.3 tokens/s");
        facts.hit = Some("sticky\x1b".to_owned());
        facts.finish_reason = Some("length".to_owned());
        let expected =
            "sticky\u{241b} hit: 5 cached + 2 new tokens, 9 generated at 12.3 tokens/s, stopped at the limit";
        assert_eq!(summary(&facts), expected);
    }
}
