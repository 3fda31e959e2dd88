//! Rows that follow each other, as the pieces of one state.
//!
//! Used by `state.rs` to restore a chain without joining its rows first. Pure and safe: it sees only slices that
//! `segment.rs` has checked, and hands out nothing but parts of them and of the context's own shape.

use std::io::IoSlice;
use std::ops::Range;

use crate::backend::StateError;
use crate::backend::llama::state::layout::{KvShape, STATE_HEADER, STATE_MAGIC, StateShape};
use crate::backend::llama::state::segment::{Segment, section_head};

/// See the module.
pub(in crate::backend::llama) struct Chain<'a> {
    shape: &'a StateShape,
    links: Vec<Link<'a>>,
    /// What opens the state and each of its sections: the number of cells is the chain's own.
    header: [u8; STATE_HEADER],
    counts: Vec<u8>,
    tail: Vec<u8>,
}

/// A row, and the cells of it that count.
struct Link<'a> {
    segment: &'a Segment<'a>,
    first: usize,
    cells: usize,
}

impl<'a> Chain<'a> {
    /// Rows with the positions that are wanted of each; they follow each other.
    pub(in crate::backend::llama) fn new(shape: &'a StateShape, rows: &'a [(Segment<'a>, Range<u32>)]) -> Self {
        let link = |(segment, wanted): &'a (Segment<'a>, Range<u32>)| Link {
            segment,
            first: wanted.start.saturating_sub(segment.range.start) as usize,
            cells: wanted.len(),
        };
        let links: Vec<Link<'a>> = rows.iter().map(link).collect();
        let cells: usize = links.iter().map(|link| link.cells).sum();
        let mut header = [0; STATE_HEADER];
        if let Some(magic) = header.first_chunk_mut() {
            *magic = STATE_MAGIC.to_le_bytes();
        }
        let counts = section_head(shape.streams, cells);
        Self { shape, links, header, counts, tail: shape.empty_tail(shape.streams) }
    }

    /// The state of the chain, in order; no piece is empty.
    ///
    /// # Errors
    /// [`StateError::Malformed`] if a row is shorter than the checks before this allow.
    pub(in crate::backend::llama) fn pieces(&self) -> Result<Vec<IoSlice<'_>>, StateError> {
        let lines = |section: &KvShape| section.tensors.iter().map(|tensor| 1 + tensor.rows.lines().0).sum::<usize>();
        let lines: usize = self.shape.attention.iter().map(lines).sum();
        let mut pieces = IoPieces(Vec::with_capacity((lines + self.shape.attention.len() * 2) * self.links.len() + 2));
        pieces.push(&self.header);
        for (index, section) in self.shape.attention.iter().enumerate() {
            self.section(index, section, &mut pieces)?;
        }
        pieces.push(&self.tail);
        Ok(pieces.0)
    }

    fn section<'b>(&'b self, index: usize, section: &'b KvShape, pieces: &mut IoPieces<'b>) -> Result<(), StateError> {
        pieces.push(&self.counts);
        let links = || self.links.iter().filter_map(|link| Some((link, link.segment.sections.get(index)?)));
        for (link, view) in links() {
            let start = view.records + link.first * section.cell_record;
            pieces.push(part(link, start, link.cells * section.cell_record)?);
        }
        pieces.push(&section.data_head);
        // Bytes between a row's records and the tensor at hand: of the heads, and of each cell.
        let (mut heads, mut of_a_cell) = (section.data_head.len(), 0);
        for tensor in &section.tensors {
            pieces.push(&tensor.head);
            heads += tensor.head.len();
            let (lines, width) = tensor.rows.lines();
            for line in 0..lines {
                for (link, view) in links() {
                    let cells = view.cells;
                    let rows = view.records + section.cell_record * cells + heads + of_a_cell * cells;
                    pieces.push(part(link, rows + (line * cells + link.first) * width, link.cells * width)?);
                }
            }
            of_a_cell += tensor.rows.cell_bytes();
        }
        Ok(())
    }
}

struct IoPieces<'a>(Vec<IoSlice<'a>>);

impl<'a> IoPieces<'a> {
    fn push(&mut self, bytes: &'a [u8]) {
        if !bytes.is_empty() {
            self.0.push(IoSlice::new(bytes));
        }
    }
}

fn part<'a>(link: &Link<'a>, start: usize, len: usize) -> Result<&'a [u8], StateError> {
    let given = link.segment.blob.len();
    let end = start.saturating_add(len);
    let short = StateError::Malformed { reason: "length", expected: end as u64, got: given as u64 };
    link.segment.blob.get(start..end).ok_or(short)
}
