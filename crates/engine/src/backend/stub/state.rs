//! The stub's stored states: segments, partial states and whole sequences as bytes.
//!
//! Used by the stub's context on every save and restore. The bytes carry tokens, positions, what came before them and a
//! checksum, so that a damaged state, another model's, or one of another conversation is refused and not just wrong.
//! They may come from a file that anyone has changed: nothing here trusts a count before the checksum held.
//!
//! # Layout (little-endian)
//!
//! | what | bytes |
//! | --- | --- |
//! | head | magic (4), model (u64) |
//! | segment `PSS1` | start, end (u32), digest of the cells before (u64), then token (u32) and value (u64) of each cell |
//! | partial `PSP1` | tokens read (u32), digest of all cells (u64), running flag (u32) and value (u64), window count (u32), then position (u32) and value (u64) of each |
//! | whole `PSW1` | cell count (u32), position, token (u32), value (u64) of each, then as a partial state from its digest on |
//! | tail | checksum of everything before (u64) |

use std::collections::VecDeque;
use std::ops::Range;

use crate::backend::{MemoryKind, StateError, Token};

use super::digest::mix_bytes;
use super::memory::{Cell, Layers, Pool, Sequence};

const SEGMENT: &[u8; 4] = b"PSS1";
const PARTIAL: &[u8; 4] = b"PSP1";
const WHOLE: &[u8; 4] = b"PSW1";
/// Magic and model.
const HEAD: usize = 12;
/// Checksum.
const TAIL: usize = 8;
/// Bytes of a cell in a segment.
pub(super) const CELL: usize = 12;
/// Positions that llama.cpp can count.
const MOST_POSITIONS: u32 = i32::MAX as u32;

/// A segment that was read and checked.
#[derive(Debug)]
pub(super) struct StubSegment {
    /// Its positions.
    pub(super) range: Range<u32>,
    /// Digest of the cells before it.
    pub(super) before: u64,
    /// Its cells.
    pub(super) cells: Vec<Cell>,
}

/// Everything that is not full attention.
#[derive(Debug)]
pub(super) struct Partial {
    /// Tokens read.
    pub(super) n_tokens: u32,
    /// Digest of all cells of the full attention layers.
    fold: u64,
    window: VecDeque<(u32, u64)>,
    running: Option<(u32, u64)>,
}

/// Packs cells that follow each other.
pub(super) fn write_segment(layers: Layers, range: &Range<u32>, before: u64, cells: &[Cell]) -> Vec<u8> {
    let mut out = head(SEGMENT, layers);
    put_u32(&mut out, range.start);
    put_u32(&mut out, range.end);
    put_u64(&mut out, before);
    for cell in cells {
        put_u32(&mut out, cell.token);
        put_u64(&mut out, cell.value);
    }
    seal(out)
}

/// Reads a segment back.
pub(super) fn read_segment(bytes: &[u8], layers: Layers) -> Result<StubSegment, StateError> {
    let mut reader = Reader::open(bytes, SEGMENT, layers)?;
    let range = reader.u32()?..reader.u32()?;
    if range.is_empty() || range.end > MOST_POSITIONS {
        return Err(malformed("segment end", u64::from(range.start) + 1, range.end.into()));
    }
    let before = reader.u64()?;
    let mut cells = Vec::new();
    for pos in range.clone() {
        cells.push(Cell { pos, token: reader.u32()?, value: reader.u64()? });
    }
    reader.end()?;
    Ok(StubSegment { range, before, cells })
}

/// Packs everything that is not full attention.
pub(super) fn write_partial(sequence: &Sequence, layers: Layers) -> Vec<u8> {
    let mut out = head(PARTIAL, layers);
    let n_tokens = sequence.pos_max(layers).map_or(0, |last| last + 1);
    put_u32(&mut out, n_tokens);
    put_partial(&mut out, sequence, layers, sequence.fold_before(n_tokens));
    seal(out)
}

/// Reads a partial state back.
pub(super) fn read_partial(bytes: &[u8], layers: Layers) -> Result<Partial, StateError> {
    let mut reader = Reader::open(bytes, PARTIAL, layers)?;
    let n_tokens = reader.u32()?;
    let partial = reader.partial(n_tokens, layers)?;
    reader.end()?;
    Ok(partial)
}

impl Partial {
    /// Restores it in a sequence with at least as many tokens of the same conversation in its full attention layers.
    pub(super) fn apply(self, sequence: &mut Sequence, layers: Layers) -> Result<(), StateError> {
        let held = sequence.fold_before(self.n_tokens);
        if layers.kind.has_segments() && self.fold != held {
            return Err(malformed("partial state of another conversation", held, self.fold));
        }
        sequence.set_partial(self.window, self.running);
        Ok(())
    }
}

/// Packs a whole sequence.
pub(super) fn write_whole(sequence: &Sequence, layers: Layers) -> Vec<u8> {
    let mut out = head(WHOLE, layers);
    put_len(&mut out, sequence.cells().len());
    for cell in sequence.cells() {
        put_u32(&mut out, cell.pos);
        put_u32(&mut out, cell.token);
        put_u64(&mut out, cell.value);
    }
    put_partial(&mut out, sequence, layers, sequence.fold_before(u32::MAX));
    seal(out)
}

/// Cells and the rest of a whole sequence.
pub(super) struct Whole {
    pub(super) cells: Vec<Cell>,
    partial: Partial,
}

/// Reads a whole sequence back.
pub(super) fn read_whole(bytes: &[u8], layers: Layers) -> Result<Whole, StateError> {
    let mut reader = Reader::open(bytes, WHOLE, layers)?;
    let count = reader.u32()?;
    let mut cells: Vec<Cell> = Vec::new();
    for _ in 0..count {
        let (pos, token, value) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let least = cells.last().map_or(0, |cell| cell.pos + 1);
        if pos < least || pos >= MOST_POSITIONS {
            return Err(malformed("cell position", least.into(), pos.into()));
        }
        cells.push(Cell { pos, token, value });
    }
    let n_tokens = cells.last().map_or(0, |cell| cell.pos + 1);
    let partial = reader.partial(n_tokens, layers)?;
    reader.end()?;
    Ok(Whole { cells, partial })
}

impl Whole {
    /// The sequence that was packed.
    pub(super) fn build(self, layers: Layers, pool: &Pool) -> Result<Sequence, StateError> {
        let mut sequence = Sequence::default();
        self.cells.into_iter().for_each(|cell| sequence.push(cell, pool));
        self.partial.apply(&mut sequence, layers)?;
        Ok(sequence)
    }
}

fn put_partial(out: &mut Vec<u8>, sequence: &Sequence, layers: Layers, fold: u64) {
    put_u64(out, fold);
    let running = sequence.running();
    put_u32(out, running.map_or(u32::MAX, |(at, _)| at));
    put_u64(out, running.map_or(0, |(_, value)| value));
    put_len(out, sequence.unmasked_window(layers).count());
    for (at, value) in sequence.unmasked_window(layers) {
        put_u32(out, at);
        put_u64(out, value);
    }
}

fn head(magic: &[u8; 4], layers: Layers) -> Vec<u8> {
    let mut out = magic.to_vec();
    put_u64(&mut out, layers.seed);
    out
}

fn seal(mut out: Vec<u8>) -> Vec<u8> {
    let checksum = mix_bytes(&out);
    put_u64(&mut out, checksum);
    out
}

fn put_u32(out: &mut Vec<u8>, value: Token) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    put_u32(out, u32::try_from(len).unwrap_or(u32::MAX));
}

fn malformed(reason: &'static str, expected: u64, got: u64) -> StateError {
    StateError::Malformed { reason, expected, got }
}

/// Reads the fields of sealed bytes in order.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn open(bytes: &'a [u8], magic: &[u8; 4], layers: Layers) -> Result<Self, StateError> {
        let short = malformed("length of a state", (HEAD + TAIL) as u64, bytes.len() as u64);
        let (body, checksum) = bytes.split_last_chunk::<TAIL>().ok_or(short)?;
        let (expected, got) = (mix_bytes(body), u64::from_le_bytes(*checksum));
        if expected != got {
            return Err(malformed("checksum", expected, got));
        }
        let mut reader = Self { rest: body };
        let found: [u8; 4] = reader.take()?;
        if found != *magic {
            return Err(malformed("magic", mix_bytes(magic), mix_bytes(&found)));
        }
        let model = reader.u64()?;
        if model != layers.seed {
            return Err(malformed("model", layers.seed, model));
        }
        Ok(reader)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let short = malformed("length of a state", N as u64, self.rest.len() as u64);
        let (field, rest) = self.rest.split_first_chunk::<N>().ok_or(short)?;
        self.rest = rest;
        Ok(*field)
    }

    fn u32(&mut self) -> Result<u32, StateError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, StateError> {
        self.take().map(u64::from_le_bytes)
    }

    fn partial(&mut self, n_tokens: u32, layers: Layers) -> Result<Partial, StateError> {
        let fold = self.u64()?;
        let (at, value) = (self.u32()?, self.u64()?);
        let running = (at != u32::MAX).then_some((at, value));
        let recurrent = matches!(layers.kind, MemoryKind::Recurrent | MemoryKind::Hybrid);
        if running.is_some_and(|(at, _)| !recurrent || at >= MOST_POSITIONS) {
            return Err(malformed("running state", 0, at.into()));
        }
        let mut window = VecDeque::new();
        for _ in 0..self.u32()? {
            let (at, value) = (self.u32()?, self.u64()?);
            let least = window.back().map_or(0, |&(last, _)| last + 1);
            if at < least || at >= MOST_POSITIONS {
                return Err(malformed("window position", u64::from(least), at.into()));
            }
            window.push_back((at, value));
        }
        Ok(Partial { n_tokens, fold, window, running })
    }

    fn end(&self) -> Result<(), StateError> {
        if self.rest.is_empty() { Ok(()) } else { Err(malformed("bytes left over", 0, self.rest.len() as u64)) }
    }
}
