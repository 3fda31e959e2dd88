//! Where the cells of a range lie in the state of a sequence, and what of it a segment takes.
//!
//! Used by `state.rs` on every save. Pure and safe: it reads the frame that llama.cpp wrote, with the cells in any order, and
//! says which bytes of the state go where. It must never name a byte that lies outside of the segment.

use std::ops::Range;

use crate::backend::StateError;
use crate::backend::llama::state::io::StateRange;
use crate::backend::llama::state::layout::{KvShape, StateShape};
use crate::backend::llama::state::segment::{
    CellRun, Frame, FrameSpec, Rows, SEGMENT_HEADER, SectionView, cell_position, read_attention, write_header,
};

/// The attention sections of a state, without their rows.
pub(in crate::backend::llama) struct Packed<'a> {
    frame: &'a [u8],
    shape: &'a StateShape,
    range: Range<u32>,
    sections: Vec<SectionView>,
    runs: Vec<Vec<CellRun>>,
}

impl<'a> Packed<'a> {
    /// Finds the cells of `range`; `Ok(None)` if one of them is not there.
    pub(in crate::backend::llama) fn find(
        frame: &'a [u8],
        shape: &'a StateShape,
        range: &Range<u32>,
    ) -> Result<Option<Self>, StateError> {
        let sections = read_attention(frame, shape, shape.streams, Rows::LeftOut)?;
        let mut runs = Vec::with_capacity(sections.len());
        for (view, section) in sections.iter().zip(&shape.attention) {
            match find_runs(frame, view, section, range)? {
                Some(found) => runs.push(found),
                None => return Ok(None),
            }
        }
        Ok(Some(Self { frame, shape, range: range.clone(), sections, runs }))
    }

    /// Bytes of the segment.
    pub(in crate::backend::llama) fn segment_len(shape: &StateShape, range: &Range<u32>) -> usize {
        SEGMENT_HEADER + shape.attention_blob_len(range.len())
    }

    /// Writes the segment but for its rows to `out`, which has its length. Returns the bytes of the state that are the rows, in
    /// their order in the state.
    pub(in crate::backend::llama) fn write(&self, out: &mut [u8]) -> Result<Vec<StateRange>, StateError> {
        let Self { frame, shape, range, .. } = self;
        let positions: Vec<u32> = range.clone().collect();
        let tail = shape.empty_tail(shape.streams);
        let spec = FrameSpec { streams: shape.streams, sections: &shape.attention, positions: &positions, tail: &tail };
        write_header(out, shape, range, spec.len());
        let mut target = Frame::new(out.get_mut(SEGMENT_HEADER..).unwrap_or_default(), &spec)?;
        let mut ranges = Vec::new();
        // What the frame has not and the state has before the section at hand.
        let mut left_out = 0;
        for (index, (view, runs)) in self.sections.iter().zip(&self.runs).enumerate() {
            let in_state = SectionView { records: view.records + left_out, ..view.clone() };
            let mut to = 0;
            for run in runs {
                target.copy_extensions(index, frame, view, *run, to);
                target.each_stretch(index, &in_state, *run, to, |_, from, to, size| {
                    ranges.push(StateRange { from, size, to: SEGMENT_HEADER + to });
                });
                to += run.len;
            }
            left_out += shape.attention.get(index).map_or(0, KvShape::cell_bytes) * view.cells;
        }
        target.finish()?;
        // Cells of a shared pool need not lie in the order of their positions.
        ranges.sort_unstable_by_key(|range| range.from);
        Ok(ranges)
    }
}

/// The cells of `range` in the order of their positions, as runs; `None` if one is missing.
fn find_runs(
    blob: &[u8],
    view: &SectionView,
    section: &KvShape,
    range: &Range<u32>,
) -> Result<Option<Vec<CellRun>>, StateError> {
    let mut cell_of = vec![usize::MAX; (range.end - range.start) as usize];
    for index in 0..view.cells {
        let position = cell_position(blob, view, section, index)?;
        let slot = position.checked_sub(range.start).and_then(|offset| cell_of.get_mut(offset as usize));
        if let Some(slot) = slot {
            if *slot != usize::MAX {
                let got = position.into();
                return Err(StateError::Malformed { reason: "position held twice", expected: 1, got });
            }
            *slot = index;
        }
    }
    let mut runs: Vec<CellRun> = Vec::new();
    for cell in cell_of {
        match runs.last_mut() {
            _ if cell == usize::MAX => return Ok(None),
            Some(run) if run.first + run.len == cell => run.len += 1,
            _ => runs.push(CellRun { first: cell, len: 1 }),
        }
    }
    Ok(Some(runs))
}
