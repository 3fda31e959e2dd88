//! Progress of long work on standard error: a bar on a terminal, a line every few seconds elsewhere.
//!
//! Used by downloads, checks of files and benchmarks. Work consists of steps; each has a name and, where it is known, a
//! total. Output that fails is ignored: progress must never stop the work.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{printable_line, show_bytes};

/// Pause between two lines about one step.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Pause between two frames of a spinner.
const SPINNER_STEP: Duration = Duration::from_millis(100);

/// What a step counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things of this name, such as `rows`.
    Items(&'static str),
    /// Nothing: only time passes.
    Nothing,
}

/// Shows the progress of one piece of work. Clones show the same progress; the last one to go clears the bar.
#[derive(Clone)]
pub struct Progress {
    sink: Sink,
}

#[derive(Clone)]
enum Sink {
    Bar(ProgressBar),
    Lines(Arc<Mutex<Lines>>),
    Hidden,
}

impl Progress {
    /// A bar if standard error is a terminal, otherwise lines.
    #[must_use]
    pub fn on_stderr() -> Self {
        if io::stderr().is_terminal() {
            return Self { sink: Sink::Bar(ProgressBar::no_length()) };
        }
        Self::lines(Box::new(io::stderr()), LINE_EVERY)
    }

    /// A bar if standard error is a terminal, otherwise nothing.
    #[must_use]
    pub fn on_terminal_only() -> Self {
        match Self::on_stderr() {
            Self { sink: Sink::Lines(_) } => Self { sink: Sink::Hidden },
            bar => bar,
        }
    }

    fn lines(out: Box<dyn Write + Send>, every: Duration) -> Self {
        let lines = Lines { out, every, since: Instant::now(), step: Step::default(), done: 0 };
        Self { sink: Sink::Lines(Arc::new(Mutex::new(lines))) }
    }

    /// Whether nothing is shown at all.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        matches!(self.sink, Sink::Hidden)
    }

    /// Begins a step. Without a terminal, its first line comes after a few seconds.
    pub fn begin(&self, name: &str, unit: Unit, total: Option<u64>) {
        let name = printable_line(name);
        match &self.sink {
            Sink::Bar(bar) => {
                bar.set_style(style(unit, total.is_some()));
                bar.set_message(name);
                total.map_or_else(|| bar.unset_length(), |total| bar.set_length(total));
                bar.reset();
                match unit {
                    Unit::Nothing => bar.enable_steady_tick(SPINNER_STEP),
                    Unit::Bytes | Unit::Items(_) => bar.disable_steady_tick(),
                }
                bar.tick();
            }
            Sink::Lines(lines) => {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                (lines.step, lines.done, lines.since) = (Step { name, unit, total }, 0, Instant::now());
            }
            Sink::Hidden => {}
        }
    }

    /// Begins a step and prints its name at once without a terminal.
    pub fn announce(&self, name: &str, unit: Unit, total: Option<u64>) {
        self.begin(name, unit, total);
        if let Sink::Lines(lines) = &self.sink {
            lines.lock().unwrap_or_else(PoisonError::into_inner).print();
        }
    }

    /// Gives the step another name.
    pub fn rename(&self, name: &str) {
        match &self.sink {
            Sink::Bar(bar) => bar.set_message(printable_line(name)),
            Sink::Lines(lines) => {
                lines.lock().unwrap_or_else(PoisonError::into_inner).step.name = printable_line(name);
            }
            Sink::Hidden => {}
        }
    }

    /// Reports how much of the step is done.
    pub fn set(&self, done: u64) {
        match &self.sink {
            Sink::Bar(bar) => bar.set_position(done),
            Sink::Lines(lines) => lines.lock().unwrap_or_else(PoisonError::into_inner).advance_to(done),
            Sink::Hidden => {}
        }
    }

    /// Reports that more of the step is done.
    pub fn add(&self, more: u64) {
        match &self.sink {
            Sink::Bar(bar) => bar.inc(more),
            Sink::Lines(lines) => {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                let done = lines.done.saturating_add(more);
                lines.advance_to(done);
            }
            Sink::Hidden => {}
        }
    }

    /// Removes the bar from the screen.
    pub fn clear(&self) {
        if let Sink::Bar(bar) = &self.sink {
            bar.finish_and_clear();
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sink = match self.sink {
            Sink::Bar(_) => "bar",
            Sink::Lines(_) => "lines",
            Sink::Hidden => "hidden",
        };
        formatter.debug_struct("Progress").field("sink", &sink).finish()
    }
}

fn style(unit: Unit, has_total: bool) -> ProgressStyle {
    let template = match (unit, has_total) {
        (Unit::Nothing, _) => "{spinner} {msg} {elapsed}",
        (Unit::Bytes, true) => "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
        (Unit::Bytes, false) => "{spinner} {msg} {binary_bytes} {binary_bytes_per_sec}",
        (Unit::Items(_), true) => "{msg} [{bar:30}] {pos}/{len} {elapsed}",
        (Unit::Items(_), false) => "{spinner} {msg} {pos} {elapsed}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

struct Step {
    name: String,
    unit: Unit,
    total: Option<u64>,
}

impl Default for Step {
    fn default() -> Self {
        Self { name: String::new(), unit: Unit::Nothing, total: None }
    }
}

/// Progress without a terminal.
struct Lines {
    out: Box<dyn Write + Send>,
    every: Duration,
    /// The last line, or the begin of the step.
    since: Instant,
    step: Step,
    done: u64,
}

impl Lines {
    fn advance_to(&mut self, done: u64) {
        self.done = done;
        if self.since.elapsed() >= self.every {
            self.print();
        }
    }

    fn print(&mut self) {
        self.since = Instant::now();
        let line = self.step.line(self.done);
        let _ = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
    }
}

impl Step {
    fn line(&self, done: u64) -> String {
        let Self { name, unit, total } = self;
        let share = total.filter(|total| *total > 0).map(|total| u128::from(done) * 100 / u128::from(total));
        let share = share.map_or_else(String::new, |percent| format!(" ({percent} %)"));
        match (unit, total) {
            (Unit::Nothing, _) => name.clone(),
            (Unit::Bytes, Some(total)) => format!("{name}: {} of {}{share}", show_bytes(done), show_bytes(*total)),
            (Unit::Bytes, None) => format!("{name}: {}", show_bytes(done)),
            (Unit::Items(what), Some(total)) => format!("{name}: {done} of {total} {what}{share}"),
            (Unit::Items(what), None) => format!("{name}: {done} {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that a test can look into.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines_of(every: Duration, work: impl FnOnce(&Progress)) -> Vec<String> {
        let written = Written::default();
        work(&Progress::lines(Box::new(written.clone()), every));
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn without_a_terminal_each_report_is_a_line_once_the_pause_is_over() {
        let lines = lines_of(Duration::ZERO, |progress| {
            progress.begin("checking rows", Unit::Bytes, Some(2048));
            progress.add(512);
            progress.set(2048);
            progress.begin("replaying a.json", Unit::Items("requests"), Some(40));
            progress.add(3);
            progress.begin("fetching x\n\u{1b}[2J", Unit::Bytes, None);
            progress.set(10);
            progress.rename("measuring");
            progress.add(1);
        });
        assert_eq!(
            lines,
            [
                "checking rows: 512 B of 2.0 KiB (25 %)",
                "checking rows: 2.0 KiB of 2.0 KiB (100 %)",
                "replaying a.json: 3 of 40 requests (7 %)",
                "fetching x \u{241b}[2J: 10 B",
                "measuring: 11 B",
            ]
        );
    }

    #[test]
    fn short_work_prints_only_what_is_announced() {
        let lines = lines_of(Duration::from_secs(3600), |progress| {
            progress.begin("checking rows", Unit::Items("rows"), Some(5));
            (1..=5).for_each(|done| progress.set(done));
            progress.announce("looking for smollm2", Unit::Nothing, None);
            progress.announce("fetching smollm2", Unit::Bytes, Some(0));
            progress.set(0);
            progress.clear();
        });
        assert_eq!(lines, ["looking for smollm2", "fetching smollm2: 0 B of 0 B"]);
    }
}
