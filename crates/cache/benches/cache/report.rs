//! The table of a run: one line per measurement, with its target, for people and as JSON.

use std::fmt::Write as _;

use crate::measure::{Duel, Samples};

/// What a value has to be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    Below(f64),
    /// For information.
    None,
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::Below(bound) => value < bound,
            Self::None => true,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(bound) => format!(">= {bound}"),
            Self::Below(bound) => format!("< {bound}"),
            Self::None => String::new(),
        }
    }
}

struct Line {
    name: String,
    unit: &'static str,
    value: f64,
    quartiles: Option<(f64, f64)>,
    detail: String,
    target: Target,
}

/// See the module.
pub(crate) struct Report {
    machine: Vec<(&'static str, String)>,
    lines: Vec<Line>,
}

impl Report {
    pub(crate) fn new(machine: Vec<(&'static str, String)>) -> Self {
        Self { machine, lines: Vec::new() }
    }

    /// A ratio against the plain operation on `bytes` bytes.
    pub(crate) fn ratio(&mut self, name: &str, bytes: usize, duel: &Duel, target: Target) {
        let speed = |samples: &Samples| {
            format!("{:.2} GB/s ({})", bytes as f64 / samples.median() / 1e9, seconds(samples.median()))
        };
        let detail = format!("{} against {}", speed(&duel.ours), speed(&duel.theirs));
        self.samples(name, "ratio", &duel.ratio, detail, target);
    }

    /// Measured values with their quartiles.
    pub(crate) fn samples(
        &mut self,
        name: &str,
        unit: &'static str,
        samples: &Samples,
        detail: String,
        target: Target,
    ) {
        let (value, quartiles) = (samples.median(), Some(samples.quartiles()));
        self.note(Line { name: name.to_owned(), unit, value, quartiles, detail, target });
    }

    /// A single value.
    pub(crate) fn value(&mut self, name: &str, unit: &'static str, value: f64, detail: &str, target: Target) {
        self.note(Line { name: name.to_owned(), unit, value, quartiles: None, detail: detail.to_owned(), target });
    }

    /// Shown at once as well: a run takes a minute or two.
    fn note(&mut self, line: Line) {
        eprintln!("{}: {} {}", line.name, number(line.value), line.unit);
        self.lines.push(line);
    }

    pub(crate) fn all_met(&self) -> bool {
        self.lines.iter().all(|line| line.target.is_met(line.value))
    }

    /// A table in Markdown.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (name, fact) in &self.machine {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "- {name}: {fact}");
        }
        text.push_str("\n| measurement | median | quartiles | unit | target | met | detail |\n");
        text.push_str("| --- | ---: | --- | --- | --- | --- | --- |\n");
        for line in &self.lines {
            let quartiles = line.quartiles.map(|(low, high)| format!("{} .. {}", number(low), number(high)));
            let met = match line.target {
                Target::None => "",
                target if target.is_met(line.value) => "yes",
                _ => "NO",
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {met} | {} |",
                line.name,
                number(line.value),
                quartiles.unwrap_or_default(),
                line.unit,
                line.target.text(),
                line.detail
            );
        }
        text
    }

    pub(crate) fn json(&self) -> String {
        let machine: Vec<String> =
            self.machine.iter().map(|(name, fact)| format!("    {}: {}", quoted(name), quoted(fact))).collect();
        let lines: Vec<String> = self
            .lines
            .iter()
            .map(|line| {
                let (low, high) = line.quartiles.unwrap_or((line.value, line.value));
                format!(
                    "    {{\"name\": {}, \"unit\": {}, \"median\": {}, \"q1\": {}, \"q3\": {}, \"target\": {}, \"met\": {}, \
                     \"detail\": {}}}",
                    quoted(&line.name),
                    quoted(line.unit),
                    json_number(line.value),
                    json_number(low),
                    json_number(high),
                    quoted(&line.target.text()),
                    line.target.is_met(line.value),
                    quoted(&line.detail)
                )
            })
            .collect();
        format!(
            "{{\n  \"machine\": {{\n{}\n  }},\n  \"measurements\": [\n{}\n  ]\n}}\n",
            machine.join(",\n"),
            lines.join(",\n")
        )
    }
}

/// A time in the unit that suits it.
pub(crate) fn seconds(value: f64) -> String {
    match value {
        value if value < 1e-3 => format!("{:.1} us", value * 1e6),
        value if value < 1.0 => format!("{:.2} ms", value * 1e3),
        value => format!("{value:.2} s"),
    }
}

/// Three digits that say something.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn json_number(value: f64) -> String {
    if value.is_finite() { value.to_string() } else { "null".to_owned() }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => quoted.push(' '),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}
