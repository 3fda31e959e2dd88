//! Calls with the numbers of rows that drafts need, made once before the first request.
//!
//! Called when a model on a device is loaded, by `Slots` alone. The library of a device prepares a call of a new shape, which
//! takes ten times as long as the call itself: a reply that drafts for the first time would pay for all of them. The context
//! is empty afterwards. A call that fails costs nothing but the time that it would have saved.

use std::time::{Duration, Instant};

use crate::backend::{Batch, BatchRow, Context, DecodeOutcome};
use crate::schedule::drafts::LONGEST;
use crate::state::position::position;

/// More time is not spent: a model with layers on the processor takes long for each call.
const MOST: Duration = Duration::from_secs(1);

/// Makes a call with each number of rows up to that of the longest draft.
pub(super) fn prepare(context: &mut dyn Context, n_vocab: u32) {
    let began = Instant::now();
    let info = context.info();
    let most = position(LONGEST + 1).min(info.n_batch).min(info.n_ctx);
    for rows in 1..=most {
        context.clear();
        let row = |pos| BatchRow { token: pos % n_vocab.max(1), pos, seq: 0, want_logits: true };
        if context.decode(&Batch { rows: (0..rows).map(row).collect() }) != DecodeOutcome::Done {
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
        let options = ContextOptions { n_ctx: 64, n_batch: 32, n_ubatch: 32, ..ContextOptions::default() };
        let mut context = model.new_context(&options, Arc::new(AtomicBool::new(false))).unwrap();
        prepare(&mut *context, model.info().n_vocab);
        let rows: Vec<usize> = backend.faults().take_batches().iter().map(|batch| batch.rows.len()).collect();
        assert_eq!((rows, context.pos_max(0)), ((1..=LONGEST + 1).collect(), None));
        backend.faults().on_decode(1, DecodeFault::Fatal(-3));
        prepare(&mut *context, model.info().n_vocab);
        assert_eq!(context.pos_max(0), None, "a failure is nobody's problem");
    }
}
