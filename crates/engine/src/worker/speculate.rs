//! Speculation for other programs: how many draft tokens the model agrees with, and its own next tokens.
//!
//! Called by `commands.rs`, each call from its start to its end between two ticks. It borrows a free sequence and gives it back
//! empty, so that no request and no session is affected.

use std::sync::Arc;

use crate::backend::{Batch, BatchRow, DecodeOutcome};
use crate::config::Checked as _;
use crate::error::EngineError;
use crate::reply::sampler::argmax;
use crate::sequence::slots::{Lease, Slots};
use crate::shared::Shared;
use crate::state::position::position;
use crate::state::restore::Wanted;
use crate::worker::command::Verified;

/// How many draft tokens the model would have drawn itself after the prefix, and its own next token after those. `running`
/// is the number of requests that run. The draft is read in one call, which may round differently than generation does;
/// where replies are exact it is read token by token.
pub(crate) fn verify(
    slots: &mut Slots,
    shared: &Shared,
    running: usize,
    prefix: &[u32],
    draft: &[u32],
) -> Result<Verified, EngineError> {
    check_fit(shared, prefix.len() + draft.len())?;
    with_scratch(slots, shared, running, |slots, lease| {
        let mut next = read_prefix(slots, lease, shared, prefix)?;
        let mut accepted = 0;
        let most = if shared.config.grid().is_some() { 1 } else { slots.info().n_batch as usize };
        for part in draft.chunks(most.max(1)) {
            if part.first() != Some(&next) {
                break;
            }
            let drawn = read_drafted(slots, lease, shared, part)?;
            let agreed = 1 + part.iter().skip(1).zip(&drawn).take_while(|(token, drawn)| token == drawn).count();
            accepted += agreed;
            next = *drawn.get(agreed - 1).ok_or(EngineError::Decode { code: -1 })?;
            if agreed < part.len() {
                break;
            }
        }
        Ok(Verified { accepted, next })
    })
}

/// The model's own next tokens, drawn greedily.
pub(crate) fn draft(
    slots: &mut Slots,
    shared: &Shared,
    running: usize,
    prefix: &[u32],
    count: usize,
) -> Result<Vec<u32>, EngineError> {
    check_fit(shared, prefix.len() + count)?;
    with_scratch(slots, shared, running, |slots, lease| {
        let mut drafted = Vec::with_capacity(count);
        let mut next = read_prefix(slots, lease, shared, prefix)?;
        while drafted.len() < count {
            drafted.push(next);
            if shared.model.is_eog(next) || drafted.len() == count {
                break;
            }
            next = read_tokens(slots, lease, shared, &[next])?;
        }
        Ok(drafted)
    })
}

fn check_fit(shared: &Shared, tokens: usize) -> Result<(), EngineError> {
    let limit = shared.limits.context;
    if tokens > limit { Err(EngineError::PromptTooLong { tokens, limit }) } else { Ok(()) }
}

fn with_scratch<T>(
    slots: &mut Slots,
    shared: &Shared,
    running: usize,
    work: impl FnOnce(&mut Slots, &mut Lease) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    let busy = EngineError::Overloaded { queued: running, limit: running };
    let mut lease = slots.scratch(shared.config.grid()).ok_or(busy)?;
    let result = work(slots, &mut lease);
    slots.give_back_scratch(lease);
    result
}

/// Brings a prefix into a sequence, from the cache as far as it goes, and returns the most likely next token.
#[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
fn read_prefix(slots: &mut Slots, lease: &mut Lease, shared: &Shared, prefix: &[u32]) -> Result<u32, EngineError> {
    let set = Arc::clone(slots.adapters());
    slots.attach(&set)?;
    let restored = slots.restore(lease, &Wanted { namespace: &set.namespace, prompt: prefix, grid: None });
    if let Some(logits) = restored.logits {
        return argmax(&logits).map_err(|_| EngineError::Decode { code: -1 });
    }
    let rest = prefix.get(lease.n_past()..).expect("invariant: a restore brings a prefix of the prompt");
    read_tokens(slots, lease, shared, rest)
}

/// Reads tokens, of which there is at least one, and returns the most likely next one.
fn read_tokens(slots: &mut Slots, lease: &mut Lease, shared: &Shared, tokens: &[u32]) -> Result<u32, EngineError> {
    let n_batch = slots.info().n_batch as usize;
    let end = lease.n_past() + tokens.len();
    for chunk in tokens.chunks(n_batch.max(1)) {
        decode(slots, lease, shared, chunk, |place| place + 1 == end)?;
    }
    drawn(slots, (tokens.len().saturating_sub(1)) % n_batch.max(1))
}

/// Reads tokens in one call and returns the most likely next one after each of them.
fn read_drafted(
    slots: &mut Slots,
    lease: &mut Lease,
    shared: &Shared,
    tokens: &[u32],
) -> Result<Vec<u32>, EngineError> {
    decode(slots, lease, shared, tokens, |_| true)?;
    (0..tokens.len()).map(|row| drawn(slots, row)).collect()
}

fn drawn(slots: &Slots, row: usize) -> Result<u32, EngineError> {
    slots.logits(row).and_then(|logits| argmax(logits).ok()).ok_or(EngineError::Decode { code: -1 })
}

/// One call with the tokens of a chunk.
fn decode(
    slots: &mut Slots,
    lease: &mut Lease,
    shared: &Shared,
    chunk: &[u32],
    want_logits: impl Fn(usize) -> bool,
) -> Result<(), EngineError> {
    let rows = (lease.n_past()..).zip(chunk).map(|(place, token)| BatchRow {
        token: *token,
        pos: position(place),
        seq: lease.seq(),
        want_logits: want_logits(place),
    });
    let batch = Batch { rows: rows.collect() };
    match slots.decode(&batch, shared, None, None).0 {
        DecodeOutcome::Done => {}
        DecodeOutcome::NoRoom => return Err(EngineError::NoRoom { needed: batch.rows.len(), free: 0 }),
        DecodeOutcome::Aborted | DecodeOutcome::Invalid => return Err(EngineError::Decode { code: -1 }),
        DecodeOutcome::Fatal(code) => return Err(EngineError::Decode { code }),
    }
    lease.advance(chunk.len());
    Ok(())
}
