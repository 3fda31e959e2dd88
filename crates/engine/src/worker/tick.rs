//! One tick: a plan, a batch, one decode call, and its outcome for each request.
//!
//! Called by the worker's loop. Decode rows go first and whole, then prompts: short ones before slices of long ones, all
//! within the batch. A decode call that fails costs the requests in its batch and no others; every sequence that it touched
//! is taken back to where it was.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use poncho_cache::Tier;

use crate::backend::DecodeOutcome;
use crate::error::EngineError;
use crate::schedule::batch::{Budget, Plan, Work, plan_into};
use crate::schedule::pace::{QUIET, loss_left};
use crate::sequence::followers;
use crate::sequence::idle;
use crate::sequence::lifecycle::end_all;
use crate::sequence::slots::Slots;
use crate::sequence::task::{End, Task};
use crate::sequence::tasks::{TaskId, Tasks};
use crate::shared::Shared;
use crate::shared::speeds::DecodeSpeed;
use crate::shared::status::add;
use crate::state::restore::Wanted;
use crate::worker::drafting::{Beside, Drafting};
use crate::worker::group::Group;
use crate::worker::rows::Rows;

/// Decode calls that may fail one after the other before the context is considered broken.
const FAILURES_BEFORE_REBUILD: u32 = 2;

/// Why a worker ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It was asked to, or no handle can reach it.
    Done,
    /// Its context can no longer be used.
    Broken(String),
    /// The watchdog replaced it; it must touch nothing that is shared.
    GivenUp,
}

/// Runs ticks. Its buffers are kept between ticks, so that a tick allocates nothing once they are warm.
pub(crate) struct Ticker {
    budget: Budget,
    rows: Rows,
    plan: Plan,
    work: Vec<Work>,
    /// The requests in `work`.
    members: Vec<TaskId>,
    drafting: Drafting,
    decode_speed: DecodeSpeed,
    /// The place of the request that chose the last group, when groups take turns.
    turn: usize,
    /// The place of the short request that went last before its turn.
    short_turn: usize,
    /// Whether the last group was chosen by a short request before its turn.
    was_short: bool,
    /// Decode calls that failed one after the other.
    failures: u32,
    /// When the last decode call was over, unless the worker has been idle since.
    decoded_at: Option<Instant>,
    /// When several requests were there last.
    crowded_at: Option<Instant>,
    /// Up to which age the next call gives way to a request that arrives.
    yields: Option<Duration>,
}

impl Ticker {
    pub(crate) fn new(budget: Budget) -> Self {
        Self {
            budget,
            rows: Rows::default(),
            plan: Plan::default(),
            work: Vec::new(),
            members: Vec::new(),
            drafting: Drafting::default(),
            decode_speed: DecodeSpeed::default(),
            turn: 0,
            short_turn: 0,
            was_short: false,
            failures: 0,
            decoded_at: None,
            crowded_at: None,
            yields: None,
        }
    }

    /// The time until the next decode call is not overhead of the requests.
    pub(crate) fn pause_clock(&mut self) {
        self.decoded_at = None;
    }

    /// Rows of the last batch.
    pub(crate) fn rows(&self) -> usize {
        self.rows.count()
    }

    /// Runs one decode call for the requests, of which there is at least one.
    pub(crate) fn tick(
        &mut self,
        slots: &mut Slots,
        tasks: &mut Tasks,
        shared: &Shared,
        given_up: &AtomicBool,
    ) -> Result<(), Exit> {
        let group = self.choose_group(slots, tasks);
        self.members.clear();
        self.work.clear();
        for (id, task) in tasks.iter() {
            if task.end.is_none() && task.waits_for.is_none() && group.contains(task, slots) {
                self.members.push(id);
                self.work.push(task.work(shared.grid_of(&task.request)));
            }
        }
        self.pace(slots, tasks);
        plan_into(&self.work, &self.budget, &mut self.plan);
        if self.plan.is_empty() {
            // Prefills only, and room for none of them.
            if !followers::release_all(slots, tasks, shared) {
                self.fail_youngest(slots, tasks);
            }
            return Ok(());
        }
        self.order_decodes(tasks);
        let Self { plan, members, drafting, budget, rows, .. } = self;
        let decodes = plan.decodes.iter().map(|place| member(members, *place));
        // Beside a prompt, which takes a pass of its own, the gaps between decode rows matter little.
        let spare = if plan.prefills.is_empty() { budget.n_batch.saturating_sub(plan.decodes.len()) } else { 0 };
        rows.choose_bridges(decodes.clone(), spare, slots, tasks);
        let beside = Beside { prefill_rows: plan.prefill_rows(), bridges: rows.bridges(), n_batch: budget.n_batch };
        drafting.choose(decodes, &beside, slots, tasks, shared);
        self.fill_rows(tasks);
        if let Err(error) = slots.attach(&group.adapters) {
            self.fail_members(tasks, &error);
            return Ok(());
        }
        let began = Instant::now();
        match self.decode(slots, tasks, shared, given_up)? {
            DecodeOutcome::Done => {
                self.failures = 0;
                self.budget.prefill_rows = self.budget.n_batch.min(self.budget.prefill_rows.saturating_mul(2));
                self.take_results(slots, tasks, shared);
                let Self { plan, members, drafting, .. } = self;
                let decodes = plan.decodes.iter().map(|place| member(members, *place));
                drafting.record(began.elapsed(), decodes, tasks, shared);
                Ok(())
            }
            DecodeOutcome::NoRoom => {
                self.make_room(slots, tasks, shared);
                Ok(())
            }
            DecodeOutcome::Aborted => {
                self.roll_back_members(slots, tasks, shared);
                self.note_loss(tasks, began.elapsed());
                Ok(())
            }
            DecodeOutcome::Invalid => self.decode_failed(slots, tasks, shared, -1),
            DecodeOutcome::Fatal(code) => self.decode_failed(slots, tasks, shared, code),
        }
    }

    /// Decides how many rows long prompts get, and whether the call gives way to a request that arrives.
    fn pace(&mut self, slots: &mut Slots, tasks: &Tasks) {
        let rate = slots.restorer().estimates.prefill_rate();
        let now = Instant::now();
        if tasks.len() > 1 || !tasks.reading.is_empty() {
            self.crowded_at = Some(now);
        }
        let is_quiet = self.crowded_at.is_none_or(|at| now.duration_since(at) >= QUIET);
        let can_yield = self.budget.is_paced() && is_quiet && slots.can_yield();
        self.yields = match self.members.as_slice() {
            [id] if can_yield => {
                let task = tasks.get(*id);
                let is_long = task.is_prefilling() && !task.is_short() && !task.request.exact;
                loss_left(task.prompt_len, rate, task.lost).filter(|_| is_long)
            }
            _ => None,
        };
        self.budget.set_rate(rate, self.yields.unwrap_or_default());
    }

    /// After a call that was aborted: if it gave way, its request has lost that time, and others are there.
    fn note_loss(&mut self, tasks: &mut Tasks, took: Duration) {
        if let ([id], Some(_)) = (self.members.as_slice(), self.yields) {
            tasks.get_mut(*id).lost += took;
            self.crowded_at = Some(Instant::now());
        }
    }

    /// The group of the next decode call. Requests that cannot share one take turns; every other turn belongs to those that
    /// have little left to compute.
    fn choose_group(&mut self, slots: &Slots, tasks: &Tasks) -> Group {
        let task_at = |place: usize| tasks.get(tasks.nth(place));
        let count = tasks.len();
        let is_mixed = (1..count).any(|place| !Group::is_shared(task_at(place - 1), task_at(place), slots));
        let next = |turn: usize| if is_mixed { turn.wrapping_add(1) % count } else { 0 };
        // A group with only followers would have nothing to compute.
        let computes = |place: &usize| task_at(*place).waits_for.is_none();
        let is_short = |place: &usize| computes(place) && task_at(*place).is_short();
        let first = next(self.short_turn);
        let short = (0..count).map(|step| (first + step) % count).find(is_short);
        if let Some(place) = short.filter(|_| is_mixed && !self.was_short) {
            (self.short_turn, self.was_short) = (place, true);
            return Group::of(task_at(place), slots);
        }
        self.was_short = false;
        let first = next(self.turn);
        self.turn = (0..count).map(|step| (first + step) % count).find(computes).unwrap_or(first);
        Group::of(task_at(self.turn), slots)
    }

    /// With split cells llama.cpp computes neighbouring sequences together, and only if their rows come in this order.
    fn order_decodes(&mut self, tasks: &Tasks) {
        let Self { plan, members, .. } = self;
        plan.decodes.sort_unstable_by_key(|place| tasks.get(member(members, *place)).seq());
    }

    fn fill_rows(&mut self, tasks: &Tasks) {
        let Self { rows, plan, members, .. } = self;
        rows.clear();
        rows.push_decodes(plan.decodes.iter().map(|place| member(members, *place)), tasks);
        for slice in &plan.prefills {
            rows.push_prompt(tasks.get(member(members, slice.index)), slice.len);
        }
    }

    fn decode(
        &mut self,
        slots: &mut Slots,
        tasks: &Tasks,
        shared: &Shared,
        given_up: &AtomicBool,
    ) -> Result<DecodeOutcome, Exit> {
        let status = &shared.status;
        let alone = match self.members.as_slice() {
            [id] => Some(tasks.get(*id).id),
            _ => None,
        };
        let began = Instant::now();
        if let Some(decoded_at) = self.decoded_at {
            add(&status.overhead_nanos, nanos(began.duration_since(decoded_at)));
        }
        let (outcome, is_overdue) = slots.decode(self.rows.batch(), shared, alone, self.yields);
        slots.take_back_bridges(self.rows.bridges());
        if given_up.load(Ordering::SeqCst) {
            return Err(Exit::GivenUp);
        }
        if is_overdue && outcome == DecodeOutcome::Aborted {
            return Err(Exit::Broken("a decode call exceeded its bound".to_owned()));
        }
        self.decoded_at = Some(Instant::now());
        let took = began.elapsed();
        add(&status.ticks, 1);
        add(&status.decode_nanos, nanos(took));
        let prefill_rows = self.plan.prefill_rows();
        if outcome == DecodeOutcome::Done {
            add(&status.prefilled, prefill_rows as u64);
            if self.plan.decodes.is_empty() {
                slots.restorer().estimates.record_prefill(prefill_rows, took);
            } else if prefill_rows == 0 {
                self.decode_speed.record(self.plan.decodes.len(), took);
            }
            let estimates = &slots.restorer().estimates;
            let [ram, disk] = [Tier::Ram, Tier::Disk].map(|tier| estimates.restore_rate(tier));
            status.speeds.set(estimates.prefill_rate(), &self.decode_speed, ram, disk);
        }
        Ok(outcome)
    }

    /// Moves every request of the batch on and draws from the logits that are there.
    fn take_results(&mut self, slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
        let mut row = 0;
        let mut drawn = 0;
        for place in &self.plan.decodes {
            let task = tasks.get_mut(member(&self.members, *place));
            let drafted = task.drafts.next().len();
            row = self.rows.first_of(task.seq(), row);
            let tokens = take_decode(slots, task, row, shared);
            drawn += tokens;
            row += 1 + drafted;
            self.drafting.settle(task, tokens.saturating_sub(1), shared);
            if tokens <= drafted && drafted > 0 && !slots.take_back(&task.lease) {
                tracing::warn!(model = shared.config.id, "a draft could not be taken back; its sequence is restored");
                restore(slots, task, shared);
            }
        }
        for slice in &self.plan.prefills {
            row += slice.len;
            let task = tasks.get_mut(member(&self.members, slice.index));
            task.lease.advance(slice.len);
            if task.is_prefilling() {
                task.report_progress();
            }
            drawn += usize::from(take_row(slots, task, row - 1, shared));
        }
        add(&shared.status.generated, drawn as u64);
    }

    /// The context has no cells for the batch: idle sequences go first, then steps become smaller, and at last the youngest
    /// request fails.
    fn make_room(&mut self, slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
        if self.drafting.rows() > 0 {
            self.drafting.pause();
            return;
        }
        if idle::make_room(slots, shared) {
            return;
        }
        let rows = self.plan.prefill_rows();
        if rows > 1 {
            self.budget.prefill_rows = rows / 2;
            return;
        }
        self.fail_youngest(slots, tasks);
    }

    fn fail_youngest(&mut self, slots: &Slots, tasks: &mut Tasks) {
        let held: usize = tasks.iter().map(|(_, task)| task.n_past()).sum();
        let cells = slots.info().n_cells as usize;
        let (needed, free) = (self.rows.count().max(1), cells.saturating_sub(held));
        self.budget.prefill_rows = self.budget.n_batch;
        let youngest = tasks.iter().rfind(|(_, task)| task.end.is_none()).map(|(id, _)| id);
        if let Some(id) = youngest {
            tasks.get_mut(id).end = Some(End::Failed(EngineError::NoRoom { needed, free }));
        }
    }

    fn fail_members(&self, tasks: &mut Tasks, error: &EngineError) {
        for id in &self.members {
            tasks.get_mut(*id).end.get_or_insert_with(|| End::Failed(error.clone()));
        }
    }

    /// The requests of the batch fail. If that repeats, the context is replaced and the other requests are restored.
    fn decode_failed(&mut self, slots: &mut Slots, tasks: &mut Tasks, shared: &Shared, code: i32) -> Result<(), Exit> {
        tracing::error!(model = shared.config.id, code, rows = self.rows.count(), "decode failed");
        self.failures += 1;
        // Only requests with a row in the batch are touched.
        for task in tasks.iter_mut().filter(|task| self.rows.contains(task.seq())) {
            task.end.get_or_insert(End::Failed(EngineError::Decode { code }));
        }
        if self.failures < FAILURES_BEFORE_REBUILD {
            return Ok(());
        }
        self.failures = 0;
        end_all(slots, tasks, shared);
        tracing::warn!(model = shared.config.id, "the context is replaced by a new one");
        slots.rebuild(shared).map_err(|error| Exit::Broken(error.to_string()))?;
        for place in 0..tasks.len() {
            restore(slots, tasks.get_mut(tasks.nth(place)), shared);
        }
        Ok(())
    }

    /// After an aborted call: every sequence with a row in the batch goes back to what its lease counts.
    fn roll_back_members(&self, slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
        for id in &self.members {
            let task = tasks.get_mut(*id);
            if self.rows.contains(task.seq()) && !slots.rewind(&task.lease) {
                restore(slots, task, shared);
            }
        }
    }
}

/// Takes the row of a request with all its tokens but the last computed, and the draft rows after it as long as they are what
/// is drawn. Returns the number of tokens drawn.
fn take_decode(slots: &Slots, task: &mut Task, row: usize, shared: &Shared) -> usize {
    let mut drawn = 0;
    loop {
        task.lease.advance(1);
        if !take_row(slots, task, row + drawn, shared) {
            return drawn;
        }
        let guessed = task.drafts.next().get(drawn);
        drawn += 1;
        if task.end.is_some() || guessed.is_none() || guessed != task.tokens.last() {
            return drawn;
        }
    }
}

/// Takes the logits of a row, if its request wants them. Returns whether a token was drawn.
fn take_row(slots: &Slots, task: &mut Task, row: usize, shared: &Shared) -> bool {
    if !task.wants_logits_at(task.n_past()) {
        return false;
    }
    let Some(logits) = slots.logits(row) else {
        let reason = "the backend returned no logits; load the model again".to_owned();
        task.end = Some(End::Failed(EngineError::Backend { call: "decode".to_owned(), reason }));
        return false;
    };
    let at_end = task.n_past() == task.tokens.len();
    let prompt_end = task.n_past() == task.prompt_len;
    if at_end {
        task.draw(logits, &*shared.model);
    }
    let since = task.n_past().saturating_sub(task.last_save.max(task.prompt_len));
    if task.end.is_some() || prompt_end || !at_end || slots.policy().continued_due(since) {
        task.copy_logits(logits);
    }
    at_end
}

/// The request behind a place of the plan.
#[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
fn member(members: &[TaskId], place: usize) -> TaskId {
    *members.get(place).expect("invariant: a plan names places of the work list")
}

/// Fills the sequence of a request again from the cache, as far as that goes; the rest is computed again.
#[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
fn restore(slots: &mut Slots, task: &mut Task, shared: &Shared) {
    let grid = shared.grid_of(&task.request);
    // The last token is computed in any case: its logits are needed. With a grid, only the prompt was computed on it.
    let known = task.tokens.len().saturating_sub(1);
    let known = grid.map_or(known, |_| known.min(task.prompt_len));
    let prompt = task.tokens.get(..known).expect("invariant: the known tokens are tokens of the request");
    slots.restore(&mut task.lease, &Wanted { namespace: &task.namespace, prompt, grid });
    task.read = task.read.min(task.n_past());
    task.forget_logits();
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
