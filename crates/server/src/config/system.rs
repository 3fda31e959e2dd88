//! What `/api/system` lists of the program that runs a server: its settings, the devices of the machine, the plans of its
//! models, and its last warnings.
//!
//! Filled by the command line. Secrets never come here; lines are bounded in number and length.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::Serialize;

/// Lines that are kept.
const MOST_LINES: usize = 200;
/// Bytes of a line.
const MOST_BYTES: usize = 1000;

/// A setting as people read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Setting")]
pub struct ShownSetting {
    /// Its name in the settings file.
    pub name: String,
    /// Its value; keys and passwords are masked.
    pub value: String,
    /// The layer that set it: a flag, a variable, a line of a file, or `default`.
    pub origin: String,
}

/// A device that can compute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Device")]
pub struct ShownDevice {
    /// Its name, such as `CUDA0`.
    pub name: String,
    /// Its product name.
    pub description: String,
    /// What it is: `cpu`, `gpu` or `accelerator`.
    pub kind: &'static str,
    /// All bytes of its memory.
    pub total_bytes: u64,
    /// Bytes that were free before models were loaded.
    pub free_bytes: u64,
}

/// A backend or a worker that was found and is not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UnusedDevice {
    /// Its file or its address.
    pub what: String,
    /// Why it is not used, and what to do.
    pub why: String,
}

/// The machine as it was when the server started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ShownMachine {
    /// What models can be computed on.
    pub devices: Vec<ShownDevice>,
    /// What was found and is not used.
    pub unused: Vec<UnusedDevice>,
}

/// One choice of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PlanLine {
    /// The choice and its reason.
    pub text: String,
    /// The flags that change it.
    pub flags: Vec<&'static str>,
    /// Whether the user made it. The planner made the others.
    pub is_set: bool,
}

/// The memory of a model on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PlannedMemory {
    /// The device, or `host` for the memory of the machine.
    pub device: String,
    /// Bytes of weights.
    pub weights_bytes: u64,
    /// Bytes of the KV cache.
    pub context_bytes: u64,
    /// Bytes of buffers.
    pub buffer_bytes: u64,
}

/// How a model fits on the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Plan")]
pub struct ShownPlan {
    /// The choices.
    pub lines: Vec<PlanLine>,
    /// What is wrong with the plan, if anything is.
    pub warning: Option<String>,
    /// The memory that it needs, the host first.
    pub memory: Vec<PlannedMemory>,
}

/// The plan of a model by its file and its name; `None` if there is none.
pub type Plans = Arc<dyn Fn(&Path, &str) -> Option<ShownPlan> + Send + Sync>;

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
