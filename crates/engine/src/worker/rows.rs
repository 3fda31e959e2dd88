//! The rows of one decode call: those of requests, and those of resting sequences that join the passes of requests.
//!
//! Filled by the ticker before each call. Its buffers are kept, so that a call allocates nothing once they are warm. A row
//! of a resting sequence never outlives its call, and its logits are never read.

use crate::backend::{Batch, BatchRow, SeqId};
use crate::schedule::bridges::Bridge;
use crate::sequence::slots::Slots;
use crate::sequence::task::Task;
use crate::sequence::tasks::{TaskId, Tasks};
use crate::state::position::position;

/// Of a row that nobody reads. Every vocabulary has it.
const ANY_TOKEN: u32 = 0;

/// See the module.
#[derive(Default)]
pub(crate) struct Rows {
    batch: Batch,
    bridges: Vec<Bridge>,
}

impl Rows {
    pub(crate) fn batch(&self) -> &Batch {
        &self.batch
    }

    pub(crate) fn count(&self) -> usize {
        self.batch.rows.len()
    }

    pub(crate) fn contains(&self, seq: SeqId) -> bool {
        self.batch.rows.iter().any(|row| row.seq == seq)
    }

    /// The resting sequences with rows in this call, ascending.
    pub(crate) fn bridges(&self) -> &[Bridge] {
        &self.bridges
    }

    /// Chooses the resting sequences for these decode rows, which are in the order of their sequences. `spare` rows fit into
    /// the batch beside them.
    pub(crate) fn choose_bridges(
        &mut self,
        decodes: impl Iterator<Item = TaskId> + Clone,
        spare: usize,
        slots: &Slots,
        tasks: &Tasks,
    ) {
        // Another row beside them may change a bit of an exact reply.
        let is_exact = decodes.clone().any(|id| tasks.get(id).request.exact);
        let running = decodes.filter(|_| !is_exact).map(|id| {
            let task = tasks.get(id);
            Bridge { seq: task.seq(), held: task.n_past() }
        });
        slots.find_bridges(running, &mut self.bridges);
        if self.bridges.len() * Slots::MOST_BRIDGE_ROWS > spare {
            self.bridges.clear();
        }
    }

    /// Begins another call.
    pub(crate) fn clear(&mut self) {
        self.batch.rows.clear();
    }

    /// Adds the decode rows of requests with their drafts, and the rows of resting sequences between them.
    pub(crate) fn push_decodes(&mut self, decodes: impl Iterator<Item = TaskId> + Clone, tasks: &Tasks) {
        let Self { batch, bridges } = self;
        let longest = decodes.clone().map(|id| tasks.get(id).drafts.next().len()).max().unwrap_or(0);
        let mut bridges = bridges.iter().peekable();
        for id in decodes {
            let task = tasks.get(id);
            while let Some(bridge) = bridges.next_if(|bridge| bridge.seq < task.seq()) {
                push_bridge(&mut batch.rows, *bridge, 1 + longest);
            }
            push_rows(&mut batch.rows, task, 1);
            push_draft(&mut batch.rows, task);
        }
        debug_assert!(bridges.next().is_none(), "invariant: a bridge has requests on both sides");
    }

    /// Adds rows of a prompt.
    pub(crate) fn push_prompt(&mut self, task: &Task, count: usize) {
        push_rows(&mut self.batch.rows, task, count);
    }

    /// The first row of a sequence at `from` or later.
    #[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
    pub(crate) fn first_of(&self, seq: SeqId, from: usize) -> usize {
        let place = self.batch.rows.iter().skip(from).position(|row| row.seq == seq);
        from + place.expect("invariant: a request of the call has a row in it")
    }
}

fn push_rows(rows: &mut Vec<BatchRow>, task: &Task, count: usize) {
    let (first, last) = (task.n_past(), task.n_past() + count);
    debug_assert!(count > 0 && last <= task.tokens.len(), "invariant: {first}..{last} of {} tokens", task.tokens.len());
    let tokens = task.tokens.iter().enumerate().skip(first).take(count);
    rows.extend(tokens.map(|(place, token)| BatchRow {
        token: *token,
        pos: position(place),
        seq: task.seq(),
        want_logits: place + 1 == last && task.wants_logits_at(last),
    }));
}

/// Adds the rows of a draft, after the decode row of its request.
fn push_draft(rows: &mut Vec<BatchRow>, task: &Task) {
    let first = task.n_past() + 1;
    debug_assert!(task.drafts.next().is_empty() || first == task.tokens.len(), "invariant: a draft follows all tokens");
    rows.extend((first..).zip(task.drafts.next()).map(|(place, token)| BatchRow {
        token: *token,
        pos: position(place),
        seq: task.seq(),
        want_logits: true,
    }));
}

/// As many rows as the request with most of them has: a pass computes equal numbers of rows.
fn push_bridge(rows: &mut Vec<BatchRow>, bridge: Bridge, count: usize) {
    let places = bridge.held..bridge.held + count;
    let row = |place| BatchRow { token: ANY_TOKEN, pos: position(place), seq: bridge.seq, want_logits: false };
    rows.extend(places.map(row));
}
