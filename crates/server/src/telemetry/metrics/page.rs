//! The text format of Prometheus, version 0.0.4.
//!
//! Used by `metrics.rs` alone. Every family is announced once, with its help and its type, before its samples; a family
//! without samples is announced too, so that the list of names does not depend on what has happened.

use std::fmt::{Display, Write};

use super::histogram::Histogram;

/// What kind of numbers a family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A page that is being written. Writing into a string cannot fail.
#[derive(Default)]
pub(super) struct Page(String);

impl Page {
    /// Announces a family.
    pub(super) fn head(&mut self, name: &str, kind: Kind, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str());
    }

    /// One number of the family that was announced last.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels.iter().map(|(key, text)| format!("{key}=\"{}\"", escape(text))).collect();
        let _ = if labels.is_empty() {
            writeln!(self.0, "{name} {value}")
        } else {
            writeln!(self.0, "{name}{{{}}} {value}", labels.join(","))
        };
    }

    /// A family of one number.
    pub(super) fn one(&mut self, name: &str, kind: Kind, help: &str, value: u64) {
        self.head(name, kind, help);
        self.sample(name, &[], value);
    }

    /// A family of histograms by model and hit kind.
    pub(super) fn histograms<'h>(
        &mut self,
        name: &str,
        help: &str,
        family: impl Iterator<Item = (&'h str, &'static str, &'h Histogram)>,
    ) {
        self.head(name, Kind::Histogram, help);
        let bucket = format!("{name}_bucket");
        for (model, hit, histogram) in family.filter(|(_, _, histogram)| histogram.count > 0) {
            for (bound, count) in histogram.cumulative() {
                self.sample(&bucket, &[("model", model), ("hit", hit), ("le", &bound.to_string())], count);
            }
            self.sample(&bucket, &[("model", model), ("hit", hit), ("le", "+Inf")], histogram.count);
            self.sample(&format!("{name}_sum"), &[("model", model), ("hit", hit)], microseconds(histogram.sum));
            self.sample(&format!("{name}_count"), &[("model", model), ("hit", hit)], histogram.count);
        }
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}

/// Seconds without the noise of their sum.
fn microseconds(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
