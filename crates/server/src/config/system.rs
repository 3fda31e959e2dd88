//! What `/api/system` lists of the program that runs a server: its settings and its last warnings.
//!
//! Filled by the command line. Secrets never come here; lines are bounded in number and length.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// Lines that are kept.
const MOST_LINES: usize = 200;
/// Bytes of a line.
const MOST_BYTES: usize = 1000;

/// A setting as people read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownSetting {
    /// Its name in the settings file.
    pub name: String,
    /// Its value; a secret is masked.
    pub value: String,
    /// The layer that set it: a flag, a variable, a line of a file, or `default`.
    pub origin: String,
}

/// The last lines of a log.
#[derive(Debug, Default)]
pub struct RecentLines(Mutex<VecDeque<String>>);

impl RecentLines {
    /// Adds a line; the oldest one leaves if there are too many.
    pub fn add(&self, line: &str) {
        let end = (0..=MOST_BYTES.min(line.len())).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        let line = line.get(..end).unwrap_or_default().trim_end().to_owned();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= MOST_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// All lines, the oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lines_are_kept_and_long_ones_are_cut_between_letters() {
        let lines = RecentLines::default();
        (0..MOST_LINES + 5).for_each(|number| lines.add(&number.to_string()));
        assert_eq!((lines.all().len(), lines.all()[0].as_str()), (MOST_LINES, "5"));
        lines.add(&"é".repeat(MOST_BYTES));
        assert!(lines.all().last().unwrap().len() <= MOST_BYTES);
    }
}
