//! The shape of the state that llama.cpp writes for one sequence, learned from samples of a context.
//!
//! Read by `segment.rs`, `packed.rs` and `chain.rs` (checking, slicing and joining) and `context.rs` (what a row needs). Pure: bytes in, shape out.
//! It never guesses: a sample that does not read exactly as described makes the state opaque, and an opaque state
//! is only ever saved and restored as a whole.
//!
//! # What llama.cpp writes (the pinned version, `llama-kv-cache.cpp`, `llama-memory-recurrent.cpp`)
//!
//! A sequence's blob is `u32 magic, i32 sequence`, then sections without any marks between them:
//!
//! - attention caches (one; two for sparse attention with an indexer), then
//! - window caches (the sliding-window layers), then
//! - the recurrent cache.
//!
//! A *KV section* is `u32 streams`, then for each stream `u32 cells` and, if that is not 0: for each cell
//! `i32 pos, u32 1, [12 bytes of 2D position and token on M-RoPE models], i32 sequence`; then `u32 v_trans,
//! u32 layers, u32 rot_k, u32 rot_v`; then per layer `i32 type, u64 row` and the rows of K; then per layer that has
//! values either `i32 type, u64 row` and the rows of V, or, with V transposed, `i32 type, u32 element, u32 width`
//! and `width` rows of one element per cell. With unified KV there is one stream; with split KV one per sequence,
//! of which only the sequence's own has cells.
//!
//! A *recurrent section* is `u32 cells` (0 or 1), per cell `i32 pos, u32 0`, then `u32 0, u32 layers` and the typed
//! rows of each layer. Its length depends on the number of cells only.
//!
//! `LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY` leaves the attention sections out and nothing else, so
//! whole = header + attention + partial without its header. A windowed layer's section holds only the cells that
//! the last position can still see.

/// First word of a sequence's blob.
pub(in crate::backend::llama) const STATE_MAGIC: u32 = 0xaf14_3cd8;
/// Magic and sequence id.
pub(in crate::backend::llama) const STATE_HEADER: usize = 8;
/// `v_trans`, layer count, and the two rotations.
const KV_DATA_HEAD: usize = 16;
/// 2D position and token, on models that keep them per cell.
const CELL_EXT: usize = 12;

/// The rows of one tensor of one layer: how a token's share of it lies in the blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend::llama) struct TensorRows {
    /// Type and sizes as llama.cpp writes them before the rows.
    pub(in crate::backend::llama) head: Vec<u8>,
    /// How the rows lie.
    pub(in crate::backend::llama) rows: RowShape,
}

/// How the bytes of consecutive cells lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::llama) enum RowShape {
    /// One row of this number of bytes per cell, one after the other.
    Contiguous(usize),
    /// `width` rows, each with one element per cell.
    Transposed {
        /// Number of rows.
        width: usize,
        /// Bytes of an element.
        element: usize,
    },
}

impl RowShape {
    /// Bytes of one cell.
    pub(in crate::backend::llama) fn cell_bytes(self) -> usize {
        match self {
            Self::Contiguous(row) => row,
            Self::Transposed { width, element } => width.saturating_mul(element),
        }
    }

    /// How many lines there are, and what each has of a cell.
    pub(in crate::backend::llama) fn lines(self) -> (usize, usize) {
        match self {
            Self::Contiguous(row) => (1, row),
            Self::Transposed { width, element } => (width, element),
        }
    }
}

/// One KV section: everything but the number of cells, their positions and their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend::llama) struct KvShape {
    /// Bytes a cell's position record has: 12, or 24 with the extension.
    pub(in crate::backend::llama) cell_record: usize,
    /// `v_trans`, layer count, rotations, as written.
    pub(in crate::backend::llama) data_head: Vec<u8>,
    /// Keys of each layer, then values of each layer that has them.
    pub(in crate::backend::llama) tensors: Vec<TensorRows>,
}

impl KvShape {
    /// Bytes of the section with `cells` cells in one of `streams` streams.
    pub(in crate::backend::llama) fn section_len(&self, streams: usize, cells: usize) -> usize {
        let counts = 4 * (1 + streams);
        if cells == 0 { counts } else { counts + self.body_len(cells) }
    }

    /// Bytes of the cells' records and values, without the counts around them.
    pub(in crate::backend::llama) fn body_len(&self, cells: usize) -> usize {
        let tensors: usize = self.tensors.iter().map(|t| t.head.len() + t.rows.cell_bytes() * cells).sum();
        self.cell_record * cells + self.data_head.len() + tensors
    }

    /// Bytes of state per cell.
    pub(in crate::backend::llama) fn cell_bytes(&self) -> usize {
        self.tensors.iter().map(|t| t.rows.cell_bytes()).sum()
    }

    /// Whether V lies transposed (flash attention off).
    pub(in crate::backend::llama) fn values_transposed(&self) -> bool {
        read_u32(&self.data_head, 0) == Some(1)
    }
}

/// Blobs of one sequence of a fresh context, before and after its first token.
pub(in crate::backend::llama) struct StateSamples<'a> {
    /// Streams the context has: 1 unified, one per sequence otherwise.
    pub(in crate::backend::llama) streams: usize,
    /// Whole state of an empty sequence.
    pub(in crate::backend::llama) whole_empty: &'a [u8],
    /// Partial state of an empty sequence.
    pub(in crate::backend::llama) partial_empty: &'a [u8],
    /// Whole state after one token at position 0.
    pub(in crate::backend::llama) whole_one: &'a [u8],
    /// Partial state after one token at position 0.
    pub(in crate::backend::llama) partial_one: &'a [u8],
}

/// The shape of a context's sequence state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend::llama) struct StateShape {
    /// Streams the context has.
    pub(in crate::backend::llama) streams: usize,
    /// Attention sections.
    pub(in crate::backend::llama) attention: Vec<KvShape>,
    /// Window sections.
    pub(in crate::backend::llama) window: Vec<KvShape>,
    /// The recurrent section, if there is one.
    pub(in crate::backend::llama) recurrent: Option<RecurrentShape>,
}

/// The recurrent section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend::llama) struct RecurrentShape {
    /// The section of an empty sequence, byte for byte.
    pub(in crate::backend::llama) empty: Vec<u8>,
    /// Bytes of the section with one cell.
    pub(in crate::backend::llama) one_len: usize,
    /// The words that follow the cell record and never change: orientation and layer count.
    pub(in crate::backend::llama) data_head: [u8; 8],
}

impl StateShape {
    /// Learns the shape; `None` if the samples do not read exactly as described above.
    pub(in crate::backend::llama) fn learn(samples: &StateSamples<'_>) -> Option<Self> {
        let streams = samples.streams;
        let empty_section = 4 * (1 + streams);
        let attention_bytes = samples.whole_empty.len().checked_sub(samples.partial_empty.len())?;
        if attention_bytes % empty_section != 0 {
            return None;
        }
        let n_attention = attention_bytes / empty_section;
        let attention_end =
            samples.whole_one.len().checked_sub(samples.partial_one.len().checked_sub(STATE_HEADER)?)?;
        // Sparse-attention hybrids write a section after the recurrent one; their whole is not attention + partial.
        if samples.whole_one.get(attention_end..)? != samples.partial_one.get(STATE_HEADER..)? {
            return None;
        }

        let mut rest = samples.partial_empty.get(STATE_HEADER..)?;
        let mut n_window = 0;
        while is_empty_section(rest, streams) {
            n_window += 1;
            rest = rest.get(empty_section..)?;
        }
        let recurrent_empty = rest;

        let (attention, used) =
            parse_sections(samples.whole_one.get(STATE_HEADER..attention_end)?, streams, n_attention)?;
        if used != attention_end - STATE_HEADER {
            return None;
        }
        let partial = samples.partial_one.get(STATE_HEADER..)?;
        let (window, used) = if recurrent_empty.is_empty() {
            parse_sections(partial, streams, n_window)?
        } else {
            parse_leading_sections(partial, streams, n_window)?
        };
        let recurrent_one = partial.get(used..)?;
        let recurrent = if recurrent_empty.is_empty() {
            if !recurrent_one.is_empty() {
                return None;
            }
            None
        } else {
            Some(RecurrentShape::learn(recurrent_empty, recurrent_one)?)
        };
        if attention.is_empty() && window.is_empty() && recurrent.is_none() {
            return None;
        }
        Some(Self { streams, attention, window, recurrent })
    }

    /// Bytes of attention state per token.
    pub(in crate::backend::llama) fn attention_cell_bytes(&self) -> usize {
        self.attention.iter().map(KvShape::cell_bytes).sum()
    }

    /// Bytes of a blob with `cells` attention cells and nothing else.
    pub(in crate::backend::llama) fn attention_blob_len(&self, cells: usize) -> usize {
        let attention: usize = self.attention.iter().map(|section| section.section_len(self.streams, cells)).sum();
        STATE_HEADER + attention + self.empty_tail(self.streams).len()
    }

    /// Tensors of all attention sections.
    pub(in crate::backend::llama) fn attention_tensors(&self) -> usize {
        self.attention.iter().map(|section| section.tensors.len()).sum()
    }

    /// A canonical description of the shape, whatever the number of streams.
    pub(in crate::backend::llama) fn describe(&self) -> Vec<u8> {
        let mut out = b"llama-state 1".to_vec();
        for (mark, sections) in [(b'A', &self.attention), (b'W', &self.window)] {
            for section in sections {
                out.push(mark);
                push_len(&mut out, section.cell_record);
                out.extend_from_slice(&section.data_head);
                push_len(&mut out, section.tensors.len());
                for tensor in &section.tensors {
                    out.extend_from_slice(&tensor.head);
                }
            }
        }
        if let Some(recurrent) = &self.recurrent {
            out.push(b'R');
            push_len(&mut out, recurrent.one_len);
            push_len(&mut out, recurrent.empty.len());
            out.extend_from_slice(&recurrent.empty);
        }
        out
    }

    /// The sections that follow the attention sections of a state without any window or recurrent cells.
    pub(in crate::backend::llama) fn empty_tail(&self, streams: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in &self.window {
            push_u32(&mut out, streams);
            out.extend(std::iter::repeat_n(0, 4 * streams));
        }
        if let Some(recurrent) = &self.recurrent {
            out.extend_from_slice(&recurrent.empty);
        }
        out
    }
}

impl RecurrentShape {
    fn learn(empty: &[u8], one: &[u8]) -> Option<Self> {
        let data_head: [u8; 8] = one.get(12..20)?.try_into().ok()?;
        let right = read_u32(empty, 0)? == 0
            && empty.get(4..12)? == data_head
            && read_u32(one, 0)? == 1
            && read_u32(one, 4)? == 0
            && read_u32(one, 8)? == 0;
        right.then(|| Self { empty: empty.to_vec(), one_len: one.len(), data_head })
    }
}

/// Reads a little-endian word.
pub(in crate::backend::llama) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

/// Appends a length as a little-endian word; lengths here are counts of streams, cells or tensors, far below 2^32.
pub(in crate::backend::llama) fn push_u32(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(&u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
}

fn push_len(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(&(value as u64).to_le_bytes());
}

fn read_len(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at.checked_add(8)?)?;
    usize::try_from(u64::from_le_bytes(word.try_into().ok()?)).ok()
}

fn is_empty_section(bytes: &[u8], streams: usize) -> bool {
    read_u32(bytes, 0).is_some_and(|n| n as usize == streams)
        && bytes.get(4..4 * (1 + streams)).is_some_and(|counts| counts.iter().all(|byte| *byte == 0))
}

/// Parses `n` one-cell sections that fill `bytes` exactly.
fn parse_sections(bytes: &[u8], streams: usize, n: usize) -> Option<(Vec<KvShape>, usize)> {
    if n == 0 {
        return bytes.is_empty().then(|| (Vec::new(), 0));
    }
    for (shape, used) in section_candidates(bytes, streams) {
        if let Some((mut rest, more)) = parse_sections(bytes.get(used..)?, streams, n - 1) {
            rest.insert(0, shape);
            return Some((rest, used + more));
        }
    }
    None
}

/// Parses `n` one-cell sections at the start of `bytes`; a recurrent section of one cell must follow.
fn parse_leading_sections(bytes: &[u8], streams: usize, n: usize) -> Option<(Vec<KvShape>, usize)> {
    if n == 0 {
        // A recurrent section of one cell at position 0.
        let starts = [1, 0, 0, 0].iter().enumerate().all(|(i, word)| read_u32(bytes, 4 * i) == Some(*word));
        return starts.then(|| (Vec::new(), 0));
    }
    for (shape, used) in section_candidates(bytes, streams) {
        if let Some((mut rest, more)) = parse_leading_sections(bytes.get(used..)?, streams, n - 1) {
            rest.insert(0, shape);
            return Some((rest, used + more));
        }
    }
    None
}

/// Every way to read a one-cell section at the start of `bytes`: with or without the cell extension, and with values
/// in all layers, in none, or in some (the blob does not say which layers have values).
fn section_candidates(bytes: &[u8], streams: usize) -> Vec<(KvShape, usize)> {
    let mut found = Vec::new();
    for extension in [0, CELL_EXT] {
        let Some((shape, used, n_layers)) = parse_keys(bytes, streams, extension) else { continue };
        let mut reads = Vec::new();
        let mut with_values = (shape, used);
        reads.push(with_values.clone());
        for _ in 0..n_layers {
            let Some(tensor) = parse_values(bytes, with_values.1, with_values.0.values_transposed()) else { break };
            with_values.1 += tensor.head.len() + tensor.rows.cell_bytes();
            with_values.0.tensors.push(tensor);
            reads.push(with_values.clone());
        }
        // Most models have values in all layers; try that first.
        found.extend(reads.into_iter().rev());
    }
    // The zero counts of the streams after the sequence's own follow the cells; the samples use sequence 0.
    let trailing = 4 * (streams - 1);
    found.retain(|(_, used)| bytes.get(*used..used + trailing).is_some_and(|zeros| zeros.iter().all(|b| *b == 0)));
    found.into_iter().map(|(shape, used)| (shape, used + trailing)).collect()
}

fn parse_keys(bytes: &[u8], streams: usize, extension: usize) -> Option<(KvShape, usize, usize)> {
    if read_u32(bytes, 0)? as usize != streams || read_u32(bytes, 4)? != 1 {
        return None;
    }
    let cell_record = 12 + extension;
    let cell = bytes.get(8..8 + cell_record)?;
    // Position 0, one sequence, sequence 0.
    if read_u32(cell, 0)? != 0 || read_u32(cell, 4)? != 1 || read_u32(cell, 8 + extension)? != 0 {
        return None;
    }
    let mut at = 8 + cell_record;
    let data_head = bytes.get(at..at + KV_DATA_HEAD)?.to_vec();
    let n_layers = read_u32(&data_head, 4)? as usize;
    if read_u32(&data_head, 0)? > 1 {
        return None;
    }
    at += KV_DATA_HEAD;
    let mut tensors = Vec::new();
    for _ in 0..n_layers {
        let tensor = parse_rows(bytes, at)?;
        at += tensor.head.len() + tensor.rows.cell_bytes();
        tensors.push(tensor);
    }
    Some((KvShape { cell_record, data_head, tensors }, at, n_layers))
}

fn parse_values(bytes: &[u8], at: usize, transposed: bool) -> Option<TensorRows> {
    if !transposed {
        return parse_rows(bytes, at);
    }
    let head = bytes.get(at..at + 12)?;
    let (element, width) = (read_u32(head, 4)? as usize, read_u32(head, 8)? as usize);
    let shape = RowShape::Transposed { width, element };
    plausible(head, bytes.len() - at - 12, shape).then(|| TensorRows { head: head.to_vec(), rows: shape })
}

fn parse_rows(bytes: &[u8], at: usize) -> Option<TensorRows> {
    let head = bytes.get(at..at + 12)?;
    let shape = RowShape::Contiguous(read_len(head, 4)?);
    plausible(head, bytes.len() - at - 12, shape).then(|| TensorRows { head: head.to_vec(), rows: shape })
}

/// A ggml type number is small, and one cell of the tensor must still fit into the sample.
fn plausible(head: &[u8], remaining: usize, shape: RowShape) -> bool {
    let known_type = read_u32(head, 0).is_some_and(|kind| kind < 256);
    let size = shape.cell_bytes();
    known_type && size > 0 && size <= remaining
}
