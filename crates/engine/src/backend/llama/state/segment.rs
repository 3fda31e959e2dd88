//! The attention state of a token range as stored bytes: header, checks, and the frame around its rows.
//!
//! Used by `state.rs` on every save and restore. Pure and safe: it sees only slices, trusts no length it reads, and
//! hands llama.cpp nothing that it has not compared with the context's own shape.
//!
//! # Bytes of a segment (little-endian)
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..4 | magic `PSEG` |
//! | 4..8 | u32 version, 1 |
//! | 8..12 | u32 first position |
//! | 12..16 | u32 end of the positions |
//! | 16..24 | u64 length of the state blob |
//! | 24..28 | u32 streams in the blob |
//! | 28..32 | u32 tensors per cell (keys and values of all attention layers) |
//! | 32..40 | u64 state bytes per cell |
//! | 40..64 | zero |
//! | 64.. | state blob |
//!
//! The blob is what `llama_state_seq_set_data` takes in a context with that many streams: the attention sections with
//! exactly the cells of the range in the order of their positions, then empty window and recurrent sections. So a
//! context of the same kind restores it without a copy; any other number of streams is served by taking the rows out
//! and writing the frame again. Sequence ids in the blob mean nothing.

use std::ops::Range;

use crate::backend::StateError;
use crate::backend::llama::state::layout::{
    KvShape, STATE_HEADER, STATE_MAGIC, StateShape, TensorRows, push_u32, read_u32,
};

const SEGMENT_MAGIC: &[u8; 4] = b"PSEG";
const SEGMENT_VERSION: u32 = 1;
/// Bytes before the state blob; a multiple of a cache line keeps the blob as aligned as the buffer.
pub(in crate::backend::llama) const SEGMENT_HEADER: usize = 64;

/// A run of cells that lie one after the other in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::llama) struct CellRun {
    /// Index of the first cell in the source section.
    pub(in crate::backend::llama) first: usize,
    /// Number of cells.
    pub(in crate::backend::llama) len: usize,
}

/// Where the parts of one KV section lie in a blob.
#[derive(Clone, Debug)]
pub(in crate::backend::llama) struct SectionView {
    /// Cells in the section.
    pub(in crate::backend::llama) cells: usize,
    /// Offset of the cell records.
    pub(in crate::backend::llama) records: usize,
    /// End of the whole section.
    pub(in crate::backend::llama) end: usize,
}

/// A checked segment.
#[derive(Clone, Debug)]
pub(in crate::backend::llama) struct Segment<'a> {
    /// The positions it covers.
    pub(in crate::backend::llama) range: Range<u32>,
    /// Streams its blob is framed for.
    pub(in crate::backend::llama) streams: usize,
    /// The blob that `llama_state_seq_set_data` takes.
    pub(in crate::backend::llama) blob: &'a [u8],
    /// Where its attention sections lie.
    pub(in crate::backend::llama) sections: Vec<SectionView>,
}

impl<'a> Segment<'a> {
    /// Reads and checks a stored segment against the shape of the context that shall take it.
    pub(in crate::backend::llama) fn read(bytes: &'a [u8], shape: &StateShape) -> Result<Self, StateError> {
        let header = bytes.get(..SEGMENT_HEADER).ok_or(too_short(SEGMENT_HEADER, bytes.len()))?;
        expect("segment magic", &header.get(..4), &Some(SEGMENT_MAGIC.as_slice()), 0, 1)?;
        let word = |at| read_u32(header, at).unwrap_or_default();
        let long = |at| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let malformed =
            |reason, expected: usize, got: u64| Err(StateError::Malformed { reason, expected: expected as u64, got });
        if word(4) != SEGMENT_VERSION {
            return malformed("segment version", SEGMENT_VERSION as usize, word(4).into());
        }
        let range = word(8)..word(12);
        if range.is_empty() || range.end > i32::MAX as u32 {
            return malformed("segment end", range.start as usize + 1, range.end.into());
        }
        let blob = bytes.get(SEGMENT_HEADER..).unwrap_or_default();
        if long(16) != blob.len() as u64 {
            return malformed("segment length", blob.len(), long(16));
        }
        if word(28) as usize != shape.attention_tensors() {
            return malformed("tensors per cell", shape.attention_tensors(), word(28).into());
        }
        if long(32) != shape.attention_cell_bytes() as u64 {
            return malformed("state bytes per cell", shape.attention_cell_bytes(), long(32));
        }
        if !(40..SEGMENT_HEADER).step_by(4).all(|at| word(at) == 0) {
            return malformed("reserved bytes", 0, 1);
        }
        let streams = word(24) as usize;
        if streams == 0 || streams > 256 {
            return malformed("streams", shape.streams, streams as u64);
        }
        let sections = read_attention(blob, shape, streams, Rows::There)?;
        let cells = (range.end - range.start) as usize;
        for (view, section) in sections.iter().zip(&shape.attention) {
            if view.cells != cells {
                return malformed("cells in a section", cells, view.cells as u64);
            }
            for (index, position) in range.clone().enumerate() {
                let got = cell_position(blob, view, section, index)?;
                if got != position {
                    return malformed("cell position", position as usize, got.into());
                }
            }
        }
        let tail_start = sections.last().map_or(STATE_HEADER, |view| view.end);
        let tail = shape.empty_tail(streams);
        if blob.get(tail_start..) != Some(tail.as_slice()) {
            return malformed("bytes after the cells", tail.len(), blob.len().saturating_sub(tail_start) as u64);
        }
        Ok(Self { range, streams, blob, sections })
    }
}

/// What a blob under construction is to hold.
#[derive(Clone, Copy)]
pub(in crate::backend::llama) struct FrameSpec<'a> {
    /// Streams of the context that shall take it.
    pub(in crate::backend::llama) streams: usize,
    /// The KV sections.
    pub(in crate::backend::llama) sections: &'a [KvShape],
    /// Positions of the cells, the same in each section.
    pub(in crate::backend::llama) positions: &'a [u32],
    /// What follows the sections.
    pub(in crate::backend::llama) tail: &'a [u8],
}

impl FrameSpec<'_> {
    /// Bytes of the blob.
    pub(in crate::backend::llama) fn len(&self) -> usize {
        let cells = self.positions.len();
        let sections: usize = self.sections.iter().map(|section| section.section_len(self.streams, cells)).sum();
        STATE_HEADER + sections + self.tail.len()
    }
}

/// A blob under construction: everything but its rows is written.
pub(in crate::backend::llama) struct Frame<'a> {
    out: &'a mut [u8],
    shapes: &'a [KvShape],
    sections: Vec<SectionView>,
    /// Whether every copy so far lay inside both blobs.
    sound: bool,
}

impl<'a> Frame<'a> {
    /// Writes everything but the rows; `out` has exactly [`FrameSpec::len`] bytes.
    pub(in crate::backend::llama) fn new(out: &'a mut [u8], spec: &FrameSpec<'a>) -> Result<Self, StateError> {
        let cells = spec.positions.len();
        let needed = spec.len();
        if out.len() != needed || cells == 0 {
            return Err(StateError::BufferTooSmall { needed, given: out.len() });
        }
        put(out, 0, &STATE_MAGIC.to_le_bytes());
        put(out, 4, &[0; 4]);
        let mut at = STATE_HEADER;
        let mut sections = Vec::with_capacity(spec.sections.len());
        for section in spec.sections {
            // The cells go into the last stream's place, so that nothing but the tail follows them.
            let head = section_head(spec.streams, cells);
            put(out, at, &head);
            let records = at + head.len();
            at += section.section_len(spec.streams, cells);
            let view = SectionView { cells, records, end: at };
            for (index, position) in spec.positions.iter().enumerate() {
                let record = view.records + index * section.cell_record;
                put(out, record, &position.to_le_bytes());
                put(out, record + 4, &1u32.to_le_bytes());
                put(out, record + section.cell_record - 4, &[0; 4]);
            }
            let mut data = view.records + section.cell_record * view.cells;
            put(out, data, &section.data_head);
            data += section.data_head.len();
            for tensor in &section.tensors {
                put(out, data, &tensor.head);
                data += tensor.head.len() + tensor.rows.cell_bytes() * view.cells;
            }
            sections.push(view);
        }
        put(out, at, spec.tail);
        Ok(Self { out, shapes: spec.sections, sections, sound: true })
    }

    /// Ends the construction; an error means that a copy did not fit, which the checks before it rule out.
    pub(in crate::backend::llama) fn finish(self) -> Result<(), StateError> {
        expect("rows of a segment", &self.sound, &true, 1, 0)
    }

    /// Copies what M-RoPE models keep per cell between the count of sequences and the sequence id.
    pub(in crate::backend::llama) fn copy_extensions(
        &mut self,
        index: usize,
        source: &[u8],
        from: &SectionView,
        run: CellRun,
        to: usize,
    ) {
        let shapes = self.shapes;
        let (Some(section), Some(records)) = (shapes.get(index), self.sections.get(index).map(|view| view.records))
        else {
            return;
        };
        let extension = section.cell_record - 12;
        let steps = if extension == 0 { 0 } else { run.len };
        for step in 0..steps {
            let source_at = from.records + (run.first + step) * section.cell_record + 8;
            self.copy(source, source_at, records + (to + step) * section.cell_record + 8, extension);
        }
    }

    /// Calls `stretch` with the place in the source, the place in ours and the length of everything that the tensors have of a run
    /// of cells.
    pub(in crate::backend::llama) fn each_stretch(
        &mut self,
        index: usize,
        from: &SectionView,
        run: CellRun,
        to: usize,
        mut stretch: impl FnMut(&mut Self, usize, usize, usize),
    ) {
        let shapes = self.shapes;
        let (Some(section), Some(into)) = (shapes.get(index), self.sections.get(index).cloned()) else { return };
        let mut source_at = from.records + section.cell_record * from.cells + section.data_head.len();
        let mut out_at = into.records + section.cell_record * into.cells + section.data_head.len();
        for tensor in &section.tensors {
            source_at += tensor.head.len();
            out_at += tensor.head.len();
            let (lines, width) = tensor.rows.lines();
            for line in 0..lines {
                let source_line = source_at + (line * from.cells + run.first) * width;
                let out_line = out_at + (line * into.cells + to) * width;
                stretch(self, source_line, out_line, run.len * width);
            }
            source_at += tensor.rows.cell_bytes() * from.cells;
            out_at += tensor.rows.cell_bytes() * into.cells;
        }
    }

    /// Copies bytes of a source; those that do not fit make [`Frame::finish`] fail.
    pub(in crate::backend::llama) fn copy(&mut self, source: &[u8], from: usize, to: usize, len: usize) {
        match (source.get(from..from + len), self.out.get_mut(to..to + len)) {
            (Some(source), Some(target)) => target.copy_from_slice(source),
            _ => self.sound = false,
        }
    }
}

/// What stands before the cells of a section: they are the last stream's.
pub(in crate::backend::llama) fn section_head(streams: usize, cells: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(4 * (1 + streams));
    push_u32(&mut head, streams);
    head.extend(std::iter::repeat_n(0, 4 * streams.saturating_sub(1)));
    push_u32(&mut head, cells);
    head
}

/// Writes the header of a segment. Its blob starts at [`SEGMENT_HEADER`] and has `blob_len` bytes.
pub(in crate::backend::llama) fn write_header(out: &mut [u8], shape: &StateShape, range: &Range<u32>, blob_len: usize) {
    let mut header = Vec::with_capacity(SEGMENT_HEADER);
    header.extend_from_slice(SEGMENT_MAGIC);
    header.extend_from_slice(&SEGMENT_VERSION.to_le_bytes());
    header.extend_from_slice(&range.start.to_le_bytes());
    header.extend_from_slice(&range.end.to_le_bytes());
    header.extend_from_slice(&(blob_len as u64).to_le_bytes());
    push_u32(&mut header, shape.streams);
    push_u32(&mut header, shape.attention_tensors());
    header.extend_from_slice(&(shape.attention_cell_bytes() as u64).to_le_bytes());
    header.resize(SEGMENT_HEADER, 0);
    put(out, 0, &header);
}

/// What a blob has of its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::llama) enum Rows {
    /// Everything.
    There,
    /// Types and sizes, not the rows.
    LeftOut,
}

impl Rows {
    fn len_of(self, tensor: &TensorRows, cells: usize) -> usize {
        match self {
            Self::There => tensor.rows.cell_bytes() * cells,
            Self::LeftOut => 0,
        }
    }
}

/// Finds the attention sections of a blob and checks every fixed byte in them.
pub(in crate::backend::llama) fn read_attention(
    blob: &[u8],
    shape: &StateShape,
    streams: usize,
    rows: Rows,
) -> Result<Vec<SectionView>, StateError> {
    check_blob_header(blob)?;
    let mut at = STATE_HEADER;
    let mut sections = Vec::with_capacity(shape.attention.len());
    for section in &shape.attention {
        let view = read_section_with(blob, at, section, streams, rows)?;
        at = view.end;
        sections.push(view);
    }
    Ok(sections)
}

/// Checks the first bytes of any sequence blob.
pub(in crate::backend::llama) fn check_blob_header(blob: &[u8]) -> Result<(), StateError> {
    let magic = read_u32(blob, 0).ok_or(too_short(STATE_HEADER, blob.len()))?;
    if magic != STATE_MAGIC || blob.len() < STATE_HEADER {
        return Err(StateError::Malformed { reason: "state magic", expected: STATE_MAGIC.into(), got: magic.into() });
    }
    Ok(())
}

/// Finds one KV section that starts at `at`: at most one stream may have cells.
pub(in crate::backend::llama) fn read_section(
    blob: &[u8],
    at: usize,
    section: &KvShape,
    streams: usize,
) -> Result<SectionView, StateError> {
    read_section_with(blob, at, section, streams, Rows::There)
}

fn read_section_with(
    blob: &[u8],
    at: usize,
    section: &KvShape,
    streams: usize,
    rows: Rows,
) -> Result<SectionView, StateError> {
    let short = || too_short(at.saturating_add(4), blob.len());
    let framed = read_u32(blob, at).ok_or_else(short)? as usize;
    if framed != streams {
        return Err(StateError::Malformed { reason: "streams", expected: streams as u64, got: framed as u64 });
    }
    let mut view = SectionView { cells: 0, records: at, end: at + 4 };
    for _ in 0..streams {
        let cells = read_u32(blob, view.end).ok_or_else(short)? as usize;
        view.end += 4;
        if cells == 0 {
            continue;
        }
        if view.cells != 0 {
            return Err(StateError::Malformed { reason: "streams with cells", expected: 1, got: 2 });
        }
        // A cell has at least its record, so a count beyond the blob is refused before any size is computed from it.
        if cells > blob.len() / section.cell_record {
            return Err(too_short(cells.saturating_mul(section.cell_record), blob.len()));
        }
        let tensors: usize = section.tensors.iter().map(|tensor| tensor.head.len() + rows.len_of(tensor, cells)).sum();
        let body = section.cell_record * cells + section.data_head.len() + tensors;
        view = SectionView { cells, records: view.end, end: view.end + body };
        if view.end > blob.len() {
            return Err(too_short(view.end, blob.len()));
        }
        check_fixed_bytes(blob, &view, section, rows)?;
    }
    Ok(view)
}

fn check_fixed_bytes(blob: &[u8], view: &SectionView, section: &KvShape, rows: Rows) -> Result<(), StateError> {
    let mut at = view.records + section.cell_record * view.cells;
    let fixed = |at: usize, bytes: &[u8], reason| match blob.get(at..at + bytes.len()) {
        Some(got) if got == bytes => Ok(()),
        _ => Err(StateError::Malformed { reason, expected: 0, got: at as u64 }),
    };
    fixed(at, &section.data_head, "layer count or value layout, differing at this byte")?;
    at += section.data_head.len();
    for tensor in &section.tensors {
        fixed(at, &tensor.head, "tensor type or row size, differing at this byte")?;
        at += tensor.head.len() + rows.len_of(tensor, view.cells);
    }
    for index in 0..view.cells {
        let sequences = read_u32(blob, view.records + index * section.cell_record + 4);
        if sequences != Some(1) {
            let got = sequences.unwrap_or_default().into();
            return Err(StateError::Malformed { reason: "sequences of a cell", expected: 1, got });
        }
    }
    Ok(())
}

/// Position of a section's cell.
pub(in crate::backend::llama) fn cell_position(
    blob: &[u8],
    view: &SectionView,
    section: &KvShape,
    index: usize,
) -> Result<u32, StateError> {
    let at = view.records + index * section.cell_record;
    read_u32(blob, at).ok_or(too_short(at + 4, blob.len()))
}

fn too_short(needed: usize, given: usize) -> StateError {
    StateError::Malformed { reason: "length", expected: needed as u64, got: given as u64 }
}

fn expect<T: PartialEq>(reason: &'static str, got: &T, right: &T, expected: u64, other: u64) -> Result<(), StateError> {
    if got == right { Ok(()) } else { Err(StateError::Malformed { reason, expected, got: other }) }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(target) = out.get_mut(at..at + bytes.len()) {
        target.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::cast_possible_truncation, reason = "test values only need to differ")]

    use proptest::prelude::*;

    use super::*;
    use crate::backend::llama::state::chain::Chain;
    use crate::backend::llama::state::io::StateRange;
    use crate::backend::llama::state::layout::{RecurrentShape, RowShape, StateSamples};
    use crate::backend::llama::state::packed::Packed;
    use crate::backend::llama::state::partial;

    /// A state as llama.cpp writes it, with values that name their tensor, row and position.
    #[derive(Clone, Copy, Debug)]
    struct Model {
        streams: usize,
        transposed: bool,
        extension: usize,
        attention: usize,
        window: usize,
        recurrent: bool,
    }

    impl Model {
        fn kv(&self, out: &mut Vec<u8>, seq: usize, cells: &[u32], section: usize, rows: Rows) {
            let of_rows: &[u32] = if rows == Rows::There { cells } else { &[] };
            push_u32(out, self.streams);
            for stream in 0..self.streams {
                if stream != seq || cells.is_empty() {
                    push_u32(out, 0);
                    continue;
                }
                push_u32(out, cells.len());
                for position in cells {
                    out.extend(position.to_le_bytes());
                    push_u32(out, 1);
                    out.extend(std::iter::repeat_n((*position % 251) as u8, self.extension));
                    push_u32(out, seq);
                }
                for word in [usize::from(self.transposed), 2, 0, 0] {
                    push_u32(out, word);
                }
                for layer in 0..2 {
                    push_u32(out, 1);
                    out.extend(6u64.to_le_bytes());
                    of_rows.iter().for_each(|p| out.extend([section as u8, layer, 0, *p as u8, (*p >> 8) as u8, 1]));
                }
                for layer in 0..2u8 {
                    push_u32(out, 1);
                    if self.transposed {
                        push_u32(out, 2);
                        push_u32(out, 3);
                        for line in 0..3u8 {
                            of_rows.iter().for_each(|p| out.extend([*p as u8 ^ line, layer]));
                        }
                    } else {
                        out.extend(4u64.to_le_bytes());
                        of_rows.iter().for_each(|p| out.extend([section as u8, layer, 9, *p as u8]));
                    }
                }
            }
        }

        fn state(&self, seq: usize, cells: &[u32], window: &[u32], whole: bool) -> Vec<u8> {
            self.state_with(seq, cells, window, whole, Rows::There)
        }

        fn state_with(&self, seq: usize, cells: &[u32], window: &[u32], whole: bool, rows: Rows) -> Vec<u8> {
            let mut out = STATE_MAGIC.to_le_bytes().to_vec();
            push_u32(&mut out, seq);
            if whole {
                (0..self.attention).for_each(|section| self.kv(&mut out, seq, cells, section, rows));
            }
            (0..self.window).for_each(|section| self.kv(&mut out, seq, window, 100 + section, rows));
            if self.recurrent {
                let last = cells.iter().max();
                push_u32(&mut out, usize::from(last.is_some()));
                if let Some(last) = last {
                    out.extend(last.to_le_bytes());
                    push_u32(&mut out, 0);
                }
                push_u32(&mut out, 0);
                push_u32(&mut out, 7);
                out.extend([3; 12]);
                out.extend(std::iter::repeat_n(5, if last.is_some() { 20 } else { 0 }));
            }
            out
        }

        fn shape(&self) -> StateShape {
            StateShape::learn(&StateSamples {
                streams: self.streams,
                whole_empty: &self.state(0, &[], &[], true),
                partial_empty: &self.state(0, &[], &[], false),
                whole_one: &self.state(0, &[0], &[0], true),
                partial_one: &self.state(0, &[0], &[0], false),
            })
            .unwrap()
        }

        fn segment(&self, seq: usize, cells: &[u32], range: &Range<u32>) -> Vec<u8> {
            let shape = self.shape();
            let frame = self.state_with(seq, cells, &[], true, Rows::LeftOut);
            let state = self.state(seq, cells, &[], true);
            let mut out = vec![0; Packed::segment_len(&shape, range)];
            let ranges = Packed::find(&frame, &shape, range).unwrap().unwrap().write(&mut out).unwrap();
            assert!(ranges.windows(2).all(|pair| pair[0].from + pair[0].size <= pair[1].from), "in order: {ranges:?}");
            for StateRange { from, size, to } in ranges {
                out[to..to + size].copy_from_slice(&state[from..from + size]);
            }
            out
        }
    }

    fn models() -> impl Strategy<Value = Model> {
        (1usize..5, any::<bool>(), prop_oneof![Just(0), Just(12)], 1usize..3, 0usize..2, any::<bool>()).prop_map(
            |(streams, transposed, extension, attention, window, recurrent)| Model {
                streams,
                transposed,
                extension,
                attention,
                window,
                recurrent,
            },
        )
    }

    proptest! {
        #[test]
        fn slices_of_scattered_cells_join_to_the_whole_in_order(
            model in models(), n in 2u32..60, cut in 1u32..59, more in 0u32..9, less in 0u32..9, seed in any::<u64>(), seq in 0usize..5,
        ) {
            let cut = cut.min(n - 1);
            let further = n.min(cut + more);
            let seq = seq % model.streams;
            let mut cells: Vec<u32> = (0..n).collect();
            cells.sort_by_key(|p| (u64::from(*p) + 1).wrapping_mul(seed | 1));
            let shape = model.shape();
            // The first part reaches further than it counts, the second one begins before it does.
            let parts = [model.segment(seq, &cells, &(0..further)), model.segment(seq, &cells, &(cut.saturating_sub(less)..n))];
            let wanted = [0..cut, cut..n];
            let rows: Vec<_> =
                parts.iter().map(|part| Segment::read(part, &shape).unwrap()).zip(wanted).collect();
            let joined = joined(&shape, &rows);
            let ordered: Vec<u32> = (0..n).collect();
            let tail = shape.empty_tail(shape.streams);
            // What llama.cpp writes for the last stream, without window and recurrent cells.
            let last = model.streams - 1;
            let expected = Model { window: 0, recurrent: false, ..model };
            let mut expected = expected.state(last, &ordered, &[], true);
            expected.extend(tail);
            expected[4..8].fill(0);
            zero_sequences(&mut expected, &shape, last);
            prop_assert_eq!(joined, expected);
        }

        #[test]
        fn no_damage_is_read_past_or_panics(model in models(), at in any::<prop::sample::Index>(), byte in any::<u8>(), keep in any::<prop::sample::Index>()) {
            let shape = model.shape();
            let good = model.segment(0, &[0, 1, 2, 3, 4], &(1..4));
            let mut bad = good.clone();
            let place = at.index(bad.len());
            bad[place] = byte;
            if let Ok(segment) = Segment::read(&bad, &shape) {
                // What is accepted can be taken apart.
                let all = segment.range.clone();
                let rows = [(segment, all)];
                joined(&shape, &rows);
            }
            let mut frame = model.state_with(0, &[0, 1, 2, 3, 4], &[], true, Rows::LeftOut);
            let place = at.index(frame.len());
            frame[place] = byte;
            if let Ok(Some(packed)) = Packed::find(&frame, &shape, &(1..4)) {
                let mut out = vec![0; Packed::segment_len(&shape, &(1..4))];
                let ranges = packed.write(&mut out).unwrap();
                prop_assert!(ranges.iter().all(|range| range.to + range.size <= out.len()));
            }
            prop_assert!(Segment::read(&good[..keep.index(good.len())], &shape).is_err());
            let mut partial = model.state(0, &[0, 1, 2], &[1, 2], false);
            let place = at.index(partial.len());
            partial[place] = byte;
            let _ = partial::check_partial(&partial, &shape, Some(3));
            let _ = partial::reframe_partial(&partial, &shape);
        }

        #[test]
        fn a_mirrored_window_lies_as_in_a_ring(model in models(), n in 1u32..400, window in 1u32..20) {
            let model = Model { window: 1, ..model };
            let shape = model.shape();
            let ring = 64;
            let visible: Vec<u32> = (n.saturating_sub(window)..n).rev().collect();
            let cells: Vec<u32> = (0..n).collect();
            let blob = model.state(0, &cells, &visible, false);
            partial::check_partial(&blob, &shape, Some(n)).unwrap();
            let mirrored = partial::mirror_window(&blob, &shape, ring, n).unwrap();
            let view = read_section(&mirrored.blob, STATE_HEADER, &shape.window[0], shape.streams).unwrap();
            prop_assert_eq!(view.cells as u32, n.min(ring));
            for cell in 0..view.cells {
                let position = cell_position(&mirrored.blob, &view, &shape.window[0], cell).unwrap();
                prop_assert_eq!(position % ring, cell as u32);
                prop_assert!(position < n && position + ring >= n);
                let row = view.records + shape.window[0].cell_record * view.cells + 16 + 12 + cell * 6;
                let real = position + window >= n;
                let row_values = if real { [position as u8, (position >> 8) as u8, 1] } else { [0; 3] };
                prop_assert_eq!(&mirrored.blob[row + 3..row + 6], row_values.as_slice());
            }
            prop_assert_eq!(mirrored.first_real, n.saturating_sub(window));
        }
    }

    /// The pieces of a chain, one after the other.
    fn joined(shape: &StateShape, rows: &[(Segment<'_>, Range<u32>)]) -> Vec<u8> {
        let chain = Chain::new(shape, rows);
        chain.pieces().unwrap().iter().flat_map(|piece| piece.iter().copied()).collect()
    }

    /// Segments carry sequence 0 in every cell.
    fn zero_sequences(blob: &mut [u8], shape: &StateShape, seq: usize) {
        let sections = read_attention(blob, shape, shape.streams, Rows::There).unwrap();
        for (view, section) in sections.iter().zip(&shape.attention) {
            for cell in 0..view.cells {
                let end = view.records + (cell + 1) * section.cell_record;
                assert_eq!(read_u32(blob, end - 4), u32::try_from(seq).ok());
                blob[end - 4..end].fill(0);
            }
        }
    }

    #[test]
    fn the_shape_says_what_the_state_holds() {
        let model = Model { streams: 3, transposed: true, extension: 12, attention: 2, window: 1, recurrent: true };
        let shape = model.shape();
        assert_eq!((shape.attention.len(), shape.window.len()), (2, 1));
        assert_eq!(shape.attention[0].cell_record, 24);
        assert_eq!(shape.attention_cell_bytes(), 2 * (2 * 6 + 2 * 6));
        let rows = RowShape::Transposed { width: 3, element: 2 };
        assert!(matches!(&shape.attention[0].tensors[2], TensorRows { rows: r, .. } if *r == rows));
        assert!(matches!(&shape.recurrent, Some(RecurrentShape { one_len: 52, .. })), "{:?}", shape.recurrent);
        let unified = Model { streams: 1, ..model };
        assert_eq!(shape.describe(), unified.shape().describe());
    }

    #[test]
    fn a_partial_of_another_length_or_with_a_position_twice_is_refused() {
        let model = Model { streams: 2, transposed: false, extension: 0, attention: 1, window: 1, recurrent: true };
        let shape = model.shape();
        let good = model.state(0, &[0, 1, 2], &[1, 2], false);
        assert_eq!(partial::check_partial(&good, &shape, Some(3)), Ok(()));
        assert!(partial::check_partial(&good, &shape, Some(4)).is_err());
        assert!(partial::check_partial(&model.state(0, &[0, 1, 2], &[2, 2], false), &shape, Some(3)).is_err());
        assert!(partial::check_partial(&model.state(0, &[0, 1, 2], &[], false), &shape, Some(3)).is_err());
    }

    #[test]
    fn a_partial_moves_between_numbers_of_streams() {
        let from = Model { streams: 4, transposed: false, extension: 0, attention: 1, window: 1, recurrent: true };
        let blob = from.state(2, &[0, 1, 2], &[1, 2], false);
        let to = Model { streams: 1, ..from };
        let moved = partial::reframe_partial(&blob, &to.shape()).unwrap().unwrap();
        assert_eq!(partial::check_partial(&moved, &to.shape(), Some(3)), Ok(()));
        assert_eq!(partial::reframe_partial(&moved, &to.shape()), Ok(None));
    }
}
