//! What a comparison found, as a table, as JSON and as charts.
//!
//! Called once at the end of a run. Failures and what was skipped are always printed: a table without them would look
//! more complete than it is.

use std::io::Write;
use std::path::Path;

use poncho_terminal::{Align, Table, show_bytes};
use serde::Serialize;

use crate::compare::args::{CompareArgs, Scenario};
use crate::compare::round::{Failure, Side};
use crate::compare::sheet::{Measure, Unit, Verdict};
use crate::measure::chart::{Chart, Group, shown};
use crate::measure::machine::Machine;
use crate::measure::stats::Spread;

/// One server as it was found.
#[derive(Debug, Serialize)]
pub(crate) struct ServerFacts {
    pub(crate) model: String,
    /// What it says about its build.
    pub(crate) build: Option<String>,
}

/// A whole run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) poncho: ServerFacts,
    pub(crate) peer: ServerFacts,
    pub(crate) quick: bool,
    pub(crate) rounds: u32,
    pub(crate) measures: Vec<Measure>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) refused_by_both: usize,
    pub(crate) skipped: Vec<String>,
}

#[derive(Serialize)]
struct JsonReport<'a> {
    machine: &'a Machine,
    poncho: &'a ServerFacts,
    peer: &'a ServerFacts,
    quick: bool,
    rounds: u32,
    measures: Vec<JsonMeasure<'a>>,
    failures: &'a [Failure],
    refused_by_both: usize,
    skipped: &'a [String],
}

#[derive(Serialize)]
struct JsonMeasure<'a> {
    #[serde(flatten)]
    measure: &'a Measure,
    poncho: Option<Spread>,
    peer: Option<Spread>,
    ratio: Option<Spread>,
    verdict: Option<Verdict>,
}

impl Report {
    /// Whether everything was answered, and every target met if that is asked for.
    pub(crate) fn is_good(&self, check: bool) -> bool {
        let met = || self.measures.iter().filter_map(Measure::verdict).all(|verdict| verdict == Verdict::Met);
        self.failures.is_empty() && (!check || met())
    }

    pub(crate) fn print(&self, args: &CompareArgs, out: &mut impl Write) -> anyhow::Result<()> {
        let Machine { cpu, cores, memory_bytes, load, .. } = &self.machine;
        let cores = cores.map_or_else(String::new, |cores| format!(", {cores} cores"));
        let memory = memory_bytes.map_or_else(String::new, |bytes| format!(", {}", show_bytes(bytes)));
        let load = load.map_or_else(String::new, |load| format!(", load {load} at the start"));
        writeln!(out, "{}{cores}{memory}{load}", cpu.as_deref().unwrap_or("unknown processor"))?;
        for (name, facts) in [("poncho", &self.poncho), ("peer", &self.peer)] {
            let build = facts.build.as_deref().map_or_else(String::new, |build| format!(", build {build}"));
            writeln!(out, "{name}: {}{build}", facts.model)?;
        }
        let kind = if self.quick { "a quick run, which proves nothing; " } else { "" };
        writeln!(out, "{kind}{} rounds; medians with quartiles; ratios are poncho divided by peer\n", self.rounds)?;
        self.table().print_in(args.figures.style(), out)?;
        for skipped in &self.skipped {
            writeln!(out, "not measured: {skipped}")?;
        }
        if self.refused_by_both > 0 {
            writeln!(out, "left out: {} requests that both servers refused", self.refused_by_both)?;
        }
        for Failure { side, scenario, step, message } in &self.failures {
            let side = match side {
                Side::Poncho => "poncho",
                Side::Peer => "peer",
            };
            writeln!(out, "failed: {side}, {}, {step}: {message}", scenario.name())?;
        }
        Ok(())
    }

    fn table(&self) -> Table<7> {
        use Align::{Left, Right};
        let mut table = Table::new([
            ("SCENARIO", Left),
            ("MEASURE", Left),
            ("PONCHO", Right),
            ("PEER", Right),
            ("RATIO", Right),
            ("TARGET", Left),
            ("RESULT", Left),
        ]);
        for measure in &self.measures {
            let verdict = match measure.verdict() {
                None => "",
                Some(Verdict::Met) => "met",
                Some(Verdict::Missed) => "missed",
                Some(Verdict::NotMeasured) => "not measured",
            };
            table.row([
                measure.scenario.name().to_owned(),
                format!("{} [{}]", measure.name, measure.unit.name()),
                show(measure.poncho()),
                show(measure.peer()),
                show(measure.ratio()),
                measure.target.map_or_else(String::new, |target| target.text()),
                verdict.to_owned(),
            ]);
        }
        table
    }

    /// All figures, for the JSON file.
    pub(crate) fn json(&self) -> impl Serialize + '_ {
        let measures = self.measures.iter().map(|measure| JsonMeasure {
            poncho: measure.poncho(),
            peer: measure.peer(),
            ratio: measure.ratio(),
            verdict: measure.verdict(),
            measure,
        });
        JsonReport {
            machine: &self.machine,
            poncho: &self.poncho,
            peer: &self.peer,
            quick: self.quick,
            rounds: self.rounds,
            measures: measures.collect(),
            failures: &self.failures,
            refused_by_both: self.refused_by_both,
            skipped: &self.skipped,
        }
    }

    /// A chart of each scenario and unit.
    pub(crate) fn plot(&self, folder: &Path) -> anyhow::Result<()> {
        let mut done: Vec<(Scenario, Unit)> = Vec::new();
        for measure in &self.measures {
            let (scenario, unit) = (measure.scenario, measure.unit);
            if done.contains(&(scenario, unit)) {
                continue;
            }
            done.push((scenario, unit));
            let same = self.measures.iter().filter(|other| (other.scenario, other.unit) == (scenario, unit));
            let group =
                |measure: &Measure| Group { label: measure.name.clone(), bars: vec![measure.poncho(), measure.peer()] };
            let chart = Chart {
                title: scenario.name().to_owned(),
                unit: unit.name().to_owned(),
                series: vec!["poncho".to_owned(), "peer".to_owned()],
                groups: same.map(group).collect(),
            };
            chart.write(folder, &format!("{}-{}", scenario.name(), unit.name().replace('/', "-per-")))?;
        }
        Ok(())
    }
}

/// The median, and the quartiles where there is more than one figure.
fn show(spread: Option<Spread>) -> String {
    match spread {
        None => "-".to_owned(),
        Some(Spread { median, count: 1, .. }) => shown(median),
        Some(Spread { low, median, high, .. }) => format!("{} ({} to {})", shown(median), shown(low), shown(high)),
    }
}
