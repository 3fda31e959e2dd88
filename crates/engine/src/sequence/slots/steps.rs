//! Calls with the numbers of rows that drafts need, made once before the first request.
//!
//! Called when a model on a device is loaded, by `Slots` alone. The library of a device prepares a call of a new shape, which
//! takes ten times as long as the call itself: a reply that drafts for the first time would pay for all of them. The context
//! is empty afterwards. A call that fails costs nothing but the time that it would have saved.

use std::time::{Duration, Instant};

use crate::backend::{Batch, BatchRow, Context, ContextInfo, DecodeOutcome};
use crate::schedule::drafts::LONGEST;
use crate::state::position::position;

/// More time is not spent: a model with layers on the processor takes long for each call.
const MOST: Duration = Duration::from_millis(1500);

/// Makes a call with each number of rows up to that of the longest draft: of one sequence, then of all of them at once.
/// Calls of some sequences have kernels in common with these.
pub(super) fn prepare(context: &mut dyn Context, n_vocab: u32) {
    let began = Instant::now();
    let ContextInfo { n_ctx, n_batch, n_seq_max, .. } = *context.info();
    let most = position(LONGEST + 1).min(n_ctx);
    let shapes = [1, n_seq_max].into_iter().skip(usize::from(n_seq_max == 1));
    let shapes = shapes.flat_map(|sequences| (1..=most).map(move |rows| (sequences, rows)));
    for (sequences, rows) in shapes.filter(|(sequences, rows)| sequences.saturating_mul(*rows) <= n_batch) {
        context.clear();
        let row = |seq| (0..rows).map(move |pos| BatchRow { token: pos % n_vocab.max(1), pos, seq, want_logits: true });
        let batch = Batch { rows: (0..sequences).flat_map(row).collect() };
        if context.decode(&batch) != DecodeOutcome::Done {
            break;
        }
        context.synchronize();
        if began.elapsed() > MOST {
            break;
        }
    }
    context.clear();
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::backend::stub::{DecodeFault, StubBackend};
    use crate::backend::{Backend, ContextOptions, MemoryKind, ModelOptions};

    #[test]
    fn every_number_of_rows_is_prepared_and_nothing_is_left() {
        let backend = StubBackend::new(MemoryKind::Attention);
        backend.faults().record_batches();
        let model = backend.load_model(&ModelOptions::new("stub")).unwrap();
        let options =
            ContextOptions { n_ctx: 64, n_batch: 32, n_ubatch: 32, n_seq_max: 4, ..ContextOptions::default() };
        let mut context = model.new_context(&options, Arc::new(AtomicBool::new(false))).unwrap();
        prepare(&mut *context, model.info().n_vocab);
        let rows: Vec<usize> = backend.faults().take_batches().iter().map(|batch| batch.rows.len()).collect();
        let expected = (1..=LONGEST + 1).chain([4, 8, 12, 16, 20, 24, 28, 32]).collect();
        assert_eq!((rows, context.pos_max(0)), (expected, None));
        backend.faults().on_decode(1, DecodeFault::Fatal(-3));
        prepare(&mut *context, model.info().n_vocab);
        assert_eq!(context.pos_max(0), None, "a failure is nobody's problem");
    }
}
