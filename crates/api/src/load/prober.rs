//! How a model is tried in a process of its own before it is loaded.
//!
//! Part of a model's configuration; the engine starts the process. Paths are those of the machine that loads.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Which files are tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ProbeWhen {
    /// Those that did not pass before.
    #[default]
    Unfamiliar,
    /// All, at every load.
    Always,
}

/// How a model is tried before it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prober {
    /// The program that tries it; with the same llama.cpp inside as this one.
    pub program: PathBuf,
    /// Its first arguments. The settings and the paths of the model's files follow.
    pub args: Vec<OsString>,
    /// Which files are tried.
    pub when: ProbeWhen,
    /// Where it is remembered which files passed; `None` tries each one at every load.
    pub memo: Option<PathBuf>,
    /// How long it may take; `None` for a minute, and more for a large file.
    pub deadline: Option<Duration>,
}

impl Prober {
    /// A prober that tries unfamiliar files and remembers nothing.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), args: Vec::new(), when: ProbeWhen::Unfamiliar, memo: None, deadline: None }
    }
}
