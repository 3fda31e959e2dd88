//! Drafts: whether replies are guessed ahead, from which tokens, and what that brought.
//!
//! Set by the server, the command line or a Rust program for a model and for a request; reported by the engine. Drafts never
//! change a reply, only the time that it takes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which tokens drafts may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Drafts {
    /// Everything that `stored` has, wherever it is faster.
    #[default]
    Auto,
    /// None: each token takes a step of its own.
    Off,
    /// The tokens of the request itself.
    Context,
    /// These, and all stored conversations of the same owner.
    Stored,
}

impl Drafts {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Off, Self::Context, Self::Stored];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Context => "context",
            Self::Stored => "stored",
        }
    }

    /// The setting of a request that asks for this, on a model with that setting: never more than the model offers.
    #[must_use]
    pub fn within(self, model: Self) -> Self {
        match (self, model) {
            (Self::Off, _) | (_, Self::Off) => Self::Off,
            (Self::Context, _) | (_, Self::Context) => Self::Context,
            _ => Self::Stored,
        }
    }
}

impl fmt::Display for Drafts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for Drafts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|drafts| drafts.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is not a source of drafts; use auto, off, context or stored"))
    }
}

/// When drafts are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum DraftRule {
    /// Where they are expected to make replies faster, by what was measured so far.
    #[default]
    Faster,
    /// Whenever one is found. For tests and measurements.
    Always,
}

/// Why a model computes no drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DraftObstacle {
    /// The setting is `off`.
    Setting,
    /// The model keeps a running state, which cannot forget a wrong token.
    Memory,
    /// The setting is `auto`, and another row of a step costs too much on this device.
    Device,
    /// Replies are exact, and no number of rows gives the same bits as one row alone.
    Exact,
}

impl DraftObstacle {
    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Setting => "setting",
            Self::Memory => "memory",
            Self::Device => "device",
            Self::Exact => "exact",
        }
    }

    /// The reason in words.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Setting => "drafts are off by setting",
            Self::Memory => "the model keeps a running state, which cannot forget a wrong draft",
            Self::Device => "another row of a step costs nearly as much as a step on this device",
            Self::Exact => "replies are exact, and several rows do not give the bits of one",
        }
    }
}

/// What drafts did for a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DraftReport {
    /// Draft tokens that were computed.
    pub drafted: usize,
    /// Of these, the ones that are in the reply.
    pub accepted: usize,
    /// Decode calls that drew tokens of the reply.
    pub steps: usize,
    /// Microseconds that the reply is shorter for drafts, its own and those of requests beside it, by measured times of calls;
    /// negative if it is longer.
    pub saved_micros: i64,
}

impl DraftReport {
    /// Tokens that a step drew on average; `None` before the first step.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below 2^52")]
    pub fn tokens_per_step(&self) -> Option<f64> {
        (self.steps > 0).then(|| (self.steps + self.accepted) as f64 / self.steps as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_gets_less_than_its_model_offers_and_never_more() {
        let within = |model| Drafts::ALL.map(|asked: Drafts| asked.within(model));
        assert_eq!(within(Drafts::Auto), [Drafts::Stored, Drafts::Off, Drafts::Context, Drafts::Stored]);
        assert_eq!(within(Drafts::Context), [Drafts::Context, Drafts::Off, Drafts::Context, Drafts::Context]);
        assert_eq!(within(Drafts::Off), [Drafts::Off; 4]);
    }

    #[test]
    fn each_word_is_read_back() {
        for drafts in Drafts::ALL {
            assert_eq!(drafts.to_string().parse(), Ok(drafts));
            assert_eq!(serde_json::to_value(drafts).unwrap(), drafts.as_str());
        }
        assert!("most".parse::<Drafts>().unwrap_err().contains("use auto, off, context or stored"));
    }

    #[test]
    fn a_step_draws_its_own_token_and_the_accepted_ones() {
        assert_eq!(DraftReport { drafted: 9, accepted: 3, steps: 2, saved_micros: 0 }.tokens_per_step(), Some(2.5));
        assert_eq!(DraftReport::default().tokens_per_step(), None);
    }
}
