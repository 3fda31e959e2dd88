//! Where memory pressure is read: nothing, the machine's memory, or a caller's own source.
//!
//! Called by the pressure watcher's thread. A source measures memory that holds rows: an eviction must be able to change
//! what it measures, so the memory of a GPU is not a source. Reading and parsing are separate, so that tests give the
//! parsers text. A failed sample is a value, not a fault; a source must never block for longer than its own bound.

mod system;

use std::io;
use std::path::PathBuf;

pub use system::SystemSource;

/// One reading of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PressureSample {
    /// Bytes in use.
    pub used: u64,
    /// Bytes in all; 0 where the source has nothing to watch.
    pub total: u64,
}

impl PressureSample {
    /// Whether this sample is fuller than the other, in proportion.
    fn is_fuller_than(&self, other: &Self) -> bool {
        u128::from(self.used) * u128::from(other.total) > u128::from(other.used) * u128::from(self.total)
    }
}

/// Why a sample could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum PressureError {
    /// A file of the operating system cannot be read.
    #[error("cannot read {}; use another pressure source on this system", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A text does not hold what it should.
    #[error("{origin} has no {wanted} in {text:?}; use another pressure source")]
    Unparsable {
        /// Where the text comes from.
        origin: String,
        /// What was looked for.
        wanted: &'static str,
        /// The text, or its beginning.
        text: String,
    },
    /// The source or the eviction it led to panicked.
    #[error("{part} of the pressure watcher panicked: {message}; report it, or use another pressure source")]
    Panicked {
        /// The source's name, or what else panicked.
        part: String,
        /// The message of the panic.
        message: String,
    },
}

/// A measure of memory in use.
pub trait PressureSource: Send {
    /// The name in logs and reports.
    fn name(&self) -> &str;

    /// Reads the source once.
    ///
    /// # Errors
    /// When it cannot be read; the watcher reports it and tries again at the next interval.
    fn sample(&mut self) -> Result<PressureSample, PressureError>;
}

/// The sources that a configuration can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PressureSourceKind {
    /// No pressure, ever.
    Noop,
    /// The machine's memory, and that of the control group around the process.
    System,
}

impl PressureSourceKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Noop, Self::System];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Noop => "noop",
            Self::System => "system",
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// A source of this kind with its usual settings.
    #[must_use]
    pub fn source(self) -> Box<dyn PressureSource> {
        match self {
            Self::Noop => Box::new(NoopSource),
            Self::System => Box::new(SystemSource::default()),
        }
    }
}

/// A source that never reports pressure.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoopSource;

impl PressureSource for NoopSource {
    fn name(&self) -> &str {
        PressureSourceKind::Noop.as_str()
    }

    fn sample(&mut self) -> Result<PressureSample, PressureError> {
        Ok(PressureSample::default())
    }
}

fn unparsable(origin: &str, wanted: &'static str, text: &str) -> PressureError {
    PressureError::Unparsable { origin: origin.to_owned(), wanted, text: text.chars().take(200).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_name_their_sources() {
        for kind in PressureSourceKind::ALL {
            assert_eq!(PressureSourceKind::from_name(kind.as_str()), Some(kind));
            assert_eq!(kind.source().name(), kind.as_str());
        }
        assert_eq!(NoopSource.sample().unwrap(), PressureSample::default());
    }
}
