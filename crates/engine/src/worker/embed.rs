//! Embeddings between the decode calls of requests: one input at a time, in a context of their own.
//!
//! Owned by the worker, which calls `run_next` once in each round. Calls take turns, input by input, and while requests are
//! in flight all calls together get at most as much time as the requests do. Every input is a watched decode call that ends
//! soon when its caller leaves. A failure here costs one call, and never a request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{Batch, BatchRow, Context, ContextOptions, DecodeOutcome, KvLayout, Pooling};
use crate::calls::request::RequestId;
use crate::error::EngineError;
use crate::shared::Shared;
use crate::shared::embedding::Vectors;
use crate::shared::running::AbortFlag;
use crate::state::position::position;

/// Shorter inputs share one size of context.
const SMALLEST: u32 = 512;

/// The batch size of a context that embeds inputs of up to `longest` tokens: an input has to fit into one computation.
/// Rounded up, so that slightly longer inputs need no other context.
pub(crate) fn embedding_rows(longest: usize, limit: usize) -> u32 {
    let limit = position(limit);
    let rows = longest.checked_next_power_of_two().and_then(|rows| u32::try_from(rows).ok()).unwrap_or(limit);
    rows.clamp(SMALLEST.min(limit), limit)
}

/// The settings of such a context.
pub(crate) fn embedding_options(base: &ContextOptions, pooling: Pooling, rows: u32) -> ContextOptions {
    ContextOptions {
        embeddings: true,
        pooling,
        n_ctx: rows,
        n_batch: rows,
        n_ubatch: rows,
        n_seq_max: 1,
        n_cells: None,
        kv: KvLayout::Split,
        ..base.clone()
    }
}

/// One call and its progress.
struct Job {
    id: RequestId,
    /// Inputs that are not computed yet.
    inputs: VecDeque<Vec<u32>>,
    vectors: Vectors,
}

/// The open calls of a worker.
pub(crate) struct Embeds {
    /// The first has the next turn.
    jobs: VecDeque<Job>,
    /// A second context, created when it is first needed.
    context: Option<Box<dyn Context>>,
    /// Time that the requests in flight get before the next input.
    owed: Duration,
    /// Stops decode calls of this worker.
    abort: AbortFlag,
}

impl Embeds {
    pub(crate) fn new(abort: AbortFlag) -> Self {
        Self { jobs: VecDeque::new(), context: None, owed: Duration::ZERO, abort }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Requests computed for this long.
    pub(crate) fn requests_ran(&mut self, time: Duration) {
        self.owed = self.owed.saturating_sub(time);
    }

    /// Takes a call. Its inputs were checked against the model's limits.
    pub(crate) fn push(&mut self, id: RequestId, inputs: Vec<Vec<u32>>) {
        let vectors = Vec::with_capacity(inputs.len());
        self.jobs.push_back(Job { id, inputs: inputs.into(), vectors });
    }

    /// Computes the next input, unless it is the turn of the requests. Returns whether it computed one.
    pub(crate) fn run_next(&mut self, shared: &Shared, has_requests: bool) -> bool {
        self.jobs.retain(|job| shared.embeddings.is_open(job.id));
        if !has_requests {
            self.owed = Duration::ZERO;
        } else if !self.owed.is_zero() {
            return false;
        }
        let Some(mut job) = self.jobs.pop_front() else { return false };
        let Some(input) = job.inputs.pop_front() else {
            shared.embeddings.answer(job.id, Ok(job.vectors));
            return false;
        };
        let began = Instant::now();
        match self.embed(shared, job.id, &input) {
            Ok(vector) => job.vectors.push(vector),
            Err(error) => {
                shared.embeddings.answer(job.id, Err(error));
                return false;
            }
        }
        self.owed = began.elapsed();
        if job.inputs.is_empty() {
            shared.embeddings.answer(job.id, Ok(job.vectors));
        } else {
            self.jobs.push_back(job);
        }
        true
    }

    /// The vector of one input. Each input is computed alone, so that many give the same vectors as one by one.
    fn embed(&mut self, shared: &Shared, id: RequestId, input: &[u32]) -> Result<Vec<f32>, EngineError> {
        let mut context = self.take_context(shared, input.len())?;
        context.clear();
        let rows = (0_u32..).zip(input).map(|(pos, token)| BatchRow { token: *token, pos, seq: 0, want_logits: true });
        let batch = Batch { rows: rows.collect() };
        let began = Instant::now();
        shared.running.begin(&self.abort, Some(id), None);
        let outcome = context.decode(&batch);
        if outcome == DecodeOutcome::Done {
            context.synchronize();
        }
        let is_overdue = shared.running.end(&self.abort);
        let failed = |code| Err(EngineError::Decode { code });
        match outcome {
            DecodeOutcome::Done => {
                let vector = context.sequence_embedding(0).map(<[f32]>::to_vec);
                self.context = Some(context);
                vector.ok_or_else(|| EngineError::Unsupported { what: "embedding".to_owned() })
            }
            // The context is dropped, with what the aborted call left in it.
            DecodeOutcome::Aborted if is_overdue => {
                let model = shared.config.id.clone();
                Err(EngineError::Watchdog { model, waited: began.elapsed() })
            }
            // No caller waits for this answer: only the caller itself can abort the call.
            DecodeOutcome::Aborted => failed(2),
            DecodeOutcome::NoRoom => Err(EngineError::NoRoom { needed: input.len(), free: 0 }),
            DecodeOutcome::Invalid => failed(-1),
            DecodeOutcome::Fatal(code) => failed(code),
        }
    }

    /// The context for an input of that length: the last one if it is large enough, else another in its place.
    fn take_context(&mut self, shared: &Shared, tokens: usize) -> Result<Box<dyn Context>, EngineError> {
        if let Some(context) = self.context.take()
            && context.info().n_ubatch as usize >= tokens
        {
            return Ok(context);
        }
        // One that was too small is dropped by now: two at once would take more memory than was reserved.
        let rows = embedding_rows(tokens, shared.limits.context);
        let options = embedding_options(&shared.config.context, pooling(shared), rows);
        let call = "creating a context for embeddings".to_owned();
        shared
            .model
            .new_context(&options, Arc::clone(&self.abort))
            .map_err(|error| EngineError::Backend { call, reason: error.to_string() })
    }
}

/// The model's own pooling if its file names one, else the mean.
fn pooling(shared: &Shared) -> Pooling {
    let model = &shared.model;
    let stated = model.metadata(&format!("{}.pooling_type", model.info().architecture));
    if stated.is_some_and(|value| value.trim() != "0") { Pooling::FromModel } else { Pooling::Mean }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_fits_its_input_and_never_exceeds_the_models() {
        let cases = [(1, 8192, 512), (512, 8192, 512), (513, 8192, 1024), (5000, 6000, 6000), (10, 100, 100)];
        for (longest, limit, rows) in cases {
            assert_eq!(embedding_rows(longest, limit), rows, "{longest} of {limit}");
        }
        assert_eq!(embedding_rows(usize::MAX, 4096), 4096);
    }
}
