//! Aligned columns for people.
//!
//! Used by the commands that print lists. A table fits the terminal: cells that are too long lose their middle, and no
//! line wraps. In a pipe nothing is shortened. Scripts read `--json` instead, so nothing may rely on the widths.

use std::io::{self, Write};

use crate::printable_line;
use crate::width::{shortened, terminal_width, width};

/// Spaces between two columns.
const GAP: usize = 2;
/// No cell is shortened to fewer columns than this.
const NARROWEST: usize = 8;

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// To the left.
    Left,
    /// To the right, for numbers.
    Right,
}

/// The form of a printed table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableStyle {
    /// Columns aligned with spaces.
    Aligned,
    /// A Markdown table.
    Markdown,
}

impl TableStyle {
    /// The style for a flag `--markdown`.
    #[must_use]
    pub fn of(markdown: bool) -> Self {
        if markdown { Self::Markdown } else { Self::Aligned }
    }
}

/// A table: its columns and the rows so far.
#[derive(Debug)]
pub struct Table<const COLUMNS: usize> {
    columns: [(&'static str, Align); COLUMNS],
    rows: Vec<[String; COLUMNS]>,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    /// An empty table.
    #[must_use]
    pub fn new(columns: [(&'static str, Align); COLUMNS]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row. Control characters in its cells are made visible.
    pub fn row(&mut self, cells: [String; COLUMNS]) {
        // Names and facts come from files and servers.
        self.rows.push(cells.map(|cell| printable_line(&cell)));
    }

    /// Prints the table in this style.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn print_in(&self, style: TableStyle, out: &mut dyn Write) -> io::Result<()> {
        match style {
            TableStyle::Aligned => self.print(out),
            TableStyle::Markdown => self.print_markdown(out),
        }
    }

    /// Prints headings and rows, two spaces between columns, nothing at the end of a line. Fits the terminal.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.print_within(terminal_width(), out)
    }

    /// The same for lines of at most `limit` columns.
    fn print_within(&self, limit: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
        let widths = self.widths(limit);
        let headings = self.columns.map(|(heading, _)| heading.to_owned());
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, column), (_, align)) in row.iter().zip(widths).zip(self.columns) {
                let cell = shortened(cell, column);
                let padding = " ".repeat(column.saturating_sub(width(&cell)));
                let (before, after) = match align {
                    Align::Left => ("", padding.as_str()),
                    Align::Right => (padding.as_str(), ""),
                };
                line.push_str(&format!("{before}{cell}{after}{:GAP$}", ""));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// The width of each column. The widest columns of texts give way until a line fits.
    fn widths(&self, limit: Option<usize>) -> [usize; COLUMNS] {
        let mut widths = self.columns.map(|(heading, _)| width(heading));
        for row in &self.rows {
            for (column, cell) in widths.iter_mut().zip(row) {
                *column = (*column).max(width(cell));
            }
        }
        let Some(limit) = limit else { return widths };
        let whole = |widths: &[usize; COLUMNS]| widths.iter().sum::<usize>() + GAP * COLUMNS.saturating_sub(1);
        while whole(&widths) > limit {
            let shrinkable = widths
                .iter_mut()
                .zip(self.columns)
                .filter(|(column, (heading, align))| *align == Align::Left && **column > NARROWEST.max(width(heading)));
            let Some((widest, _)) = shrinkable.max_by_key(|(column, _)| **column) else { break };
            *widest -= 1;
        }
        widths
    }

    /// Prints a Markdown table with headings in lower case.
    fn print_markdown(&self, out: &mut dyn Write) -> io::Result<()> {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |", cells.join(" | "))
        };
        writeln!(out, "{}", line(&self.columns.map(|(heading, _)| heading.to_lowercase())))?;
        let ruler = self.columns.map(|(_, align)| match align {
            Align::Left => "---".to_owned(),
            Align::Right => "---:".to_owned(),
        });
        writeln!(out, "{}", line(&ruler))?;
        self.rows.iter().try_for_each(|row| writeln!(out, "{}", line(row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new([("NAME", Align::Left), ("N", Align::Right), ("", Align::Left)]);
        table.row(["caf\u{e9}s".to_owned(), "7".to_owned(), "x".to_owned()]);
        table.row(["a".to_owned(), "1000".to_owned(), String::new()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "NAME      N\ncaf\u{e9}s     7  x\na      1000\n");
    }

    #[test]
    fn control_characters_cannot_break_a_cell() {
        let mut table = Table::new([("NAME", Align::Left), ("N", Align::Right)]);
        table.row(["a\nb\u{1b}[2J".to_owned(), "7".to_owned()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "NAME     N\na b\u{241b}[2J  7\n");
    }

    /// Everyday use 16: long names made lines of a table wrap.
    #[test]
    fn a_table_fits_and_long_cells_lose_their_middle() {
        let mut table = Table::new([("NAME", Align::Left), ("SIZE", Align::Right), ("FROM", Align::Left)]);
        let name = "bartowski/a-model-with-a-long-name-instruct:Q4_K_M";
        table.row([name.to_owned(), "1.5 GiB".to_owned(), "hf:bartowski/some-repository-GGUF".to_owned()]);
        table.row(["small:1".to_owned(), "700.0 MiB".to_owned(), "-".to_owned()]);
        for limit in [30, 60, 80] {
            let mut out = Vec::new();
            table.print_within(Some(limit), &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(text.lines().count() == 3 && text.lines().all(|line| width(line) <= limit), "{text}");
            assert!(text.contains("700.0 MiB") && text.contains("\u{2026}"), "{text}");
        }
        let mut out = Vec::new();
        table.print_within(None, &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains(name), "a pipe gets whole names");
    }

    #[test]
    fn a_markdown_table_keeps_the_alignment() {
        let mut table = Table::new([("NAME", Align::Left), ("N", Align::Right)]);
        table.row(["a|b".to_owned(), "7".to_owned()]);
        let mut out = Vec::new();
        table.print_markdown(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "| name | n |\n| --- | ---: |\n| a\\|b | 7 |\n");
    }
}
