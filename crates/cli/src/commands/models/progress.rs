//! How the progress of long work is shown: a bar on a terminal, a line for each step elsewhere, or JSON lines.
//!
//! Everything for people goes to standard error. A reader that is gone stops the work.

use std::io::{self, IsTerminal, Write};
use std::mem;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use poncho_models::Progress;
use serde_json::{Value, json};

use crate::terminal::bytes::show_bytes;
use crate::terminal::printable::printable_line;

/// Between two lines about the same step, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Between two JSON lines about the same step.
const JSON_EVERY: Duration = Duration::from_millis(200);

/// Progress for people.
pub(crate) struct Reporter {
    what: String,
    bar: Option<ProgressBar>,
    last: Option<(mem::Discriminant<Progress>, Instant)>,
}

impl Reporter {
    /// A bar if standard error is a terminal.
    pub(crate) fn for_people(what: String) -> Self {
        let bar = io::stderr().is_terminal().then(ProgressBar::no_length);
        Self { what, bar, last: None }
    }

    pub(crate) fn hear(&mut self, step: &Progress) -> ControlFlow<()> {
        let (word, counts) = describe(step, &self.what);
        let kind = mem::discriminant(step);
        let is_new = self.last.is_none_or(|(last, _)| last != kind);
        if let Some(bar) = &self.bar {
            if is_new {
                self.last = Some((kind, Instant::now()));
                bar.set_style(style(counts.is_some()));
                bar.set_message(printable_line(&word));
                bar.reset();
            }
            match counts {
                Some((done, total)) => {
                    total.map_or_else(|| bar.unset_length(), |total| bar.set_length(total));
                    bar.set_position(done);
                }
                None => bar.tick(),
            }
        } else if is_new || self.last.is_none_or(|(_, when)| when.elapsed() >= LINE_EVERY) {
            self.last = Some((kind, Instant::now()));
            let counts = match counts {
                Some((done, Some(total))) => format!(" {} of {}", show_bytes(done), show_bytes(total)),
                Some((done, None)) => format!(" {}", show_bytes(done)),
                None => String::new(),
            };
            // Nobody is left to tell if standard error is closed.
            let _ = writeln!(io::stderr(), "{}", printable_line(&format!("{word}{counts}")));
        }
        ControlFlow::Continue(())
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(has_counts: bool) -> ProgressStyle {
    let template = if has_counts {
        "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}"
    } else {
        "{spinner} {msg} {elapsed}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The step in words, and its bytes.
fn describe(step: &Progress, what: &str) -> (String, Option<(u64, Option<u64>)>) {
    match step {
        Progress::Resolving => (format!("looking for {what}"), None),
        Progress::Waiting => (format!("waiting for another process that is fetching {what}"), None),
        Progress::Fetching { what } => (format!("fetching {what} with pip"), None),
        Progress::Downloading { done, total, .. } => (format!("fetching {what}"), Some((*done, *total))),
        Progress::Copying { done, total } => (format!("copying {what}"), Some((*done, Some(*total)))),
        Progress::Verifying { done, total } => (format!("checking {what}"), Some((*done, Some(*total)))),
        Progress::Installing => (format!("installing {what}"), None),
        _ => (what.to_owned(), None),
    }
}

/// Progress for scripts: one JSON object a line.
pub(crate) struct JsonLines<'a> {
    out: &'a mut dyn Write,
    last: Option<(mem::Discriminant<Progress>, Instant)>,
}

impl<'a> JsonLines<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, last: None }
    }

    pub(crate) fn print(&mut self, line: &Value) -> io::Result<()> {
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }

    pub(crate) fn hear(&mut self, step: &Progress) -> ControlFlow<()> {
        let kind = mem::discriminant(step);
        let is_done = matches!(step,
            Progress::Downloading { done, total: Some(total), .. }
            | Progress::Copying { done, total }
            | Progress::Verifying { done, total } if done == total);
        if self.last.is_some_and(|(last, when)| last == kind && when.elapsed() < JSON_EVERY) && !is_done {
            return ControlFlow::Continue(());
        }
        self.last = Some((kind, Instant::now()));
        let line = match step {
            Progress::Resolving => json!({"status": "resolving"}),
            Progress::Waiting => json!({"status": "waiting"}),
            Progress::Fetching { what } => json!({"status": "fetching", "what": what}),
            Progress::Downloading { digest, done, total } => {
                json!({"status": "downloading", "sha256": digest, "completed": done, "total": total})
            }
            Progress::Copying { done, total } => json!({"status": "copying", "completed": done, "total": total}),
            Progress::Verifying { done, total } => json!({"status": "verifying", "completed": done, "total": total}),
            Progress::Installing => json!({"status": "installing"}),
            _ => return ControlFlow::Continue(()),
        };
        match self.print(&line) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}
