//! Where the figures of a run go: the flags that the comparison and the matrix share.

use std::path::PathBuf;

use anyhow::Context;
use poncho_terminal::TableStyle;
use serde::Serialize;

#[derive(Debug, clap::Args)]
pub(crate) struct FigureArgs {
    /// Write all figures to this JSON file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write charts into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,

    /// Print the tables as Markdown
    #[arg(long)]
    markdown: bool,
}

impl FigureArgs {
    /// Writes the JSON file, if it is wanted.
    pub(crate) fn write_json(&self, figures: &impl Serialize) -> anyhow::Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(figures)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    pub(crate) fn style(&self) -> TableStyle {
        TableStyle::of(self.markdown)
    }
}
