//! Settings and rules of conversations: what is made equal in prompts, and which turns of a model are replayed.
//!
//! Given to the engine's host when it starts; the server lists the rules and reports what they did. Plain data: the
//! engine applies them.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How conversations are treated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatSettings {
    /// The rules that make volatile parts of a prompt equal; leave one out to switch it off, empty for none.
    pub hygiene: Vec<HygieneRule>,
    /// Which of the turns that a model wrote are put back with its own tokens when a client sends them again. Requests
    /// that must be exact never are: their prompts depend on what they say alone.
    pub replay: ReplayScope,
    /// Where those turns are kept across restarts; `None` keeps them in memory only, and a restart may change the prompt of
    /// a later turn. The file holds parts of conversations; put it beside the cache folder and let no other process write
    /// it.
    pub replay_file: Option<PathBuf>,
}

impl Default for ChatSettings {
    fn default() -> Self {
        Self { hygiene: HygieneRule::ALL.to_vec(), replay: ReplayScope::All, replay_file: None }
    }
}

/// Which turns of a model are replayed with the tokens that it wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ReplayScope {
    /// Turns with tool calls and turns of text.
    #[default]
    All,
    /// Turns with tool calls.
    Calls,
    /// None: a prompt depends on its request alone.
    Nothing,
}

/// What a rule did to a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Normalised {
    /// The rule.
    pub rule: HygieneRule,
    /// How many places it changed.
    pub places: usize,
}

/// Something that clients change for no reason that the model should see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HygieneRule {
    /// A line of the system prompt that is an HTTP-like header about billing or attribution is left out.
    BillingHeader,
    /// Hours, minutes and seconds in a line of the system prompt that states the date or the time are blanked.
    Clock,
    /// Tools are sorted by name.
    ToolOrder,
}

impl HygieneRule {
    /// All rules, in the order in which they are applied.
    pub const ALL: [Self; 3] = [Self::BillingHeader, Self::Clock, Self::ToolOrder];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BillingHeader => "billing_header",
            Self::Clock => "clock",
            Self::ToolOrder => "tool_order",
        }
    }

    /// The rule of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.as_str() == name)
    }

    /// What it does, and a system prompt (or tool names) before and after.
    #[must_use]
    pub const fn example(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::BillingHeader => (
                "leaves out a header line about billing or attribution in the system prompt",
                "x-anthropic-billing-header: cc_version=2.1; cch=8f1c2;\nYou are a coding agent.",
                "You are a coding agent.",
            ),
            Self::Clock => (
                "blanks the time of day in a line of the system prompt that states the date or the time",
                "Today is 2025-11-15, the time is 06:42:55.",
                "Today is 2025-11-15, the time is --:--:--.",
            ),
            Self::ToolOrder => ("sorts the tools by name", "write, read", "read, write"),
        }
    }
}

impl fmt::Display for HygieneRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_sent_as_its_word() {
        for rule in HygieneRule::ALL {
            assert_eq!(serde_json::to_string(&rule).unwrap(), format!("\"{rule}\""));
            assert_eq!(HygieneRule::from_name(rule.as_str()), Some(rule));
        }
    }
}
