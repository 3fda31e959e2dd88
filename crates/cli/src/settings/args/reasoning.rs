//! The flags for thinking: whether and how long models think if a request does not say.
//!
//! Filled by clap, put into a model's configuration by its shape. Named as in llama-server.

use clap::ValueEnum;
use poncho_api::Reasoning;

/// What the operator wants of thinking.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ReasoningArgs {
    /// Whether models think before they answer, unless the request specifies it [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub(crate) reasoning: Option<ReasoningArg>,

    /// Maximum number of thinking tokens in a reply, unless the request specifies it; 0 ends thinking at once, -1 sets no limit [default: -1]
    #[arg(long, value_name = "TOKENS", value_parser = parse_budget, allow_hyphen_values = true)]
    pub(crate) reasoning_budget: Option<Budget>,
}

impl ReasoningArgs {
    /// As the engine takes it.
    pub(crate) fn reasoning(&self) -> Reasoning {
        Reasoning {
            is_off: self.reasoning == Some(ReasoningArg::Off),
            budget: self.reasoning_budget.and_then(|Budget(tokens)| tokens),
        }
    }
}

/// When models think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReasoningArg {
    /// As the model's template decides
    Auto,
    /// The same: thinking is enabled in templates that support it
    On,
    /// Only for requests that ask for it
    Off,
}

/// Thinking tokens; `None` for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget(Option<u32>);

fn parse_budget(text: &str) -> Result<Budget, String> {
    match text {
        "-1" => Ok(Budget(None)),
        _ => text.parse().map(|tokens| Budget(Some(tokens))).map_err(|_| {
            format!("{text:?} is not a number of tokens; write a number such as 2048, or -1 for no limit")
        }),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        thinking: ReasoningArgs,
    }

    #[test]
    fn thinking_is_as_the_template_has_it_unless_it_is_limited() {
        let read =
            |words: &[&str]| Line::try_parse_from(["serve"].iter().chain(words)).map(|line| line.thinking.reasoning());
        assert_eq!(read(&[]).unwrap(), Reasoning::default());
        assert_eq!(read(&["--reasoning", "on", "--reasoning-budget", "-1"]).unwrap(), Reasoning::default());
        let limited = Reasoning { is_off: true, budget: Some(0) };
        assert_eq!(read(&["--reasoning", "off", "--reasoning-budget", "0"]).unwrap(), limited);
        assert!(read(&["--reasoning-budget", "-2"]).unwrap_err().to_string().contains("or -1 for no limit"));
        assert!(read(&["--reasoning", "maybe"]).is_err());
    }
}
