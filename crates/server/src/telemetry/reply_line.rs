//! The readable log line of a reply: the model, its tokens, its speed, and how it ended.
//!
//! Written by `timing.rs`, once for each reply. It has names and numbers, never a word of a prompt, a reply or an error
//! message: only the code of an error.

use std::fmt;
use std::time::Duration;

/// The target of the event with that line, so that a program can show or hide it by itself. The event also has the same
/// facts as fields.
pub const REPLY_TARGET: &str = "poncho::reply";

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ReplyLine<'a> {
    pub(super) model: &'a str,
    /// Tokens of the prompt, and how many of them were cached; `None` if the reply ended before that was known.
    pub(super) prompt: Option<(usize, usize)>,
    /// From its arrival; `None` if there was no token.
    pub(super) first_token: Option<Duration>,
    pub(super) generated: usize,
    /// From the first token to the last.
    pub(super) generation_time: Duration,
    /// From its arrival to its end.
    pub(super) total: Duration,
    pub(super) end: End<'a>,
}

/// How a reply ended, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End<'a> {
    Finished,
    TokenLimit,
    Cancelled,
    Disconnected,
    /// With the code of an error.
    Failed(Option<&'a str>),
}

impl fmt::Display for End<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished => formatter.write_str("finished"),
            Self::TokenLimit => formatter.write_str("token limit reached"),
            Self::Cancelled => formatter.write_str("cancelled by the server"),
            Self::Disconnected => formatter.write_str("client disconnected"),
            Self::Failed(Some(code)) => write!(formatter, "failed: {code}"),
            Self::Failed(None) => formatter.write_str("failed"),
        }
    }
}

impl fmt::Display for ReplyLine<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.model)?;
        if let Some((prompt, cached)) = self.prompt {
            let new = prompt.saturating_sub(cached);
            write!(formatter, "{cached} cached + {new} new tokens, ")?;
        }
        if let Some(first) = self.first_token {
            write!(formatter, "first token after {}, ", Seconds(first))?;
        }
        if self.generated > 0 {
            write!(formatter, "{} generated", self.generated)?;
            if let Some(rate) = self.rate() {
                write!(formatter, " at {rate:.1} tokens/s")?;
            }
            formatter.write_str(", ")?;
        }
        write!(formatter, "{} after {}", self.end, Seconds(self.total))
    }
}

impl ReplyLine<'_> {
    /// Tokens per second. A single token has no speed.
    #[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below 2^52")]
    pub(super) fn rate(&self) -> Option<f64> {
        let steps = self.generated.checked_sub(1).filter(|steps| *steps > 0)?;
        (!self.generation_time.is_zero()).then(|| steps as f64 / self.generation_time.as_secs_f64())
    }
}

/// A time for people.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if self.0 < Duration::from_secs(1) {
            write!(formatter, "{} ms", self.0.as_millis())
        } else if self.0 < Duration::from_secs(100) {
            write!(formatter, "{seconds:.1} s")
        } else {
            write!(formatter, "{seconds:.0} s")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: ReplyLine<'_> = ReplyLine {
        model: "smollm2:135m",
        prompt: Some((2705, 6)),
        first_token: Some(Duration::from_millis(25_140)),
        generated: 41,
        generation_time: Duration::from_secs(2),
        total: Duration::from_millis(27_200),
        end: End::Finished,
    };

    #[test]
    fn a_line_reads_like_a_sentence() {
        let expected = "smollm2:135m: 6 cached + 2699 new tokens, first token after 25.1 s, 41 generated at 20.0 tokens/s, \
                        finished after 27.2 s";
        assert_eq!(LINE.to_string(), expected);
    }

    #[test]
    fn facts_that_are_missing_are_left_out() {
        let early = ReplyLine {
            prompt: None,
            first_token: None,
            generated: 0,
            total: Duration::from_millis(3),
            end: End::Failed(Some("overloaded")),
            ..LINE
        };
        assert_eq!(early.to_string(), "smollm2:135m: failed: overloaded after 3 ms");
        let single = ReplyLine { generated: 1, end: End::TokenLimit, ..LINE };
        assert!(single.to_string().contains(", 1 generated, token limit reached after"), "{single}");
        let instant = ReplyLine { generation_time: Duration::ZERO, end: End::Disconnected, ..LINE };
        assert!(instant.to_string().ends_with("41 generated, client disconnected after 27.2 s"), "{instant}");
        assert!(ReplyLine { end: End::Cancelled, ..LINE }.to_string().contains("cancelled by the server"));
        assert!(ReplyLine { total: Duration::from_secs(321), ..LINE }.to_string().ends_with("after 321 s"));
    }
}
