//! Standard output of a command: text for people, or one JSON document for scripts.
//!
//! Used by every command with `--json`.

use std::fmt;
use std::io::Write;

use serde::Serialize;

/// The writer of a command and the form that the user asked for.
pub struct Output<'a> {
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Whether to print JSON and nothing else.
    pub json: bool,
}

impl Output<'_> {
    /// Prints one JSON document.
    ///
    /// # Errors
    /// If the writer fails or the data cannot be serialized.
    pub fn print_json(&mut self, data: &impl Serialize) -> anyhow::Result<()> {
        print_json(self.out, data)
    }
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Output").field("json", &self.json).finish_non_exhaustive()
    }
}

/// Prints one JSON document, indented, with a line end.
///
/// # Errors
/// If the writer fails or the data cannot be serialized.
pub fn print_json(out: &mut (impl Write + ?Sized), data: &impl Serialize) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, data)?;
    writeln!(out)?;
    Ok(())
}
