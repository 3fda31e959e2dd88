//! Cold-exact replies: the same bytes as a cold, idle server would send, whatever is cached and whatever else runs.
//!
//! Used by the worker of a model that was loaded for them; this file decides which requests may share a decode call. Prompts are computed in chunks that end at multiples of a grid of
//! absolute positions, each chunk in a decode call of its own, so that the state of a token never depends on what was cached
//! before it or ran beside it. States are saved and resumed at those multiples only, and generated tokens are computed again
//! on the grid before they are saved. Nothing here may ever split a chunk.

pub(crate) mod device;

use std::ops::Range;

use crate::backend::{Batch, BatchRow, Context, DecodeOutcome};
use crate::error::EngineError;
use crate::schedule::grid::Grid;
use crate::state::position::position;

/// Tokens of a long prompt in the tests of a device: its kernels may add in another order beside a longer sequence.
const LONG: u32 = 600;

/// Tests whether a decode row gives the same bits alone and beside others, for every number of rows. That depends on the
/// kernels that the weights of this model use on this machine. The context is empty afterwards.
pub(crate) fn decodes_may_share(
    context: &mut dyn Context,
    grid: Grid,
    n_vocab: u32,
    on_device: bool,
) -> Result<bool, EngineError> {
    let is_same = probe_decodes(context, n_vocab, on_device)?;
    tracing::debug!(grid = grid.0, share_decodes = is_same, "exact replies are on");
    Ok(is_same)
}

fn probe_decodes(context: &mut dyn Context, n_vocab: u32, on_device: bool) -> Result<bool, EngineError> {
    let info = context.info();
    let (count, n_batch) = (info.n_seq_max, info.n_batch.max(1));
    let long = LONG.min(info.n_ctx.saturating_sub(count + 1));
    if count < 2 {
        return Ok(true);
    }
    let failed = |outcome: DecodeOutcome| EngineError::Backend {
        call: "testing exact replies".to_owned(),
        reason: format!("a decode call ended with {outcome:?}"),
    };
    let token = |seq: u32, position: u32| (seq * 7919 + position * 104_729 + 11) % n_vocab.max(1);
    // Of different lengths, as requests are.
    let length = |seq: u32| if on_device && seq == 1 { long } else { 3 + 2 * (seq % 7) };
    let prefill = |context: &mut dyn Context| -> Result<(), EngineError> {
        context.clear();
        for seq in 0..count {
            let rows = (0..length(seq)).map(|pos| BatchRow { token: token(seq, pos), pos, seq, want_logits: false });
            let rows: Vec<BatchRow> = rows.collect();
            for some in rows.chunks(n_batch as usize) {
                match context.decode(&Batch { rows: some.to_vec() }) {
                    DecodeOutcome::Done => {}
                    outcome => return Err(failed(outcome)),
                }
            }
        }
        Ok(())
    };
    let row = |seq: u32, step: u32| {
        let pos = length(seq) + step;
        BatchRow { token: token(seq, pos), pos, seq, want_logits: true }
    };
    // In step k the first k + 2 sequences go on by a token.
    let steps = count - 1;
    let takes_part = |seq: u32| seq.saturating_sub(1)..steps;
    prefill(context)?;
    let mut alone: Vec<Vec<Option<Vec<u32>>>> = Vec::new();
    for seq in 0..count {
        let mut of_sequence = Vec::new();
        for (nth, _) in takes_part(seq).enumerate() {
            let nth = position(nth);
            match context.decode(&Batch { rows: vec![row(seq, nth)] }) {
                DecodeOutcome::Done => of_sequence.push(bits(context.logits(0))),
                outcome => return Err(failed(outcome)),
            }
        }
        alone.push(of_sequence);
    }
    prefill(context)?;
    let mut same = true;
    for step in 0..steps {
        let members = 0..(step + 2).min(count);
        let nth = |seq: u32| step - takes_part(seq).start;
        let rows = members.clone().map(|seq| row(seq, nth(seq)));
        match context.decode(&Batch { rows: rows.collect() }) {
            DecodeOutcome::Done => {}
            outcome => return Err(failed(outcome)),
        }
        for (place, seq) in members.enumerate() {
            let expected = alone.get(seq as usize).and_then(|steps| steps.get(nth(seq) as usize));
            same &= expected.is_some_and(|expected| expected.is_some() && *expected == bits(context.logits(place)));
        }
    }
    context.clear();
    Ok(same)
}

/// The numbers of rows of one sequence that may be computed together, as bits: those that give, for each row and for the
/// row after them, the bits of rows computed one by one. The context is empty afterwards.
pub(crate) fn rows_like_one(context: &mut dyn Context, n_vocab: u32, on_device: bool) -> Result<u32, EngineError> {
    const SHORT: u32 = 9;
    const TRIED: [u32; 6] = [2, 3, 4, 5, 6, 8];
    let token = |position: u32| (position * 104_729 + 17) % n_vocab.max(1);
    let decode = |context: &mut dyn Context, range: Range<u32>, want_logits| {
        let rows = range.map(|pos| BatchRow { token: token(pos), pos, seq: 0, want_logits });
        let rows: Vec<BatchRow> = rows.collect();
        let count = rows.len();
        match context.decode(&Batch { rows }) {
            DecodeOutcome::Done if want_logits => Ok((0..count).map(|row| bits(context.logits(row))).collect()),
            DecodeOutcome::Done => Ok(Vec::new()),
            outcome => Err(EngineError::Backend {
                call: "testing exact drafts".to_owned(),
                reason: format!("a decode call ended with {outcome:?}"),
            }),
        }
    };
    let read = |context: &mut dyn Context, range: Range<u32>| decode(context, range, true);
    let info = context.info();
    let rows_of_a_call = info.n_batch.min(info.n_ubatch);
    let prefix = if on_device { LONG.min(rows_of_a_call).min(info.n_ctx.saturating_sub(16)).max(SHORT) } else { SHORT };
    let fits = |rows: &u32| *rows <= rows_of_a_call && prefix + rows < info.n_ctx;
    let tried: Vec<u32> = TRIED.into_iter().filter(fits).collect();
    let longest = tried.last().copied().unwrap_or(0);
    context.clear();
    decode(context, 0..prefix, false)?;
    let mut alone: Vec<Option<Vec<u32>>> = Vec::new();
    for position in prefix..=prefix + longest {
        alone.extend(read(context, position..position + 1)?);
    }
    let mut same = 0;
    for rows in tried {
        context.clear();
        decode(context, 0..prefix, false)?;
        let mut together = read(context, prefix..prefix + rows)?;
        together.extend(read(context, prefix + rows..prefix + rows + 1)?);
        if together.iter().zip(&alone).all(|(one, two)| one.is_some() && one == two) {
            same |= 1 << rows;
        }
    }
    context.clear();
    tracing::debug!(row_counts = format!("{same:b}"), "drafts of exact replies");
    Ok(same)
}

fn bits(logits: Option<&[f32]>) -> Option<Vec<u32>> {
    logits.map(|logits| logits.iter().map(|logit| logit.to_bits()).collect())
}
