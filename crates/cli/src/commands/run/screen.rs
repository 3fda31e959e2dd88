//! The look of replies and remarks: harmless and styled on a terminal, unchanged in a pipe.
//!
//! Used by `once.rs` and `chat.rs`. Every text of a model or a server that is shown goes through here.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anstyle::Style;
use poncho_terminal::{Wrapper, printable, printable_line, show_duration, terminal_width};

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

    /// Begins a reply. On a terminal it wraps at words.
    pub(crate) fn reply(self) -> ShownReply {
        let width = if self == Self::Plain { None } else { terminal_width() };
        ShownReply { screen: self, wrapper: Wrapper::new(width), is_thought: false }
    }

    /// A line about the conversation, dim.
    pub(crate) fn remark(self, out: &mut impl Write, text: &str) -> io::Result<()> {
        writeln!(out, "{}", self.dimmed(&wrapped(&printable(text))))?;
        out.flush()
    }

    /// A line about a failure.
    pub(crate) fn failure(self, out: &mut impl Write, error: &anyhow::Error) -> io::Result<()> {
        writeln!(out, "{}", wrapped(&printable(&format!("error: {error:#}"))))?;
        out.flush()
    }

    fn dimmed(self, text: &str) -> String {
        dim(text, self == Self::Terminal { styled: true })
    }
}

/// A text with its lines wrapped at words, if standard output is a terminal.
fn wrapped(text: &str) -> String {
    let mut wrapper = Wrapper::new(terminal_width());
    wrapper.push(text) + &wrapper.end()
}

/// A reply on its way to the screen.
pub(crate) struct ShownReply {
    screen: Screen,
    wrapper: Wrapper,
    /// Whether the last piece was a thought.
    is_thought: bool,
}

impl ShownReply {
    /// Shows a piece at once, without a word that may go on. Thoughts are shown on a terminal only.
    pub(crate) fn piece(&mut self, out: &mut impl Write, piece: &Piece) -> io::Result<()> {
        let (text, is_thought) = match piece {
            Piece::Text(text) => (text, false),
            Piece::Thought(text) => (text, true),
        };
        if self.screen == Screen::Plain {
            let text = if is_thought { "" } else { text };
            out.write_all(text.as_bytes())?;
            return out.flush();
        }
        if is_thought != self.is_thought {
            self.end(out)?;
            self.is_thought = is_thought;
        }
        let shown = self.wrapper.push(&printable(text));
        self.write(out, &shown)
    }

    /// Shows the last word, also of a reply that was stopped.
    pub(crate) fn end(&mut self, out: &mut impl Write) -> io::Result<()> {
        let shown = self.wrapper.end();
        self.write(out, &shown)
    }

    fn write(&self, out: &mut impl Write, text: &str) -> io::Result<()> {
        let is_dim = self.is_thought && !text.is_empty();
        let text = if is_dim { self.screen.dimmed(text) } else { text.to_owned() };
        out.write_all(text.as_bytes())?;
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

fn hit(facts: &Facts) -> Option<String> {
    Some(match facts.hit.as_deref()? {
        "cold" => "cold".to_owned(),
        kind => format!("{} hit", printable_line(kind)),
    })
}

/// The lines after a reply with `--verbose`.
pub(crate) fn details(facts: &Facts) -> String {
    let time =
        |milliseconds: f64| show_duration(Duration::try_from_secs_f64(milliseconds / 1000.0).unwrap_or_default());
    let Facts { cached_tokens, new_tokens, reply_tokens, .. } = facts;
    let hit = hit(facts).map(|hit| format!(" ({hit})")).unwrap_or_default();
    let rate = facts.tokens_per_second.map(|rate| format!(" at {rate:.1} tokens/s")).unwrap_or_default();
    let end = if is_cut(facts) { ", stopped at the limit" } else { "" };
    format!(
        "prompt       {cached_tokens} cached + {new_tokens} new tokens{hit}\n\
         first token  after {}\n\
         reply        {reply_tokens} tokens{rate}{end}\n\
         total        {}",
        time(facts.first_token_ms),
        time(facts.total_ms)
    )
}

fn is_cut(facts: &Facts) -> bool {
    facts.finish_reason.as_deref() == Some("length")
}

/// The line after a reply.
pub(crate) fn summary(facts: &Facts) -> String {
    let hit = hit(facts).unwrap_or_else(|| "done".to_owned());
    let mut line = format!(
        "{hit}: {} cached + {} new tokens, {} generated",
        facts.cached_tokens, facts.new_tokens, facts.reply_tokens
    );
    if let Some(rate) = facts.tokens_per_second {
        line.push_str(&format!(" at {rate:.1} tokens/s"));
    }
    if is_cut(facts) {
        line.push_str(", stopped at the limit");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(screen: Screen, piece: &Piece) -> String {
        let (mut out, mut reply) = (Vec::new(), screen.reply());
        reply.piece(&mut out, piece).unwrap();
        reply.end(&mut out).unwrap();
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
        (facts.first_token_ms, facts.total_ms) = (310.0, 1432.0);
        let lines = "prompt       5 cached + 2 new tokens (sticky\u{241b} hit)\nfirst token  after 310 ms\n\
                     reply        9 tokens at 12.3 tokens/s, stopped at the limit\ntotal        1.4 s";
        assert_eq!(details(&facts), lines);
    }
}
