//! A llama context: creation, decoding, sequences, results.
//!
//! Owned by one worker thread, which calls it through the `Context` trait; packing and restoring are in `context/sequence.rs`.
//! Every value that llama.cpp would only assert on (row counts, token, sequence and position numbers) is checked here
//! before the call, because a failed assertion ends the process.

mod passage;
mod sequence;

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use llama_cpp_sys_4 as sys;

use passage::Passage;
use sequence::RestoreInProgress;

use super::adapter::LlamaAdapter;
use super::buffer::{self, ACTIVITY};
use super::handle::ModelHandle;
use super::log;
use super::params::{context_params, window_ring};
use super::threads::Threads;
use crate::backend::llama::state::io;
use crate::backend::llama::state::layout::{StateSamples, StateShape};
use crate::backend::{
    Adapter, AdapterError, AdapterUse, Batch, BatchRow, Context, ContextError, ContextInfo, ContextOptions,
    DecodeOutcome, KvLayout, MemoryKind, ModelInfo, SegmentJoiner, SeqId, StateError, StatePart, StoredSegment,
};

/// A llama context with everything that must live as long as it.
pub(super) struct LlamaContext {
    pub(super) context: NonNull<sys::llama_context>,
    pub(super) info: ContextInfo,
    /// Shape of a sequence's state; `None` where llama.cpp's format is not one we can take apart.
    pub(super) shape: Option<StateShape>,
    /// The scratch sequence of unified KV, one past the worker's own.
    pub(super) scratch: Option<sys::llama_seq_id>,
    /// Cells of the windowed layers, where position `p` lies in cell `p % ring`; `None` without such layers.
    pub(super) window_ring: Option<u32>,
    /// For each sequence, the smallest position with a window cell that was really restored; below are placeholders.
    window_floor: Vec<u32>,
    /// Between `restore_begin` and `restore_finish`.
    pub(super) restoring: Option<RestoreInProgress>,
    /// By way of this states are packed and set.
    pub(super) passage: Passage,
    /// For each row of the last decoded batch, whether it has a result; empty after a failed decode.
    outputs: Vec<bool>,
    rows: RowArrays,
    adapters: Vec<Arc<dyn Adapter>>,
    n_embd_out: usize,
    embeddings: bool,
    /// Dropped after the context is freed.
    threads: Threads,
    /// Dropped after the context is freed.
    model: Arc<ModelHandle>,
    /// llama.cpp's abort callback reads it through a pointer; dropped after the context is freed.
    _abort: Arc<AtomicBool>,
}

/// A batch as llama.cpp wants it; the vectors keep their room between ticks.
#[derive(Default)]
struct RowArrays {
    tokens: Vec<sys::llama_token>,
    positions: Vec<sys::llama_pos>,
    counts: Vec<i32>,
    sequences: Vec<sys::llama_seq_id>,
    sequence_pointers: Vec<*mut sys::llama_seq_id>,
    wanted: Vec<i8>,
}

// SAFETY: a context may move between threads as long as one at a time uses it, which `&mut self` ensures; the pointers
// in `rows` point into vectors of the same value and are rebuilt before each use.
unsafe impl Send for LlamaContext {}

impl LlamaContext {
    pub(super) fn new(
        model: Arc<ModelHandle>,
        model_info: &ModelInfo,
        options: &ContextOptions,
        abort: Arc<AtomicBool>,
    ) -> Result<Self, ContextError> {
        options.check()?;
        let n_ctx = if options.n_ctx == 0 { model_info.n_ctx_train } else { options.n_ctx };
        if let Some(rows) = model.position_rows().filter(|rows| *rows < u64::from(n_ctx)) {
            return Err(ContextError::PositionTable { n_ctx, rows });
        }
        let params = context_params(options, n_ctx, &abort)?;
        let (context, reason) = log::collect(|| {
            let _exclusive = model.exclusive();
            // SAFETY: the model is valid and outlives the context; exceptions are caught inside and yield null.
            unsafe { sys::llama_init_from_model(model.as_ptr(), params) }
        });
        let context = NonNull::new(context).ok_or(ContextError::Refused { reason })?;
        // SAFETY: the context is valid.
        let (n_ctx_seq, n_batch, n_ubatch) = unsafe {
            let ctx = context.as_ptr();
            (sys::llama_n_ctx_seq(ctx), sys::llama_n_batch(ctx), sys::llama_n_ubatch(ctx))
        };
        let unified = options.kv == KvLayout::Unified;
        // Tokens that see each other are computed at once; llama.cpp asserts on a batch of several pieces.
        let n_batch = if model.causal() { n_batch } else { n_batch.min(n_ubatch) };
        let on_device = options.offload_kqv && buffer::has_device();
        let mut made = Self {
            context,
            info: ContextInfo {
                // llama.cpp rounds up; a request gets what was asked for.
                n_ctx: n_ctx.min(n_ctx_seq),
                n_cells: if unified { n_ctx_seq } else { n_ctx_seq.saturating_mul(options.n_seq_max) },
                n_seq_max: options.n_seq_max,
                n_batch,
                n_ubatch,
                n_threads: u32::try_from(params.n_threads).unwrap_or(0),
                n_threads_batch: u32::try_from(params.n_threads_batch).unwrap_or(0),
                kv: options.kv,
                memory: MemoryKind::None,
                flash_attention: None,
                segment_bytes_per_token: 0,
                on_device,
                state_layout: Vec::new(),
            },
            shape: None,
            scratch: if unified { i32::try_from(options.n_seq_max).ok() } else { None },
            window_ring: None,
            window_floor: vec![0; options.n_seq_max as usize],
            restoring: None,
            passage: Passage::new(on_device),
            outputs: Vec::new(),
            rows: RowArrays::default(),
            adapters: Vec::new(),
            n_embd_out: model_info.n_embd_out as usize,
            embeddings: options.embeddings,
            threads: Threads::new(context, options, &params),
            model,
            _abort: abort,
        };
        if !made.memory().is_null() {
            made.learn_state(model_info)?;
        }
        if on_device {
            buffer::prepare(&made.info);
        }
        if made.shape.as_ref().is_some_and(|shape| !shape.window.is_empty()) {
            // SAFETY: the model is valid.
            let window = unsafe { sys::llama_model_n_swa(made.model.as_ptr()) };
            let sequences = if unified { options.n_seq_max + 1 } else { 1 };
            made.window_ring = window_ring(u32::try_from(window).unwrap_or(0), sequences, &made.info, options.swa_full);
        }
        Ok(made)
    }

    pub(super) fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is valid; the result is null for models without memory.
        unsafe { sys::llama_get_memory(self.context.as_ptr()) }
    }

    /// Reads one token to see what llama.cpp writes for a sequence, then clears everything again.
    fn learn_state(&mut self, model_info: &ModelInfo) -> Result<(), ContextError> {
        let streams = match self.info.kv {
            KvLayout::Unified => 1,
            KvLayout::Split => self.info.n_seq_max as usize,
        };
        let whole_empty = self.sample(0);
        let partial_empty = self.sample(sys::LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
        let token = model_info.special.bos.unwrap_or(0);
        let first = Batch { rows: vec![BatchRow { token, pos: 0, seq: 0, want_logits: true }] };
        let (outcome, reason) = log::collect(|| self.decode(&first));
        if outcome != DecodeOutcome::Done {
            let code = match outcome {
                DecodeOutcome::Fatal(code) => code,
                DecodeOutcome::Aborted => 2,
                DecodeOutcome::NoRoom => 1,
                DecodeOutcome::Invalid | DecodeOutcome::Done => -1,
            };
            return Err(ContextError::FirstDecode { code, reason });
        }
        let whole_one = self.sample(0);
        let partial_one = self.sample(sys::LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
        self.shape = StateShape::learn(&StateSamples {
            streams,
            whole_empty: &whole_empty,
            partial_empty: &partial_empty,
            whole_one: &whole_one,
            partial_one: &partial_one,
        });
        self.clear();
        match &self.shape {
            Some(shape) => {
                self.info.memory = match (&model_info.memory, shape) {
                    (_, StateShape { recurrent: Some(_), attention, .. }) if attention.is_empty() => {
                        MemoryKind::Recurrent
                    }
                    (_, StateShape { recurrent: Some(_), .. }) => MemoryKind::Hybrid,
                    (MemoryKind::Window { size }, shape) if !shape.window.is_empty() => {
                        MemoryKind::Window { size: *size }
                    }
                    // llama.cpp does not report the size of this window: only saved boundaries can be trusted.
                    (_, shape) if !shape.window.is_empty() => MemoryKind::Window { size: u32::MAX },
                    _ => MemoryKind::Attention,
                };
                let sections = shape.attention.first().or(shape.window.first());
                self.info.flash_attention = sections.map(|section| !section.values_transposed());
                self.info.segment_bytes_per_token = shape.attention_cell_bytes() as u64;
                self.info.state_layout = shape.describe();
            }
            // A format that is not understood is saved whole, at boundaries, as a recurrent state is.
            None => {
                tracing::debug!("the state of {} is kept whole: its layout has no segments", model_info.architecture);
                self.info.memory = MemoryKind::Recurrent;
                // It cannot be framed for another number of streams either.
                self.info.state_layout = match self.info.kv {
                    KvLayout::Unified => b"llama-state opaque 1".to_vec(),
                    KvLayout::Split => format!("llama-state opaque 1, {streams} streams").into_bytes(),
                };
            }
        }
        Ok(())
    }

    fn sample(&mut self, flags: sys::llama_state_seq_flags) -> Vec<u8> {
        // SAFETY: sequence 0 exists in every context, and the buffer has the size that llama.cpp asked for.
        unsafe {
            let ctx = self.context.as_ptr();
            let mut bytes = vec![0; sys::llama_state_seq_get_size_ext(ctx, 0, flags)];
            let written = sys::llama_state_seq_get_data_ext(ctx, bytes.as_mut_ptr(), bytes.len(), 0, flags);
            bytes.truncate(written);
            bytes
        }
    }

    /// The sequence as llama.cpp counts it, if it is one of the worker's.
    pub(super) fn checked_seq(&self, seq: SeqId) -> Option<sys::llama_seq_id> {
        if seq < self.info.n_seq_max { i32::try_from(seq).ok() } else { None }
    }

    /// As [`Self::checked_seq`], as a result.
    pub(super) fn known_seq(&self, seq: SeqId) -> Result<sys::llama_seq_id, StateError> {
        let n_seq_max = self.info.n_seq_max;
        self.checked_seq(seq).ok_or(StateError::UnknownSequence { seq, n_seq_max })
    }

    /// Remembers below which position a sequence's window holds placeholders only.
    pub(super) fn set_window_floor(&mut self, seq: SeqId, floor: u32) {
        if let Some(place) = self.window_floor.get_mut(seq as usize) {
            *place = floor;
        }
    }

    /// Whether a batch obeys everything that llama.cpp asserts.
    fn is_valid(&self, batch: &Batch) -> bool {
        let n_rows = batch.rows.len();
        // Embeddings and encoders need all rows of a sequence in one micro-batch.
        let limit = if self.embeddings || self.memory().is_null() { self.info.n_ubatch } else { self.info.n_batch };
        n_rows > 0
            && n_rows <= limit as usize
            && batch.rows.iter().all(|row| {
                row.seq < self.info.n_seq_max
                    && row.pos < i32::MAX as u32
                    && self.model.checked_token(row.token).is_some()
            })
    }

    /// A result pointer as a slice that lives as long as the borrow of the context.
    fn slice(&self, pointer: *mut f32, len: usize) -> Option<&[f32]> {
        // SAFETY: llama.cpp keeps the results of a decode until the next call that takes the context mutably, and the
        // borrow of `self` ends before that; null is refused.
        NonNull::new(pointer).map(|pointer| unsafe { std::slice::from_raw_parts(pointer.as_ptr(), len) })
    }
}

impl Drop for LlamaContext {
    fn drop(&mut self) {
        // SAFETY: the context is freed once, before the adapters, the threads, the model and the abort flag it refers to.
        unsafe { sys::llama_free(self.context.as_ptr()) }
    }
}

impl RowArrays {
    /// Fills the arrays and returns them as llama.cpp's batch, which borrows from them.
    fn fill(&mut self, batch: &Batch) -> sys::llama_batch {
        self.tokens.clear();
        self.positions.clear();
        self.counts.clear();
        self.sequences.clear();
        self.sequence_pointers.clear();
        self.wanted.clear();
        for row in &batch.rows {
            // The numbers were checked before.
            self.tokens.push(i32::try_from(row.token).unwrap_or(0));
            self.positions.push(i32::try_from(row.pos).unwrap_or(0));
            self.counts.push(1);
            self.sequences.push(i32::try_from(row.seq).unwrap_or(0));
            self.wanted.push(i8::from(row.want_logits));
        }
        self.sequence_pointers.extend(self.sequences.iter_mut().map(std::ptr::from_mut));
        sys::llama_batch {
            n_tokens: i32::try_from(batch.rows.len()).unwrap_or(0),
            token: self.tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.counts.as_mut_ptr(),
            seq_id: self.sequence_pointers.as_mut_ptr(),
            logits: self.wanted.as_mut_ptr(),
        }
    }
}

impl Context for LlamaContext {
    fn info(&self) -> &ContextInfo {
        &self.info
    }

    fn decode(&mut self, batch: &Batch) -> DecodeOutcome {
        let _call = ACTIVITY.begin();
        self.outputs.clear();
        if !self.is_valid(batch) {
            return DecodeOutcome::Invalid;
        }
        self.threads.before_decode(self.context);
        let rows = self.rows.fill(batch);
        // SAFETY: the arrays of `rows` live in `self` and have as many entries as there are rows; every number in them
        // was checked against this context.
        let code = unsafe { sys::llama_decode(self.context.as_ptr(), rows) };
        match code {
            0 => {
                let all = self.embeddings;
                self.outputs.extend(batch.rows.iter().map(|row| all || row.want_logits));
                DecodeOutcome::Done
            }
            1 => DecodeOutcome::NoRoom,
            2 => DecodeOutcome::Aborted,
            -1 => DecodeOutcome::Invalid,
            other => DecodeOutcome::Fatal(other),
        }
    }

    fn logits(&self, row: usize) -> Option<&[f32]> {
        let _call = ACTIVITY.begin();
        if !*self.outputs.get(row)? {
            return None;
        }
        // SAFETY: the row had its result asked for in the last decode.
        let logits = unsafe { sys::llama_get_logits_ith(self.context.as_ptr(), i32::try_from(row).ok()?) };
        self.slice(logits, self.model.n_vocab() as usize)
    }

    fn row_embedding(&self, row: usize) -> Option<&[f32]> {
        let _call = ACTIVITY.begin();
        if !self.embeddings || !*self.outputs.get(row)? {
            return None;
        }
        // SAFETY: the row had its result asked for in the last decode.
        let values = unsafe { sys::llama_get_embeddings_ith(self.context.as_ptr(), i32::try_from(row).ok()?) };
        self.slice(values, self.n_embd_out)
    }

    fn sequence_embedding(&self, seq: SeqId) -> Option<&[f32]> {
        let _call = ACTIVITY.begin();
        if !self.embeddings || self.outputs.is_empty() {
            return None;
        }
        let seq = self.checked_seq(seq)?;
        // SAFETY: the sequence exists; the result is null if it has no pooled embedding.
        unsafe {
            let ctx = self.context.as_ptr();
            let len = match sys::llama_pooling_type(ctx) {
                sys::LLAMA_POOLING_TYPE_NONE => return None,
                sys::LLAMA_POOLING_TYPE_RANK => sys::llama_model_n_cls_out(self.model.as_ptr()) as usize,
                _ => self.n_embd_out,
            };
            self.slice(sys::llama_get_embeddings_seq(ctx, seq), len)
        }
    }

    fn remove(&mut self, seq: SeqId, range: Range<u32>) -> bool {
        let Some(known) = self.checked_seq(seq) else { return false };
        if range.is_empty() {
            return true;
        }
        if range == (0..u32::MAX) {
            self.set_window_floor(seq, 0);
            self.abandon_restore(seq);
        }
        let Ok(start) = i32::try_from(range.start) else { return true };
        // A negative end means to the end.
        let end = i32::try_from(range.end).unwrap_or(-1);
        // SAFETY: the sequence exists and a null memory is accepted.
        unsafe { sys::llama_memory_seq_rm(self.memory(), known, start, end) }
    }

    fn copy(&mut self, from: SeqId, to: SeqId) -> bool {
        if from == to {
            return false;
        }
        let floor = self.window_floor.get(from as usize).copied().unwrap_or(0);
        let target = to;
        let (Some(from), Some(to)) = (self.checked_seq(from), self.checked_seq(to)) else { return false };
        self.set_window_floor(target, floor);
        // SAFETY: both sequences exist. The full range is copied, the only one that split KV allows.
        unsafe {
            sys::llama_memory_seq_rm(self.memory(), to, -1, -1);
            sys::llama_memory_seq_cp(self.memory(), from, to, -1, -1);
        }
        if self.scratch.is_some() {
            return true;
        }
        // SAFETY: the context is alive, and `&mut self` keeps others away.
        let copied = unsafe { io::update_memory(self.context) };
        copied.inspect_err(|error| tracing::warn!(%error, "llama.cpp could not copy a sequence")).is_ok()
    }

    fn pos_min(&self, seq: SeqId) -> Option<u32> {
        let seq = self.checked_seq(seq)?;
        let floor = usize::try_from(seq).ok().and_then(|seq| self.window_floor.get(seq)).copied().unwrap_or(0);
        // SAFETY: the sequence exists; the result is negative if it is empty.
        u32::try_from(unsafe { sys::llama_memory_seq_pos_min(self.memory(), seq) }).ok().map(|min| min.max(floor))
    }

    fn pos_max(&self, seq: SeqId) -> Option<u32> {
        let seq = self.checked_seq(seq)?;
        // SAFETY: the sequence exists; the result is negative if it is empty.
        u32::try_from(unsafe { sys::llama_memory_seq_pos_max(self.memory(), seq) }).ok()
    }

    fn clear(&mut self) {
        self.restoring = None;
        self.window_floor.fill(0);
        // SAFETY: a null memory is accepted. Data is cleared too: free cells may be read and must hold no old values.
        unsafe { sys::llama_memory_clear(self.memory(), true) }
    }

    fn set_adapters(&mut self, adapters: &[AdapterUse]) -> Result<(), AdapterError> {
        let mut pointers = Vec::with_capacity(adapters.len());
        let mut scales = Vec::with_capacity(adapters.len());
        for used in adapters {
            let any: &dyn std::any::Any = used.adapter.as_ref();
            let adapter = any.downcast_ref::<LlamaAdapter>().filter(|adapter| adapter.belongs_to(&self.model));
            pointers.push(adapter.ok_or(AdapterError::OtherModel)?.as_ptr());
            scales.push(used.scale);
        }
        // SAFETY: both arrays have the given length; the adapters belong to this model and are kept alive below.
        let code = unsafe {
            sys::llama_set_adapters_lora(
                self.context.as_ptr(),
                pointers.as_mut_ptr(),
                pointers.len(),
                scales.as_mut_ptr(),
            )
        };
        if code != 0 {
            return Err(AdapterError::NotAttached { code });
        }
        // The ones attached before may go only now that llama.cpp has let go of them.
        self.adapters = adapters.iter().map(|used| Arc::clone(&used.adapter)).collect();
        Ok(())
    }

    fn state_size(&mut self, seq: SeqId, part: StatePart) -> Result<usize, StateError> {
        self.size_of_state(seq, part)
    }

    fn state_read(&mut self, seq: SeqId, part: StatePart, out: &mut [u8]) -> Result<usize, StateError> {
        let _call = ACTIVITY.begin();
        self.read_state(seq, part, out)
    }

    fn state_write(&mut self, seq: SeqId, part: StatePart, bytes: &[u8]) -> Result<(), StateError> {
        let _call = ACTIVITY.begin();
        self.write_state(seq, part, bytes)
    }

    fn pack_size(&mut self, seq: SeqId, range: Range<u32>) -> Result<usize, StateError> {
        self.size_of_range(seq, &range)
    }

    fn pack_range(&mut self, seq: SeqId, range: Range<u32>, out: &mut [u8]) -> Result<usize, StateError> {
        let _call = ACTIVITY.begin();
        self.pack(seq, &range, out)
    }

    fn restore_begin(&mut self, seq: SeqId, n_tokens: u32, partial: Option<&[u8]>) -> Result<(), StateError> {
        self.begin_restore(seq, n_tokens, partial)
    }

    fn restore_segments(&mut self, segments: &[StoredSegment<'_>]) -> Result<(), StateError> {
        let _call = ACTIVITY.begin();
        self.add_segments(segments)
    }

    fn joiner(&self) -> Option<Arc<dyn SegmentJoiner>> {
        let shape = self.shape.clone().filter(|shape| !shape.attention.is_empty())?;
        Some(Arc::new(sequence::Joiner { shape }))
    }

    fn restore_finish(&mut self) -> Result<(), StateError> {
        let _call = ACTIVITY.begin();
        self.finish_restore()
    }

    fn synchronize(&mut self) {
        let _call = ACTIVITY.begin();
        // SAFETY: the context is valid.
        unsafe { sys::llama_synchronize(self.context.as_ptr()) }
    }
}
