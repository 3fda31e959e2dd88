//! The figures of a run, in pairs, and what is made of them: medians, ratios, targets met or missed.
//!
//! Filled by the scenarios, printed by `report.rs`. A ratio is taken inside each pair, because what slows one server down
//! in a round slows the other too. A pair with a hole yields no ratio, and a target without a ratio is not met.

use serde::{Serialize, Serializer};

use crate::compare::args::Scenario;
use crate::measure::stats::Spread;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "tokens/s")]
    TokensPerSecond,
    #[serde(rename = "tokens")]
    Tokens,
    #[serde(rename = "MiB")]
    Mebibytes,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::TokensPerSecond => "tokens/s",
            Self::Tokens => "tokens",
            Self::Mebibytes => "MiB",
        }
    }
}

/// What the ratio, Poncho by peer, should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn is_met_by(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(bound) => ratio <= bound,
            Self::AtLeast(bound) => ratio >= bound,
        }
    }

    pub(crate) fn text(self) -> String {
        match self {
            Self::AtMost(bound) => format!("at most {bound}"),
            Self::AtLeast(bound) => format!("at least {bound}"),
        }
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

/// What became of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// No pair was whole.
    NotMeasured,
}

/// The same thing measured on both in one round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Pair {
    pub(crate) poncho: Option<f64>,
    pub(crate) peer: Option<f64>,
}

/// What is measured, before any figure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) scenario: Scenario,
    pub(crate) unit: Unit,
    pub(crate) target: Option<Target>,
}

impl Kind {
    /// A time in milliseconds.
    pub(crate) fn time(scenario: Scenario, target: Option<Target>) -> Self {
        Self { scenario, unit: Unit::Milliseconds, target }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measure {
    pub(crate) scenario: Scenario,
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) target: Option<Target>,
    pub(crate) pairs: Vec<Pair>,
}

impl Measure {
    pub(crate) fn poncho(&self) -> Option<Spread> {
        Spread::of(&self.pairs.iter().filter_map(|pair| pair.poncho).collect::<Vec<_>>())
    }

    pub(crate) fn peer(&self) -> Option<Spread> {
        Spread::of(&self.pairs.iter().filter_map(|pair| pair.peer).collect::<Vec<_>>())
    }

    /// Poncho by peer, of the pairs that are whole.
    pub(crate) fn ratio(&self) -> Option<Spread> {
        let ratio = |pair: &Pair| Some(pair.poncho? / pair.peer.filter(|peer| *peer > 0.0)?);
        Spread::of(&self.pairs.iter().filter_map(ratio).collect::<Vec<_>>())
    }

    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let target = self.target?;
        Some(match self.ratio() {
            None => Verdict::NotMeasured,
            Some(ratio) if target.is_met_by(ratio.median) => Verdict::Met,
            Some(_) => Verdict::Missed,
        })
    }
}

/// All lines, in the order in which they came up.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    pub(crate) measures: Vec<Measure>,
}

impl Sheet {
    /// Adds a pair to the line of this name, which is begun if it is new.
    pub(crate) fn add(&mut self, kind: Kind, name: &str, pair: Pair) {
        let same = |measure: &&mut Measure| measure.scenario == kind.scenario && measure.name == name;
        match self.measures.iter_mut().find(same) {
            Some(measure) => measure.pairs.push(pair),
            None => {
                let Kind { scenario, unit, target } = kind;
                self.measures.push(Measure { scenario, name: name.to_owned(), unit, target, pairs: vec![pair] });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { scenario: Scenario::Cold, unit: Unit::Milliseconds, target: Some(Target::AtMost(0.3)) };

    fn pair(poncho: f64, peer: f64) -> Pair {
        Pair { poncho: Some(poncho), peer: Some(peer) }
    }

    #[test]
    fn ratios_are_taken_inside_the_rounds() {
        let mut sheet = Sheet::default();
        // A slow second round must not make the ratio worse: both were slow.
        for pair in [pair(1.0, 10.0), pair(20.0, 200.0), pair(2.0, 10.0)] {
            sheet.add(KIND, "x", pair);
        }
        let measure = &sheet.measures[0];
        assert_eq!((sheet.measures.len(), measure.ratio().unwrap().median), (1, 0.1));
        assert_eq!(measure.verdict(), Some(Verdict::Met));
    }

    #[test]
    fn holes_and_zeros_yield_no_ratio_and_no_met_target() {
        let mut sheet = Sheet::default();
        sheet.add(KIND, "x", Pair { poncho: Some(1.0), peer: None });
        sheet.add(KIND, "x", pair(1.0, 0.0));
        let measure = &sheet.measures[0];
        assert_eq!((measure.ratio(), measure.verdict()), (None, Some(Verdict::NotMeasured)));
        assert_eq!((measure.poncho().unwrap().count, measure.peer().unwrap().count), (2, 1));
    }

    #[test]
    fn targets_have_a_direction() {
        let at_least = Kind { target: Some(Target::AtLeast(1.1)), unit: Unit::TokensPerSecond, ..KIND };
        let mut sheet = Sheet::default();
        sheet.add(at_least, "fast", pair(120.0, 100.0));
        sheet.add(at_least, "slow", pair(105.0, 100.0));
        sheet.add(Kind { target: None, ..KIND }, "free", pair(9.0, 1.0));
        let verdicts: Vec<_> = sheet.measures.iter().map(Measure::verdict).collect();
        assert_eq!(verdicts, [Some(Verdict::Met), Some(Verdict::Missed), None]);
    }

    #[test]
    fn the_same_name_in_another_scenario_is_another_line() {
        let mut sheet = Sheet::default();
        sheet.add(KIND, "x", pair(1.0, 1.0));
        sheet.add(Kind { scenario: Scenario::Chat, ..KIND }, "x", pair(1.0, 1.0));
        assert_eq!(sheet.measures.len(), 2);
    }
}
