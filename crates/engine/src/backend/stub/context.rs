//! The stub's context: batches in, logits and embeddings out, states packed and put back.
//!
//! Made by the stub's model, owned by a worker. It obeys the rules that the llama.cpp context has (cells that run out,
//! positions that must follow, an abort flag between micro-batches, memory kinds that cannot forget) and is stricter
//! where llama.cpp would go on with a wrong state. It must never answer the same history differently.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::{
    AdapterError, AdapterUse, Batch, BatchRow, Context, ContextInfo, DecodeOutcome, KvLayout, MemoryKind, Pooling,
    SegmentJoiner, SeqId, StateError, StatePart, StoredSegment,
};

use super::digest::{mix, mix_all};
use super::echo::{self, StubLine};
use super::faults::{DecodeFault, StubCall, StubFaults};
use super::memory::{Layers, Pool, Sequence};
use super::model::{ModelFacts, StubAdapter};
use super::output;
use super::restore::{Restoring, StubJoiner};
use super::vocab::N_VOCAB;

/// A context of the stub.
pub(super) struct StubContext {
    pub(super) info: ContextInfo,
    pub(super) layers: Layers,
    pub(super) facts: Arc<ModelFacts>,
    pub(super) faults: StubFaults,
    pub(super) abort: Arc<AtomicBool>,
    /// `None` for a context that computes logits.
    pub(super) pooling: Option<Pooling>,
    /// The replies beside the scripts in the conversation; `None` if those are not followed.
    pub(super) echo: Option<Arc<[StubLine]>>,
    pub(super) sequences: Vec<Sequence>,
    pub(super) pool: Pool,
    /// Digest of the adapters in use; 0 for none.
    adapters: u64,
    /// For each row of the last batch what it asked for.
    outputs: Vec<Option<Vec<f32>>>,
    pooled: HashMap<SeqId, Vec<f32>>,
    pub(super) restoring: Option<Restoring>,
}

impl StubContext {
    pub(super) fn new(
        info: ContextInfo,
        layers: Layers,
        facts: Arc<ModelFacts>,
        abort: Arc<AtomicBool>,
        pooling: Option<Pooling>,
    ) -> Self {
        let faults = facts.faults.clone();
        faults.count(|counts| {
            counts.contexts += 1;
            counts.live_contexts += 1;
        });
        let sequences = (0..info.n_seq_max).map(|_| Sequence::default()).collect();
        Self {
            info,
            layers,
            facts,
            faults,
            abort,
            pooling,
            echo: None,
            sequences,
            pool: Pool::default(),
            adapters: 0,
            outputs: Vec::new(),
            pooled: HashMap::new(),
            restoring: None,
        }
    }

    pub(super) fn sequence(&self, seq: SeqId) -> Option<&Sequence> {
        self.sequences.get(usize::try_from(seq).ok()?)
    }

    pub(super) fn sequence_mut(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        self.sequences.get_mut(usize::try_from(seq).ok()?)
    }

    pub(super) fn known(&self, seq: SeqId) -> Result<&Sequence, StateError> {
        let n_seq_max = self.info.n_seq_max;
        self.sequence(seq).ok_or(StateError::UnknownSequence { seq, n_seq_max })
    }

    pub(super) fn replace(&mut self, seq: SeqId, sequence: Sequence) {
        if let Some(slot) = self.sequence_mut(seq) {
            *slot = sequence;
        }
    }

    /// Whether every row is known and every position the next one of its sequence.
    fn is_valid(&self, batch: &Batch) -> bool {
        let mut next: HashMap<SeqId, u32> = HashMap::new();
        let fits = !batch.rows.is_empty() && batch.rows.len() as u64 <= u64::from(self.info.n_batch);
        fits && batch.rows.iter().all(|row| {
            let Some(held) = self.sequence(row.seq) else { return false };
            let expected = next.get(&row.seq).copied().or_else(|| held.next_position(self.layers));
            next.insert(row.seq, row.pos.saturating_add(1));
            row.token < N_VOCAB && expected == Some(row.pos) && row.pos < i32::MAX.unsigned_abs()
        })
    }

    fn has_room(&self, rows: &[BatchRow]) -> bool {
        if !self.layers.kind.has_segments() {
            return true;
        }
        match self.info.kv {
            KvLayout::Unified => self.pool.used() + rows.len() <= self.info.n_cells as usize,
            KvLayout::Split => (0..).zip(&self.sequences).all(|(seq, held)| {
                let more = rows.iter().filter(|row| row.seq == seq).count();
                more == 0 || held.cells().len() + more <= self.info.n_ctx as usize
            }),
        }
    }

    fn read_rows(&mut self, rows: &[BatchRow]) {
        for row in rows {
            let (layers, adapters) = (self.layers, self.adapters);
            let index = usize::try_from(row.seq).unwrap_or(usize::MAX);
            let Some(sequence) = self.sequences.get_mut(index) else { continue };
            let value = sequence.read(row.token, adapters, layers, &self.pool);
            let output = match self.pooling {
                Some(_) => Some(output::embedding(value)),
                None if row.want_logits => {
                    let echoed = self.echo.as_ref().and_then(|lines| {
                        let history: Vec<_> = sequence.cells().iter().map(|cell| cell.token).collect();
                        echo::next(&history, lines)
                    });
                    let reply = echoed.as_ref().or_else(|| self.facts.replies.get(&value));
                    Some(output::logits(value, row.token, reply))
                }
                None => None,
            };
            self.outputs.push(output);
        }
    }

    fn pool_embeddings(&mut self, rows: &[BatchRow]) {
        let Some(pooling) = self.pooling.filter(|pooling| *pooling != Pooling::None) else { return };
        let mut by_sequence: HashMap<SeqId, Vec<&[f32]>> = HashMap::new();
        for (row, output) in rows.iter().zip(&self.outputs) {
            by_sequence.entry(row.seq).or_default().extend(output.as_deref());
        }
        self.pooled = by_sequence.iter().map(|(&seq, rows)| (seq, output::pooled(rows, pooling))).collect();
    }

    #[expect(clippy::panic, reason = "a test asked for a worker that panics")]
    fn decode_valid(&mut self, rows: &[BatchRow], fault: Option<DecodeFault>) -> DecodeOutcome {
        let half = rows.get(..rows.len() / 2).unwrap_or_default();
        match fault {
            Some(DecodeFault::NoRoom) => return DecodeOutcome::NoRoom,
            Some(DecodeFault::Panic) => panic!("the stub was asked to panic"),
            _ if !self.has_room(rows) => {
                self.faults.count(|counts| counts.no_room += 1);
                return DecodeOutcome::NoRoom;
            }
            Some(DecodeFault::Aborted) => {
                self.read_rows(half);
                return DecodeOutcome::Aborted;
            }
            Some(DecodeFault::Fatal(code)) => {
                self.read_rows(half);
                return DecodeOutcome::Fatal(code);
            }
            Some(DecodeFault::Block | DecodeFault::Hang) | None => {}
        }
        let step = (self.info.n_ubatch as usize).max(1);
        let mut micro_batches = rows.chunks(step).peekable();
        while let Some(micro_batch) = micro_batches.next() {
            if micro_batches.peek().is_none() {
                match fault {
                    Some(DecodeFault::Block) => self.faults.hold(Some(&self.abort)),
                    Some(DecodeFault::Hang) => self.faults.hold(None),
                    _ => {}
                }
            }
            if self.abort.load(Ordering::Relaxed) {
                return DecodeOutcome::Aborted;
            }
            self.read_rows(micro_batch);
        }
        DecodeOutcome::Done
    }
}

impl Drop for StubContext {
    fn drop(&mut self) {
        self.faults.count(|counts| counts.live_contexts -= 1);
    }
}

impl Context for StubContext {
    fn info(&self) -> &ContextInfo {
        &self.info
    }

    fn decode(&mut self, batch: &Batch) -> DecodeOutcome {
        let fault = self.faults.start_decode(batch);
        self.faults.be_busy();
        self.outputs.clear();
        self.pooled.clear();
        if self.layers.kind == MemoryKind::None {
            self.clear();
        }
        if !self.is_valid(batch) {
            self.faults.count(|counts| counts.invalid += 1);
            return DecodeOutcome::Invalid;
        }
        let outcome = self.decode_valid(&batch.rows, fault);
        if outcome == DecodeOutcome::Done {
            self.pool_embeddings(&batch.rows);
            self.faults.count(|counts| counts.tokens += batch.rows.len() as u64);
        } else {
            self.outputs.clear();
        }
        outcome
    }

    fn logits(&self, row: usize) -> Option<&[f32]> {
        self.outputs.get(row)?.as_deref().filter(|_| self.pooling.is_none())
    }

    fn row_embedding(&self, row: usize) -> Option<&[f32]> {
        self.outputs.get(row)?.as_deref().filter(|_| self.pooling == Some(Pooling::None))
    }

    fn sequence_embedding(&self, seq: SeqId) -> Option<&[f32]> {
        self.pooled.get(&seq).map(Vec::as_slice)
    }

    fn remove(&mut self, seq: SeqId, range: Range<u32>) -> bool {
        let Some(sequence) = self.sequence_mut(seq) else { return false };
        range.is_empty() || sequence.remove(&range)
    }

    fn copy(&mut self, from: SeqId, to: SeqId) -> bool {
        let (Some(source), Some(_)) = (self.sequence(from), self.sequence(to)) else { return false };
        if from == to {
            return false;
        }
        let copied = match self.info.kv {
            KvLayout::Unified => source.share(),
            KvLayout::Split => source.duplicate(&self.pool),
        };
        self.replace(to, copied);
        true
    }

    fn pos_min(&self, seq: SeqId) -> Option<u32> {
        self.sequence(seq)?.pos_min(self.layers)
    }

    fn pos_max(&self, seq: SeqId) -> Option<u32> {
        self.sequence(seq)?.pos_max(self.layers)
    }

    fn clear(&mut self) {
        self.restoring = None;
        self.sequences.fill_with(Sequence::default);
    }

    fn set_adapters(&mut self, adapters: &[AdapterUse]) -> Result<(), AdapterError> {
        if self.faults.fails(StubCall::SetAdapters) {
            return Err(AdapterError::NotAttached { code: -1 });
        }
        let mut digest = 0_u64;
        for used in adapters {
            let any: &dyn std::any::Any = used.adapter.as_ref();
            let adapter = any.downcast_ref::<StubAdapter>().filter(|adapter| adapter.model == self.facts.id);
            let weights = adapter.ok_or(AdapterError::OtherModel)?.weights;
            // Adapters add up, so their order does not matter and one of no strength does nothing.
            if used.scale != 0.0 {
                digest = digest.wrapping_add(mix_all(&[weights, mix(1, used.scale.to_bits().into())]));
            }
        }
        self.adapters = digest;
        Ok(())
    }

    fn state_size(&mut self, seq: SeqId, part: StatePart) -> Result<usize, StateError> {
        self.state_bytes(seq, part).map(|bytes| bytes.len())
    }

    fn state_read(&mut self, seq: SeqId, part: StatePart, out: &mut [u8]) -> Result<usize, StateError> {
        self.read_state(seq, part, out)
    }

    fn state_write(&mut self, seq: SeqId, part: StatePart, bytes: &[u8]) -> Result<(), StateError> {
        self.write_state(seq, part, bytes)
    }

    fn pack_size(&mut self, seq: SeqId, range: Range<u32>) -> Result<usize, StateError> {
        self.segment_bytes(seq, &range).map(|bytes| bytes.len())
    }

    fn pack_range(&mut self, seq: SeqId, range: Range<u32>, out: &mut [u8]) -> Result<usize, StateError> {
        self.pack(seq, &range, out)
    }

    fn restore_begin(&mut self, seq: SeqId, n_tokens: u32, partial: Option<&[u8]>) -> Result<(), StateError> {
        self.begin_restore(seq, n_tokens, partial)
    }

    fn restore_segments(&mut self, rows: &[StoredSegment<'_>]) -> Result<(), StateError> {
        self.next_rows(rows)
    }

    fn joiner(&self) -> Option<Arc<dyn SegmentJoiner>> {
        self.layers.kind.has_segments().then(|| Arc::new(StubJoiner { layers: self.layers }) as Arc<dyn SegmentJoiner>)
    }

    fn restore_finish(&mut self) -> Result<(), StateError> {
        self.finish_restore()
    }

    fn synchronize(&mut self) {}
}
