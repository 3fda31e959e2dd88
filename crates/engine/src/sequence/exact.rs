//! Cold-exact replies: the same bytes as a cold, idle server would send, whatever was cached and whoever else is served.
//!
//! Used by the worker in a model that was loaded for it. Prompts are read in chunks that end at multiples of a grid of
//! absolute positions, each chunk in a decode call of its own, so that a token's state never depends on what was cached
//! before it or ran beside it; states are kept and taken up at those multiples only; what was generated is read again on
//! the grid before it is kept. A chunk, or the end of a prompt, is the unit: nothing here may ever split one.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;

use poncho_cache::SaveReason;

use crate::adapters::AdapterSet;
use crate::backend::{Batch, BatchRow, Context, DecodeOutcome, SeqId, Token};
use crate::calls::request::{Mode, Request, RequestId};
use crate::calls::stream::EventSender;
use crate::calls::tenant::Tenant;
use crate::error::EngineError;
use crate::schedule::admission::{Place, Submitted, Ticket};
use crate::sequence::task::{End, Task};
use crate::worker::{Waiting, Worker};

/// Positions between two boundaries at which exact states are kept and taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid(pub(crate) NonZeroUsize);

impl Grid {
    /// The last boundary at or before a position.
    pub(crate) fn floor(self, position: usize) -> usize {
        position - position % self.0
    }

    /// How much of a prompt may be taken up from a state that holds the first `common` of its tokens, computed on the
    /// grid: its boundaries, short of the last token, whose logits are wanted.
    pub(crate) fn usable(self, common: usize, prompt: usize) -> usize {
        self.floor(common.min(prompt.saturating_sub(1)))
    }
}

/// What an exact model knows about its context.
#[derive(Debug)]
pub(crate) struct ExactFacts {
    pub(crate) grid: Grid,
    /// Whether decode rows of several requests may share a call: tried out when the context was made.
    pub(crate) share_decodes: bool,
    /// Replies that are to be read again on the grid when there is nothing else to do.
    rereads: VecDeque<Reread>,
}

/// A conversation whose last tokens were generated and not read.
#[derive(Debug)]
struct Reread {
    tokens: Vec<Token>,
    tenant: Option<Tenant>,
}

/// Requests that may share a decode call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Everything that is not exact.
    Shared,
    /// Decode rows of exact requests.
    ExactDecodes,
    /// One exact request.
    Alone(SeqId),
}

impl ExactFacts {
    /// Tries out what the context can promise. It is empty afterwards.
    pub(crate) fn find_out(context: &mut dyn Context, grid: Grid, n_vocab: u32) -> Result<Self, EngineError> {
        let share_decodes = decodes_may_share(context, n_vocab)?;
        tracing::debug!(grid = grid.0, share_decodes, "exact replies are on");
        Ok(Self { grid, share_decodes, rereads: VecDeque::new() })
    }

    /// Which requests may be in a decode call with this one.
    pub(crate) fn lane(&self, task: &Task) -> Lane {
        if !task.request.exact {
            Lane::Shared
        } else if self.share_decodes && !task.is_prefilling() {
            Lane::ExactDecodes
        } else {
            Lane::Alone(task.seq)
        }
    }
}

impl Worker {
    /// The grid of a request, if it is exact.
    pub(crate) fn grid_of(&self, request: &Request) -> Option<Grid> {
        self.exact.as_ref().filter(|_| request.exact).map(|exact| exact.grid)
    }

    /// An exact request is over: what it generated is worth reading again, for the turn that will follow.
    pub(crate) fn note_reread(&mut self, task: &Task) {
        let Some(grid) = self.grid_of(&task.request).filter(|_| !task.is_background()) else { return };
        let end = grid.floor(task.tokens.len());
        let is_more = end > grid.floor(task.prompt_len) && self.policy.should_save(SaveReason::Finish, end);
        // It is read with the adapters of the day: those must still be the request's own.
        let is_same_set = Arc::ptr_eq(&task.adapters, &self.adapters);
        let (Some(exact), Some(tokens)) = (self.exact.as_mut(), task.tokens.get(..end)) else { return };
        if is_more && is_same_set {
            exact.rereads.push_back(Reread { tokens: tokens.to_vec(), tenant: task.request.tenant });
            // A conversation for each sequence: older ones have most likely gone on.
            let limit = self.context.info().n_seq_max as usize;
            while exact.rereads.len() > limit {
                exact.rereads.pop_front();
            }
        }
    }

    /// With nothing else to do, reads a reply again on the grid. False if there is none, or no sequence for it.
    pub(crate) fn start_reread(&mut self) -> bool {
        let Some(reread) = self.exact.as_mut().and_then(|exact| exact.rereads.pop_front()) else { return false };
        let id = RequestId::next();
        let ticket = Ticket { request: id, session: None, needs_session: false, owner: None };
        match self.admission.submit(ticket) {
            Submitted::Admitted(place @ Place::Fresh(_)) => {
                let Reread { tokens, tenant } = reread;
                let request = Request { mode: Mode::PrefillOnly, exact: true, tenant, ..Request::new(tokens) };
                let waiting = Waiting {
                    request: Box::new(request),
                    grammar: None,
                    events: EventSender::to_nobody(),
                    submitted: std::time::Instant::now(),
                };
                self.start(id, waiting, place);
                true
            }
            Submitted::Queued(_) => {
                self.admission.cancel_queued(id);
                false
            }
            Submitted::Admitted(Place::Session(_)) | Submitted::Refused(_) => false,
        }
    }

    /// A request came: what nobody waits for makes room. Its chunks so far stay where they are, ready to be taken up.
    pub(crate) fn stop_rereads(&mut self) {
        if self.exact.is_none() {
            return;
        }
        self.cancel_reads(Task::is_background);
        for task in self.tasks.iter_mut().filter(|task| task.is_background()) {
            task.end.get_or_insert(End::CANCELLED);
        }
        self.end_tasks();
    }

    /// The adapters and the lane of the next decode call. Requests that cannot share one take turns.
    pub(crate) fn choose_group(&mut self) -> (Arc<AdapterSet>, Lane) {
        let lane = |task: &Task| self.exact.as_ref().map_or(Lane::Shared, |exact| exact.lane(task));
        let same = |one: &Task, two: &Task| Arc::ptr_eq(&one.adapters, &two.adapters) && lane(one) == lane(two);
        let mixed = self.tasks.windows(2).any(|pair| matches!(pair, [one, two] if !same(one, two)));
        let count = self.tasks.len().max(1);
        let place = if mixed { self.turn.wrapping_add(1) % count } else { 0 };
        // A group of which all wait for others would have nothing to compute.
        let computes = |place: &usize| self.tasks.get(*place).is_some_and(|task| task.follow.is_none());
        let place = (0..count).map(|step| (place + step) % count).find(computes).unwrap_or(place);
        let chosen = self.tasks.get(place).map_or_else(
            || (Arc::clone(&self.adapters), Lane::Shared),
            |task| (Arc::clone(&task.adapters), lane(task)),
        );
        self.turn = place;
        chosen
    }

    /// Whether a request belongs to a group.
    pub(crate) fn is_in_group(&self, task: &Task, set: &Arc<AdapterSet>, lane: Lane) -> bool {
        let own = self.exact.as_ref().map_or(Lane::Shared, |exact| exact.lane(task));
        Arc::ptr_eq(&task.adapters, set) && own == lane
    }
}

/// Whether a decode row comes out the same alone and beside others, for every number of rows, bit for bit. That depends
/// on the kernels which this model's weights take on this machine, so it is tried out.
fn decodes_may_share(context: &mut dyn Context, n_vocab: u32) -> Result<bool, EngineError> {
    let count = context.info().n_seq_max;
    if count < 2 {
        return Ok(true);
    }
    let failed = |outcome: DecodeOutcome| EngineError::Backend {
        call: "trying out exact replies".to_owned(),
        reason: format!("a decode call ended with {outcome:?}"),
    };
    let token = |seq: u32, position: u32| (seq * 7919 + position * 104_729 + 11) % n_vocab.max(1);
    // Of different lengths, as requests are.
    let length = |seq: u32| 3 + 2 * (seq % 7);
    let prefill = |context: &mut dyn Context| -> Result<(), EngineError> {
        context.clear();
        for seq in 0..count {
            let rows = (0..length(seq)).map(|pos| BatchRow { token: token(seq, pos), pos, seq, want_logits: false });
            match context.decode(&Batch { rows: rows.collect() }) {
                DecodeOutcome::Done => {}
                outcome => return Err(failed(outcome)),
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
    let mut alone: Vec<Vec<Vec<u32>>> = Vec::new();
    for seq in 0..count {
        let mut of_sequence = Vec::new();
        for (nth, _) in takes_part(seq).enumerate() {
            let nth = u32::try_from(nth).unwrap_or(u32::MAX);
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
            same &= expected.is_some_and(|expected| !expected.is_empty() && *expected == bits(context.logits(place)));
        }
    }
    context.clear();
    Ok(same)
}

fn bits(logits: Option<&[f32]>) -> Vec<u32> {
    logits.unwrap_or(&[]).iter().map(|logit| logit.to_bits()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_taken_up_at_boundaries_short_of_its_end() {
        let grid = Grid(NonZeroUsize::new(8).unwrap());
        assert_eq!([0, 7, 8, 9, 16].map(|position| grid.floor(position)), [0, 0, 8, 8, 16]);
        assert_eq!(grid.usable(20, 100), 16);
        assert_eq!(grid.usable(16, 16), 8, "the last chunk is computed again: its logits are wanted");
        assert_eq!(grid.usable(16, 17), 16);
        assert_eq!(grid.usable(5, 0), 0);
    }
}
