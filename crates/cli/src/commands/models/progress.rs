//! The progress of `pull`, `create` and `show --verify`: for people, or as JSON lines.
//!
//! Everything for people goes to standard error. If the reader of the JSON lines is gone, the work stops.

use std::io::{self, Write};
use std::mem;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use poncho_models::Progress as Step;
use poncho_terminal::{Progress, Unit};
use serde_json::{Value, json};

/// Pause between two JSON lines about the same step.
const JSON_EVERY: Duration = Duration::from_millis(200);

/// Progress for people.
pub(crate) struct Reporter {
    what: String,
    progress: Progress,
    last: Option<mem::Discriminant<Step>>,
}

impl Reporter {
    pub(crate) fn for_people(what: String) -> Self {
        Self { what, progress: Progress::on_stderr(), last: None }
    }

    pub(crate) fn report(&mut self, step: &Step) -> ControlFlow<()> {
        let (name, counts) = describe(step, &self.what);
        let kind = mem::discriminant(step);
        if self.last.replace(kind) != Some(kind) {
            let unit = if counts.is_some() { Unit::Bytes } else { Unit::Nothing };
            self.progress.announce(&name, unit, counts.and_then(|(_, total)| total));
        }
        if let Some((done, _)) = counts {
            self.progress.set(done);
        }
        ControlFlow::Continue(())
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.progress.clear();
    }
}

/// The name of the step, and its bytes.
fn describe(step: &Step, what: &str) -> (String, Option<(u64, Option<u64>)>) {
    match step {
        Step::Resolving => (format!("looking for {what}"), None),
        Step::Waiting => (format!("waiting for another process that is downloading {what}"), None),
        Step::Fetching { what } => (format!("downloading {what} with pip"), None),
        Step::Downloading { done, total, .. } => (format!("downloading {what}"), Some((*done, *total))),
        Step::Copying { done, total } => (format!("copying {what}"), Some((*done, Some(*total)))),
        Step::Verifying { done, total } => (format!("checking {what}"), Some((*done, Some(*total)))),
        Step::Installing => (format!("installing {what}"), None),
        _ => (what.to_owned(), None),
    }
}

/// Progress for scripts: one JSON object per line.
pub(crate) struct JsonLines<'a> {
    out: &'a mut dyn Write,
    last: Option<(mem::Discriminant<Step>, Instant)>,
}

impl<'a> JsonLines<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, last: None }
    }

    pub(crate) fn print(&mut self, line: &Value) -> io::Result<()> {
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }

    pub(crate) fn report(&mut self, step: &Step) -> ControlFlow<()> {
        let kind = mem::discriminant(step);
        let is_done = matches!(step,
            Step::Downloading { done, total: Some(total), .. }
            | Step::Copying { done, total }
            | Step::Verifying { done, total } if done == total);
        if self.last.is_some_and(|(last, when)| last == kind && when.elapsed() < JSON_EVERY) && !is_done {
            return ControlFlow::Continue(());
        }
        self.last = Some((kind, Instant::now()));
        let line = match step {
            Step::Resolving => json!({"status": "resolving"}),
            Step::Waiting => json!({"status": "waiting"}),
            Step::Fetching { what } => json!({"status": "fetching", "what": what}),
            Step::Downloading { digest, done, total } => {
                json!({"status": "downloading", "sha256": digest, "completed": done, "total": total})
            }
            Step::Copying { done, total } => json!({"status": "copying", "completed": done, "total": total}),
            Step::Verifying { done, total } => json!({"status": "verifying", "completed": done, "total": total}),
            Step::Installing => json!({"status": "installing"}),
            _ => return ControlFlow::Continue(()),
        };
        match self.print(&line) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}
