//! The drafts of one tick: which requests get draft rows, and what became of them.
//!
//! Used by the ticker, before the batch is filled and after its results are taken. `schedule/drafts.rs` decides how many rows
//! pay. Rows that were not drawn are taken back in the same tick, so a sequence never holds a token that is not its request's.

use std::time::Duration;

use poncho_api::DraftRule;

use crate::backend::KvLayout;
use crate::schedule::bridges::Bridge;
use crate::schedule::drafts::{Candidate, DraftPlanner, Joining, LONGEST, Tick};
use crate::sequence::slots::Slots;
use crate::sequence::task::Task;
use crate::sequence::tasks::{TaskId, Tasks};
use crate::shared::Shared;
use crate::shared::status::add;

/// The most draft rows of one tick.
const MOST_ROWS: usize = 64;
/// Ticks without drafts after a batch that found no room.
const PAUSE: u32 = 64;

/// What a tick has beside its decode rows.
pub(crate) struct Beside<'a> {
    /// Rows of prompts.
    pub(crate) prefill_rows: usize,
    /// Resting sequences with as many rows as the request with most of them.
    pub(crate) bridges: &'a [Bridge],
    /// Rows that fit in all.
    pub(crate) n_batch: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Drafting {
    planner: DraftPlanner,
    /// The tick that drafts were last chosen for.
    tick: Option<Tick>,
    candidates: Vec<Candidate>,
    /// Draft rows of the requests with a decode row.
    lengths: Vec<usize>,
    /// Draft tokens of this tick that were drawn, by request with a decode row.
    accepted: Vec<usize>,
    /// Ticks that have no drafts.
    paused: u32,
}

impl Drafting {
    /// Draft rows in this tick.
    pub(crate) fn rows(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// The context had no room: the next ticks go without drafts.
    pub(crate) fn pause(&mut self) {
        self.paused = PAUSE;
    }

    /// Chooses the drafts of a tick: `decodes` have a decode row.
    pub(crate) fn choose(
        &mut self,
        decodes: impl Iterator<Item = TaskId> + Clone,
        beside: &Beside<'_>,
        slots: &mut Slots,
        tasks: &mut Tasks,
        shared: &Shared,
    ) {
        let Beside { prefill_rows, bridges, n_batch } = *beside;
        self.lengths.clear();
        self.accepted.clear();
        self.tick = None;
        // A call that failed leaves its drafts behind.
        decodes.clone().for_each(|id| tasks.get_mut(id).drafts.cut(0));
        self.paused = self.paused.saturating_sub(1);
        let count = decodes.clone().count();
        let bridging = bridges.len() * Slots::MOST_BRIDGE_ROWS;
        let room = n_batch.saturating_sub(count + prefill_rows + bridging).min(MOST_ROWS);
        if count == 0 || self.paused > 0 || slots.draft_obstacle().is_some() {
            return;
        }
        let rate = slots.restorer().estimates.prefill_rate();
        #[expect(clippy::cast_precision_loss, reason = "a batch has few rows")]
        let prefill_seconds = rate.map_or(0.0, |rate| prefill_rows as f64 / rate);
        let joining = match slots.info().kv {
            KvLayout::Split => Joining::Neighbours {
                requests: decodes.clone().map(|id| tasks.get(id).seq()).collect(),
                bridges: bridges.iter().map(|bridge| bridge.seq).collect(),
            },
            KvLayout::Unified => Joining::Together,
        };
        let tick = Tick { decodes: count, prefill_seconds, room, joining };
        // Prompts at a speed that is not known say nothing about the time of decode rows.
        if prefill_rows > 0 && rate.is_none() {
            return;
        }
        let always = shared.config.draft_rule == DraftRule::Always;
        if !always && !self.planner.is_worth_looking(&tick) {
            self.planner.plan(&tick, &[]);
            self.tick = Some(tick);
            return;
        }
        self.candidates.clear();
        for id in decodes.clone() {
            let is_alone = count == 1 && prefill_rows == 0;
            let candidate = self.look(tasks.get_mut(id), room, is_alone, slots, shared);
            self.candidates.push(candidate);
        }
        if always {
            let mut left = room;
            self.lengths.extend(self.candidates.iter().map(|candidate| {
                let rows = candidate.available().min(left);
                left -= rows;
                rows
            }));
        } else {
            self.lengths.extend_from_slice(self.planner.plan(&tick, &self.candidates));
        }
        self.tick = Some(tick);
        for (id, rows) in decodes.zip(&mut self.lengths) {
            let task = tasks.get_mut(id);
            if task.request.exact {
                *rows = slots.exact_draft_rows(*rows);
            }
            task.drafts.cut(*rows);
        }
    }

    /// What could be drafted for a request.
    fn look(&self, task: &mut Task, room: usize, is_alone: bool, slots: &Slots, shared: &Shared) -> Candidate {
        let most = LONGEST.min(room).min(task.tokens_left());
        let most = slots.revocable(&task.lease, most);
        // Rows beside others may change a bit of an exact reply. A token that is computed again needs no guess.
        let is_open = task.n_past() + 1 == task.tokens.len() && (is_alone || !task.request.exact);
        if !is_open {
            return Candidate::NONE;
        }
        let (ignores, model) = (task.request.ignore_eos, &shared.model);
        let ends = |token| !ignores && model.is_eog(token);
        let Some(draft) = task.drafts.look(&task.tokens, shared.library.as_ref(), most, ends) else {
            return Candidate::NONE;
        };
        let (available, matched) = (draft.tokens.len(), draft.matched);
        self.planner.acceptance.candidate(&task.drafts.acceptance, matched, available)
    }

    /// A request has drawn the tokens of this tick.
    pub(crate) fn settle(&mut self, task: &mut Task, accepted: usize, shared: &Shared) {
        let drafted = task.drafts.next().len();
        // What follows the last token of a reply was not compared with a draw.
        let is_refused = accepted < drafted && task.end.is_none();
        if let Some(matched) = task.drafts.settle(accepted, is_refused) {
            self.planner.acceptance.record(matched, accepted, is_refused);
        }
        self.accepted.push(accepted);
        let status = &shared.status;
        add(&status.drafted, drafted as u64);
        add(&status.accepted, accepted as u64);
        add(&status.steps, 1);
    }

    /// The tick of `decodes` is over after this time.
    pub(crate) fn record(
        &mut self,
        took: Duration,
        decodes: impl Iterator<Item = TaskId>,
        tasks: &mut Tasks,
        shared: &Shared,
    ) {
        let Some(tick) = self.tick.take() else { return };
        let accepted = self.accepted.iter().sum();
        let Some(price) = self.planner.record(&tick, &self.lengths, accepted, took.as_secs_f64()) else { return };
        for (id, accepted) in decodes.zip(&self.accepted) {
            #[expect(clippy::cast_possible_truncation, reason = "a float that does not fit becomes the nearest number")]
            let micros = (price.saved(*accepted) * 1e6).round() as i64;
            tasks.get_mut(id).drafts.add_saved(micros);
            shared.status.add_saved(micros);
        }
    }
}
