//! Whether a device keeps the bits that exact replies stand on.
//!
//! Called when a model that computes on a GPU is loaded for exact replies. On a processor a test of the project holds these
//! lines (`tests/llama/invariance.rs`); which kernels a device takes is known on that device alone. The context is empty
//! afterwards. A model is refused on any difference, never loaded with a promise that does not hold.

use std::ops::Range;

use crate::backend::{Batch, BatchRow, Context, DecodeOutcome, Restore, SeqId, StatePart};
use crate::error::EngineError;
use crate::schedule::grid::Grid;
use crate::sequence::exact::bits;

/// Rows that are computed one by one after the prompt.
const REPLY: u32 = 3;
/// Tokens of the sequence beside.
const BESIDE: u32 = 37;

type Logits = Vec<Option<Vec<u32>>>;

/// Refuses a model if one of the lines does not hold on its devices.
pub(crate) fn keeps_bits(
    context: &mut dyn Context,
    grid: Grid,
    n_vocab: u32,
    devices: &str,
) -> Result<(), EngineError> {
    let changed = find_change(context, grid, n_vocab);
    context.clear();
    let Some(what) = changed? else { return Ok(()) };
    let reason = format!(
        "{what} changes bits of the logits on {devices}; load the model without exact replies, or on the processor \
         (gpu_layers 0)"
    );
    Err(EngineError::Config { setting: "exact".to_owned(), reason })
}

/// The first line that does not hold.
fn find_change(context: &mut dyn Context, grid: Grid, n_vocab: u32) -> Result<Option<&'static str>, EngineError> {
    let info = context.info();
    let (sequences, memory) = (info.n_seq_max, info.memory);
    let most = (info.n_ctx.saturating_sub(REPLY + 1) / 2).min(info.n_batch);
    let chunk = u32::try_from(grid.0.get()).unwrap_or(u32::MAX).clamp(1, most.max(1));
    let probe = Probe { n_vocab, chunk };
    context.clear();
    let expected = probe.read(context, 0, &mut |_| Ok(()))?;
    context.clear();
    if probe.read(context, 0, &mut |_| Ok(()))? != expected {
        return Ok(Some("computing the same again"));
    }
    let end = probe.prompt();
    let mut segment = Vec::new();
    if memory.has_segments() {
        segment.resize(context.pack_size(0, 0..end).map_err(|error| failed(&error))?, 0);
        let used = context.pack_range(0, 0..end, &mut segment).map_err(|error| failed(&error))?;
        segment.truncate(used);
    }
    let beside = sequences.checked_sub(1).filter(|other| *other > 0 && BESIDE + REPLY < end);
    if let Some(other) = beside {
        context.clear();
        probe.decode(context, other, 0..BESIDE)?;
        let mut step = BESIDE;
        let mut go_on = |context: &mut dyn Context| {
            step += 1;
            probe.decode(context, other, step - 1..step).map(drop)
        };
        if probe.read(context, 0, &mut go_on)? != expected {
            return Ok(Some("another request in the context"));
        }
    }
    // The state at the end of the prompt, without what came after it.
    context.clear();
    probe.decode(context, 0, 0..probe.chunk)?;
    probe.decode(context, 0, probe.chunk..end)?;
    let mut partial = Vec::new();
    if memory.has_partial() {
        partial.resize(context.state_size(0, StatePart::Partial).map_err(|error| failed(&error))?, 0);
        let used = context.state_read(0, StatePart::Partial, &mut partial).map_err(|error| failed(&error))?;
        partial.truncate(used);
    }
    context.clear();
    let seq = beside.unwrap_or(0);
    let segments: &[&[u8]] = if segment.is_empty() { &[] } else { &[&segment] };
    let partial = (!partial.is_empty()).then_some(partial.as_slice());
    context.restore(Restore { seq, n_tokens: end, segments, partial }).map_err(|error| failed(&error))?;
    let restored = probe.reply(context, seq, &mut |_| Ok(()))?;
    let is_same = expected.get(1..).is_some_and(|after| after == restored);
    Ok((!is_same).then_some("going on from a restored state"))
}

/// A prompt of two chunks and a few tokens after it.
struct Probe {
    n_vocab: u32,
    chunk: u32,
}

/// What else happens to the context before each row of the reply.
type Between<'a> = &'a mut dyn FnMut(&mut dyn Context) -> Result<(), EngineError>;

impl Probe {
    fn prompt(&self) -> u32 {
        2 * self.chunk
    }

    /// The logits after the prompt and after each row of the reply.
    fn read(&self, context: &mut dyn Context, seq: SeqId, between: Between<'_>) -> Result<Logits, EngineError> {
        self.decode(context, seq, 0..self.chunk)?;
        between(context)?;
        let mut logits = vec![self.decode(context, seq, self.chunk..self.prompt())?];
        logits.extend(self.reply(context, seq, between)?);
        Ok(logits)
    }

    fn reply(&self, context: &mut dyn Context, seq: SeqId, between: Between<'_>) -> Result<Logits, EngineError> {
        let mut logits = Vec::new();
        for position in self.prompt()..self.prompt() + REPLY {
            between(context)?;
            logits.push(self.decode(context, seq, position..position + 1)?);
        }
        Ok(logits)
    }

    /// Computes rows in one call; the bits of the logits after the last.
    fn decode(
        &self,
        context: &mut dyn Context,
        seq: SeqId,
        range: Range<u32>,
    ) -> Result<Option<Vec<u32>>, EngineError> {
        let token = |pos: u32| pos.wrapping_mul(104_729).wrapping_add(23) % self.n_vocab.max(1);
        let last = range.end.saturating_sub(1);
        let row = |pos: u32| BatchRow { token: token(pos), pos, seq, want_logits: pos == last };
        let rows: Vec<BatchRow> = range.map(row).collect();
        let count = rows.len();
        match context.decode(&Batch { rows }) {
            DecodeOutcome::Done => Ok(bits(context.logits(count.saturating_sub(1)))),
            outcome => Err(failed(&format!("a decode call ended with {outcome:?}"))),
        }
    }
}

fn failed(reason: &impl ToString) -> EngineError {
    EngineError::Backend { call: "testing exact replies".to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::backend::stub::StubBackend;
    use crate::backend::{Backend, ContextOptions, KvLayout, MemoryKind, ModelOptions};

    const KINDS: [MemoryKind; 4] =
        [MemoryKind::Attention, MemoryKind::Window { size: 16 }, MemoryKind::Recurrent, MemoryKind::Hybrid];

    fn grid() -> Grid {
        Grid(NonZeroUsize::new(128).unwrap())
    }

    fn context(backend: &dyn Backend, path: &std::path::Path, kv: KvLayout, n_seq_max: u32) -> Box<dyn Context> {
        let options = ContextOptions {
            n_ctx: 300,
            n_batch: 128,
            n_ubatch: 128,
            n_seq_max,
            threads: Some(1),
            kv,
            ..ContextOptions::default()
        };
        let model = backend.load_model(&ModelOptions::new(path)).unwrap();
        model.new_context(&options, Arc::new(AtomicBool::new(false))).unwrap()
    }

    #[test]
    fn a_backend_that_keeps_its_bits_passes_and_is_left_empty() {
        for kind in KINDS {
            for sequences in [1, 3] {
                let backend = StubBackend::new(kind);
                let mut context = context(&backend, "stub".as_ref(), KvLayout::Split, sequences);
                assert_eq!(keeps_bits(&mut *context, grid(), 256, "a GPU"), Ok(()), "{kind:?}");
                assert!((0..sequences).all(|seq| context.pos_max(seq).is_none()), "{kind:?}");
            }
        }
    }

    /// In one pool of cells with flash attention a neighbour changes the order of sums, on a processor too.
    #[test]
    #[cfg(feature = "llama")]
    fn a_change_is_found_and_named() {
        use poncho_testkit::{ModelKind, model_path};

        let path = model_path(ModelKind::Attention);
        let backend = crate::backend::llama::LlamaBackend;
        let mut split = context(&backend, &path, KvLayout::Split, 3);
        assert_eq!(keeps_bits(&mut *split, grid(), 256, "a GPU"), Ok(()));
        let mut unified = context(&backend, &path, KvLayout::Unified, 3);
        let refused = keeps_bits(&mut *unified, grid(), 256, "a GPU").unwrap_err().to_string();
        assert!(refused.contains("another request in the context changes bits"), "{refused}");
        assert!(refused.contains("on a GPU") && refused.contains("gpu_layers 0"), "{refused}");
    }
}
