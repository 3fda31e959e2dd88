//! The attention state of a token range as stored bytes: header, checks, slicing and joining.
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
//! and writing the frame anew. Sequence ids in the blob mean nothing.

use std::ops::Range;

use super::layout::{KvShape, RowShape, STATE_HEADER, STATE_MAGIC, StateShape, push_u32, read_u32};
use crate::backend::StateError;

const SEGMENT_MAGIC: &[u8; 4] = b"PSEG";
const SEGMENT_VERSION: u32 = 1;
/// Bytes before the state blob; a multiple of a cache line keeps the blob as aligned as the buffer.
pub(super) const SEGMENT_HEADER: usize = 64;

/// A run of cells that lie one after the other in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CellRun {
    /// Index of the first cell in the source section.
    first: usize,
    /// Number of cells.
    len: usize,
}

/// Where the parts of one KV section lie in a blob.
#[derive(Clone, Debug)]
struct SectionView {
    /// Cells in the section.
    cells: usize,
    /// Offset of the cell records.
    records: usize,
    /// End of the whole section.
    end: usize,
}

/// A checked segment.
#[derive(Clone, Debug)]
pub(super) struct Segment<'a> {
    /// The positions it covers.
    pub(super) range: Range<u32>,
    /// Streams its blob is framed for.
    pub(super) streams: usize,
    /// The blob that `llama_state_seq_set_data` takes.
    pub(super) blob: &'a [u8],
    sections: Vec<SectionView>,
}

impl<'a> Segment<'a> {
    /// Reads and checks a stored segment against the shape of the context that shall take it.
    pub(super) fn read(bytes: &'a [u8], shape: &StateShape) -> Result<Self, StateError> {
        let header = bytes.get(..SEGMENT_HEADER).ok_or(too_short(SEGMENT_HEADER, bytes.len()))?;
        expect("segment magic", &header.get(..4), &Some(SEGMENT_MAGIC.as_slice()), 0, 1)?;
        let word = |at| read_u32(header, at).unwrap_or_default();
        let long = |at| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let malformed = |reason, expected: usize, got: u64| Err(StateError::Malformed { reason, expected: expected as u64, got });
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
        let sections = read_attention(blob, shape, streams)?;
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

    /// Copies the rows of `range` into a blob under construction.
    pub(super) fn copy_into(&self, range: &Range<u32>, target: &mut Frame<'_>) {
        let first = range.start.saturating_sub(self.range.start) as usize;
        let run = CellRun { first, len: (range.end - range.start) as usize };
        for (index, view) in self.sections.iter().enumerate() {
            target.copy_section(index, self.blob, view, &[run], range.start.saturating_sub(target.first) as usize);
        }
    }
}

/// The attention sections of a blob that llama.cpp just wrote, with the cells in any order.
pub(super) struct Packed<'a> {
    blob: &'a [u8],
    sections: Vec<SectionView>,
    runs: Vec<Vec<CellRun>>,
}

impl<'a> Packed<'a> {
    /// Finds the cells of `range` in a blob; `Ok(None)` if one of them is not there.
    pub(super) fn find(blob: &'a [u8], shape: &StateShape, range: &Range<u32>) -> Result<Option<Self>, StateError> {
        let sections = read_attention(blob, shape, shape.streams)?;
        let mut runs = Vec::with_capacity(sections.len());
        for (view, section) in sections.iter().zip(&shape.attention) {
            match find_runs(blob, view, section, range)? {
                Some(found) => runs.push(found),
                None => return Ok(None),
            }
        }
        Ok(Some(Self { blob, sections, runs }))
    }

    /// Whether the blob holds exactly the range, in order: then it can be stored as it is.
    pub(super) fn is_exact(&self, range: &Range<u32>) -> bool {
        let cells = (range.end - range.start) as usize;
        self.sections.iter().all(|view| view.cells == cells)
            && self.runs.iter().all(|runs| runs.as_slice() == [CellRun { first: 0, len: cells }])
    }

    /// Where the attention sections end in the blob.
    pub(super) fn attention_end(&self) -> usize {
        self.sections.last().map_or(STATE_HEADER, |view| view.end)
    }

    /// Copies the range's rows into a blob under construction.
    pub(super) fn copy_into(&self, target: &mut Frame<'_>) {
        for (index, (view, runs)) in self.sections.iter().zip(&self.runs).enumerate() {
            target.copy_section(index, self.blob, view, runs, 0);
        }
    }
}

/// A blob under construction: framed for `cells` cells, to be filled with rows.
pub(super) struct Frame<'a> {
    out: &'a mut [u8],
    shape: &'a StateShape,
    sections: Vec<SectionView>,
    /// Position of the first cell.
    first: u32,
    /// Whether every copy so far lay inside both blobs.
    sound: bool,
}

impl<'a> Frame<'a> {
    /// Bytes of a blob with `cells` attention cells and nothing else.
    pub(super) fn len(shape: &StateShape, cells: usize) -> usize {
        let attention: usize = shape.attention.iter().map(|section| section.section_len(shape.streams, cells)).sum();
        STATE_HEADER + attention + shape.empty_tail(shape.streams).len()
    }

    /// Writes the frame for the positions of `range`; `out` has exactly [`Frame::len`] bytes.
    pub(super) fn new(out: &'a mut [u8], shape: &'a StateShape, range: &Range<u32>) -> Result<Self, StateError> {
        let cells = (range.end - range.start) as usize;
        let needed = Self::len(shape, cells);
        if out.len() != needed {
            return Err(StateError::BufferTooSmall { needed, given: out.len() });
        }
        put(out, 0, &STATE_MAGIC.to_le_bytes());
        put(out, 4, &[0; 4]);
        let mut at = STATE_HEADER;
        let mut sections = Vec::with_capacity(shape.attention.len());
        for section in &shape.attention {
            // The cells go into the last stream's place, so that nothing but the tail follows them.
            let mut head = Vec::with_capacity(4 * (1 + shape.streams));
            push_u32(&mut head, shape.streams);
            head.extend(std::iter::repeat_n(0, 4 * (shape.streams - 1)));
            push_u32(&mut head, cells);
            put(out, at, &head);
            let records = at + head.len();
            for (index, position) in range.clone().enumerate() {
                let record = records + index * section.cell_record;
                put(out, record, &position.to_le_bytes());
                put(out, record + 4, &1u32.to_le_bytes());
                put(out, record + section.cell_record - 4, &[0; 4]);
            }
            let mut data = records + section.cell_record * cells;
            put(out, data, &section.data_head);
            data += section.data_head.len();
            for tensor in &section.tensors {
                put(out, data, &tensor.head);
                data += tensor.head.len() + tensor.rows.cell_bytes() * cells;
            }
            sections.push(SectionView { cells, records, end: data });
            at = data;
        }
        put(out, at, &shape.empty_tail(shape.streams));
        Ok(Self { out, shape, sections, first: range.start, sound: true })
    }

    /// Ends the construction; an error means that a copy did not fit, which the checks before it rule out.
    pub(super) fn finish(self) -> Result<(), StateError> {
        expect("rows of a segment", &self.sound, &true, 1, 0)
    }

    /// Copies runs of cells of a source section, starting at cell `to` of ours.
    fn copy_section(&mut self, index: usize, source: &[u8], from: &SectionView, runs: &[CellRun], to: usize) {
        let (Some(section), Some(into)) = (self.shape.attention.get(index), self.sections.get(index)) else { return };
        let mut cell = to;
        for run in runs {
            self.sound &= copy_extension(section, (source, from), (self.out, into), *run, cell);
            let mut source_at = from.records + section.cell_record * from.cells + section.data_head.len();
            let mut out_at = into.records + section.cell_record * into.cells + section.data_head.len();
            for tensor in &section.tensors {
                source_at += tensor.head.len();
                out_at += tensor.head.len();
                match tensor.rows {
                    RowShape::Contiguous(row) => {
                        let (from_at, to_at) = (source_at + run.first * row, out_at + cell * row);
                        self.sound &= copy(source, from_at, self.out, to_at, run.len * row);
                    }
                    RowShape::Transposed { width, element } => {
                        for line in 0..width {
                            let source_line = source_at + (line * from.cells + run.first) * element;
                            let out_line = out_at + (line * into.cells + cell) * element;
                            self.sound &= copy(source, source_line, self.out, out_line, run.len * element);
                        }
                    }
                }
                source_at += tensor.rows.cell_bytes() * from.cells;
                out_at += tensor.rows.cell_bytes() * into.cells;
            }
            cell += run.len;
        }
    }
}

/// Writes the header of a segment whose blob starts at [`SEGMENT_HEADER`] and has `blob_len` bytes.
pub(super) fn write_header(out: &mut [u8], shape: &StateShape, range: &Range<u32>, blob_len: usize) {
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

/// Finds the attention sections of a blob and checks every fixed byte in them.
fn read_attention(blob: &[u8], shape: &StateShape, streams: usize) -> Result<Vec<SectionView>, StateError> {
    check_blob_header(blob)?;
    let mut at = STATE_HEADER;
    let mut sections = Vec::with_capacity(shape.attention.len());
    for section in &shape.attention {
        let view = read_section(blob, at, section, streams)?;
        at = view.end;
        sections.push(view);
    }
    Ok(sections)
}

/// Checks the first bytes of any sequence blob.
pub(super) fn check_blob_header(blob: &[u8]) -> Result<(), StateError> {
    let magic = read_u32(blob, 0).ok_or(too_short(STATE_HEADER, blob.len()))?;
    if magic != STATE_MAGIC || blob.len() < STATE_HEADER {
        return Err(StateError::Malformed { reason: "state magic", expected: STATE_MAGIC.into(), got: magic.into() });
    }
    Ok(())
}

/// Finds one KV section that starts at `at`: at most one stream may have cells.
fn read_section(blob: &[u8], at: usize, section: &KvShape, streams: usize) -> Result<SectionView, StateError> {
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
        view = SectionView { cells, records: view.end, end: view.end + section.body_len(cells) };
        if view.end > blob.len() {
            return Err(too_short(view.end, blob.len()));
        }
        check_fixed_bytes(blob, &view, section)?;
    }
    Ok(view)
}

fn check_fixed_bytes(blob: &[u8], view: &SectionView, section: &KvShape) -> Result<(), StateError> {
    let mut at = view.records + section.cell_record * view.cells;
    let fixed = |at: usize, bytes: &[u8], reason| match blob.get(at..at + bytes.len()) {
        Some(got) if got == bytes => Ok(()),
        _ => Err(StateError::Malformed { reason, expected: 0, got: at as u64 }),
    };
    fixed(at, &section.data_head, "layer count or value layout, differing at this byte")?;
    at += section.data_head.len();
    for tensor in &section.tensors {
        fixed(at, &tensor.head, "tensor type or row size, differing at this byte")?;
        at += tensor.head.len() + tensor.rows.cell_bytes() * view.cells;
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

fn cell_position(blob: &[u8], view: &SectionView, section: &KvShape, index: usize) -> Result<u32, StateError> {
    let at = view.records + index * section.cell_record;
    read_u32(blob, at).ok_or(too_short(at + 4, blob.len()))
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

/// Copies what M-RoPE models keep per cell between the count of sequences and the sequence id.
fn copy_extension(
    section: &KvShape,
    (source, from): (&[u8], &SectionView),
    (out, into): (&mut [u8], &SectionView),
    run: CellRun,
    to: usize,
) -> bool {
    let extension = section.cell_record - 12;
    let steps = if extension == 0 { 0 } else { run.len };
    (0..steps).all(|step| {
        let source_at = from.records + (run.first + step) * section.cell_record + 8;
        let out_at = into.records + (to + step) * section.cell_record + 8;
        copy(source, source_at, out, out_at, extension)
    })
}

/// Checks a partial state: window sections with plausible positions, then the recurrent section.
pub(super) fn check_partial(blob: &[u8], shape: &StateShape, n_tokens: Option<u32>) -> Result<(), StateError> {
    check_blob_header(blob)?;
    check_partial_sections(blob, STATE_HEADER, shape, n_tokens)
}

/// A partial state framed for as many streams as the context has; `None` if it already is.
pub(super) fn reframe_partial(blob: &[u8], shape: &StateShape) -> Result<Option<Vec<u8>>, StateError> {
    check_blob_header(blob)?;
    let streams = read_u32(blob, STATE_HEADER).unwrap_or_default() as usize;
    if shape.window.is_empty() || streams == shape.streams {
        return Ok(None);
    }
    if streams == 0 || streams > 256 {
        return Err(StateError::Malformed { reason: "streams", expected: shape.streams as u64, got: streams as u64 });
    }
    let mut out = blob.get(..STATE_HEADER).unwrap_or_default().to_vec();
    let mut at = STATE_HEADER;
    for section in &shape.window {
        let view = read_section(blob, at, section, streams)?;
        push_u32(&mut out, shape.streams);
        out.extend(std::iter::repeat_n(0, 4 * (shape.streams - 1)));
        push_u32(&mut out, view.cells);
        if view.cells != 0 {
            let body = view.records..view.records + section.body_len(view.cells);
            out.extend_from_slice(blob.get(body).unwrap_or_default());
        }
        at = view.end;
    }
    out.extend_from_slice(blob.get(at..).unwrap_or_default());
    Ok(Some(out))
}

/// Checks a whole state.
pub(super) fn check_whole(blob: &[u8], shape: &StateShape) -> Result<(), StateError> {
    let sections = read_attention(blob, shape, shape.streams)?;
    for (view, section) in sections.iter().zip(&shape.attention) {
        check_positions(blob, view, section, None)?;
    }
    let end = sections.last().map_or(STATE_HEADER, |view| view.end);
    check_partial_sections(blob, end, shape, None)
}

fn check_partial_sections(
    blob: &[u8],
    start: usize,
    shape: &StateShape,
    n_tokens: Option<u32>,
) -> Result<(), StateError> {
    let mut at = start;
    for section in &shape.window {
        let view = read_section(blob, at, section, shape.streams)?;
        check_positions(blob, &view, section, n_tokens)?;
        at = view.end;
    }
    let rest = blob.get(at..).unwrap_or_default();
    let Some(recurrent) = &shape.recurrent else {
        if rest.is_empty() {
            return Ok(());
        }
        return Err(StateError::Malformed { reason: "bytes after the state", expected: 0, got: rest.len() as u64 });
    };
    if rest == recurrent.empty && n_tokens.is_none() {
        return Ok(());
    }
    if rest.len() != recurrent.one_len {
        let (expected, got) = (recurrent.one_len as u64, rest.len() as u64);
        return Err(StateError::Malformed { reason: "recurrent state length", expected, got });
    }
    let position = read_u32(rest, 4).unwrap_or_default();
    let fixed = read_u32(rest, 0) == Some(1)
        && read_u32(rest, 8) == Some(0)
        && rest.get(12..20) == Some(recurrent.data_head.as_slice());
    if !fixed {
        return Err(StateError::Malformed { reason: "recurrent state head", expected: 1, got: 0 });
    }
    if position > i32::MAX as u32 || n_tokens.is_some_and(|n| position.checked_add(1) != Some(n)) {
        let expected = n_tokens.unwrap_or_default().saturating_sub(1).into();
        return Err(StateError::Malformed { reason: "recurrent position", expected, got: position.into() });
    }
    Ok(())
}

/// Positions must be distinct and valid, and with a known length the last one must be there and none beyond it.
fn check_positions(
    blob: &[u8],
    view: &SectionView,
    section: &KvShape,
    n_tokens: Option<u32>,
) -> Result<(), StateError> {
    let mut positions = Vec::with_capacity(view.cells);
    for index in 0..view.cells {
        positions.push(cell_position(blob, view, section, index)?);
    }
    positions.sort_unstable();
    let last = positions.last().copied();
    if last.is_some_and(|last| last > i32::MAX as u32) {
        return Err(StateError::Malformed { reason: "cell position", expected: 0, got: last.unwrap_or_default().into() });
    }
    if let Some(twice) = positions.windows(2).find(|pair| pair.first() == pair.last()) {
        let got = twice.first().copied().unwrap_or_default().into();
        return Err(StateError::Malformed { reason: "position held twice", expected: 1, got });
    }
    match n_tokens {
        Some(n) if last.and_then(|last| last.checked_add(1)) != Some(n) => Err(StateError::Malformed {
            reason: "last position of the window",
            expected: n.saturating_sub(1).into(),
            got: last.unwrap_or(u32::MAX).into(),
        }),
        _ => Ok(()),
    }
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

fn copy(source: &[u8], from: usize, out: &mut [u8], to: usize, len: usize) -> bool {
    match (source.get(from..from + len), out.get_mut(to..to + len)) {
        (Some(source), Some(target)) => {
            target.copy_from_slice(source);
            true
        }
        _ => false,
    }
}
