//! The source of a value, as messages and `poncho config` name it.

use std::fmt;
use std::path::PathBuf;

/// The layer that won.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A flag, with its dashes.
    Flag(String),
    /// An environment variable.
    Variable(String),
    /// A line of the file, counted from 1.
    File { path: PathBuf, line: usize },
    /// An environment variable of another program.
    OtherProgram(String),
    /// No layer set it.
    Default,
}

impl Origin {
    /// The layer's name, for scripts.
    pub(crate) const fn layer(&self) -> &'static str {
        match self {
            Self::Flag(_) => "flag",
            Self::Variable(_) => "environment",
            Self::File { .. } => "file",
            Self::OtherProgram(_) => "other_program",
            Self::Default => "default",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => formatter.write_str(flag),
            Self::Variable(name) | Self::OtherProgram(name) => formatter.write_str(name),
            Self::File { path, line } => write!(formatter, "{}:{line}", path.display()),
            Self::Default => formatter.write_str("default"),
        }
    }
}
