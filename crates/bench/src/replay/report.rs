//! What a replay found, and how it is printed: a table for people, JSON for scripts, Markdown for documents.
//!
//! Filled by `replay.rs`. Sums and ratios are computed here and nowhere else.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use poncho_terminal::{Align, Table, TableStyle, print_json, show_bytes};
use serde::{Serialize, Serializer};

use crate::measure::stats::milliseconds;
use crate::replay::args::ReplayArgs;
use crate::replay::known::ratio;

/// How the server was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// Started once for each trace.
    Warm,
    /// Restarted for each request.
    Restarted,
    /// Started by the user.
    Running,
}

/// All traces of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) model: String,
    pub(crate) mode: Mode,
    pub(crate) traces: Vec<TraceReport>,
}

/// One trace.
#[derive(Debug, Serialize)]
pub(crate) struct TraceReport {
    pub(crate) name: String,
    pub(crate) requests: usize,
    /// The tokens of all prompts.
    pub(crate) tokens_sent: usize,
    /// Those that no earlier prompt began with: the least that must be computed.
    pub(crate) tokens_new: usize,
    /// Those that the server computed.
    pub(crate) tokens_prefilled: usize,
    /// Prefilled by new.
    pub(crate) ratio: f64,
    /// `None` if the server does not say.
    pub(crate) bytes_written: Option<u64>,
    /// How many requests were answered by which kind of hit.
    pub(crate) hits: BTreeMap<String, usize>,
    #[serde(rename = "first_token_median_ms", serialize_with = "as_milliseconds")]
    pub(crate) first_token_median: Duration,
    #[serde(rename = "first_token_max_ms", serialize_with = "as_milliseconds")]
    pub(crate) first_token_max: Duration,
    pub(crate) steps: Vec<Step>,
}

/// One request.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Step {
    /// Its place in the trace.
    pub(crate) index: usize,
    pub(crate) thread: Option<String>,
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Leading tokens that an earlier prompt began with.
    pub(crate) common: usize,
    /// Leading tokens that the server did not compute.
    pub(crate) cached: usize,
    pub(crate) hit: Option<String>,
    #[serde(rename = "first_token_ms", serialize_with = "as_milliseconds")]
    pub(crate) first_token: Duration,
}

impl Step {
    pub(crate) fn new_tokens(&self) -> usize {
        self.prompt.saturating_sub(self.common)
    }

    pub(crate) fn prefilled(&self) -> usize {
        self.prompt.saturating_sub(self.cached)
    }
}

impl TraceReport {
    pub(crate) fn new(name: &str, steps: Vec<Step>, bytes_written: Option<u64>) -> Self {
        let tokens_new = steps.iter().map(Step::new_tokens).sum();
        let tokens_prefilled = steps.iter().map(Step::prefilled).sum();
        let mut hits = BTreeMap::new();
        for hit in steps.iter().filter_map(|step| step.hit.clone()) {
            *hits.entry(hit).or_default() += 1;
        }
        let mut waits: Vec<Duration> = steps.iter().map(|step| step.first_token).collect();
        waits.sort_unstable();
        Self {
            name: name.to_owned(),
            requests: steps.len(),
            tokens_sent: steps.iter().map(|step| step.prompt).sum(),
            tokens_new,
            tokens_prefilled,
            ratio: ratio(tokens_prefilled, tokens_new),
            bytes_written,
            hits,
            first_token_median: waits.get(waits.len() / 2).copied().unwrap_or_default(),
            first_token_max: waits.last().copied().unwrap_or_default(),
            steps,
        }
    }
}

impl Report {
    pub(crate) fn print(&self, args: &ReplayArgs, out: &mut impl Write) -> anyhow::Result<()> {
        if args.json {
            return print_json(out, self);
        }
        let style = TableStyle::of(args.markdown);
        if args.verbose {
            for trace in &self.traces {
                writeln!(out, "{}", trace.name)?;
                writeln!(out)?;
                trace.steps_table().print_in(style, out)?;
                writeln!(out)?;
            }
        }
        self.table().print_in(style, out)?;
        Ok(())
    }

    fn table(&self) -> Table<9> {
        use Align::{Left, Right};
        let mut table = Table::new([
            ("TRACE", Left),
            ("REQUESTS", Right),
            ("SENT", Right),
            ("NEW", Right),
            ("PREFILLED", Right),
            ("RATIO", Right),
            ("WRITTEN", Right),
            ("FIRST TOKEN MEDIAN / MAX", Right),
            ("HITS", Left),
        ]);
        for trace in &self.traces {
            let hits: Vec<String> = trace.hits.iter().map(|(hit, count)| format!("{hit} {count}")).collect();
            let (median, longest) = (show_wait(trace.first_token_median), show_wait(trace.first_token_max));
            table.row([
                trace.name.clone(),
                trace.requests.to_string(),
                trace.tokens_sent.to_string(),
                trace.tokens_new.to_string(),
                trace.tokens_prefilled.to_string(),
                format!("{:.3}", trace.ratio),
                trace.bytes_written.map_or_else(|| "unknown".to_owned(), show_bytes),
                format!("{median} / {longest}"),
                hits.join(", "),
            ]);
        }
        table
    }
}

impl TraceReport {
    fn steps_table(&self) -> Table<9> {
        use Align::{Left, Right};
        let mut table = Table::new([
            ("REQUEST", Right),
            ("THREAD", Left),
            ("PROMPT", Right),
            ("COMMON", Right),
            ("CACHED", Right),
            ("NEW", Right),
            ("READ AGAIN", Right),
            ("HIT", Left),
            ("FIRST TOKEN", Right),
        ]);
        for step in &self.steps {
            table.row([
                step.index.to_string(),
                step.thread.clone().unwrap_or_default(),
                step.prompt.to_string(),
                step.common.to_string(),
                step.cached.to_string(),
                step.new_tokens().to_string(),
                step.prefilled().saturating_sub(step.new_tokens()).to_string(),
                step.hit.clone().unwrap_or_default(),
                show_wait(step.first_token),
            ]);
        }
        table
    }
}

fn show_wait(wait: Duration) -> String {
    let milliseconds = milliseconds(wait);
    if milliseconds < 100.0 { format!("{milliseconds:.1} ms") } else { format!("{milliseconds:.0} ms") }
}

fn as_milliseconds<S: Serializer>(wait: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((milliseconds(*wait) * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(prompt: usize, common: usize, cached: usize, hit: &str) -> Step {
        let first_token = Duration::from_millis(u64::try_from(prompt).unwrap());
        Step { index: 0, thread: None, prompt, common, cached, hit: Some(hit.to_owned()), first_token }
    }

    #[test]
    fn sums_ratios_and_middles() {
        let steps = vec![step(100, 0, 0, "cold"), step(150, 100, 90, "partial"), step(300, 150, 150, "partial")];
        let trace = TraceReport::new("t", steps, Some(7));
        assert_eq!((trace.tokens_sent, trace.tokens_new, trace.tokens_prefilled), (550, 300, 310));
        assert_eq!(format!("{:.4}", trace.ratio), "1.0333");
        assert_eq!(trace.hits, BTreeMap::from([("cold".to_owned(), 1), ("partial".to_owned(), 2)]));
        assert_eq!((trace.first_token_median.as_millis(), trace.first_token_max.as_millis()), (150, 300));
    }

    #[test]
    fn a_server_that_knew_more_than_it_was_sent_is_below_one() {
        let trace = TraceReport::new("t", vec![step(100, 0, 80, "exact")], None);
        assert_eq!(trace.ratio, 0.2);
    }

    #[test]
    fn json_has_milliseconds_and_the_words_of_the_modes() {
        let trace = TraceReport::new("t", vec![step(100, 0, 0, "cold")], None);
        let report = Report { model: "m".to_owned(), mode: Mode::Restarted, traces: vec![trace] };
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["mode"], "restarted");
        assert_eq!(json["traces"][0]["first_token_max_ms"], 100.0);
        assert_eq!(json["traces"][0]["steps"][0]["first_token_ms"], 100.0);
        assert_eq!(json["traces"][0]["bytes_written"], serde_json::Value::Null);
    }
}
