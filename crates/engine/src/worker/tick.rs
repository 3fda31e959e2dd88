//! One tick: plan, batch, one decode call, and what its outcome means for each request.
//!
//! Part of the worker. Decode rows go first and whole, then slices of prompts, all within the batch. A decode that fails
//! costs the requests in that batch and nobody else; every sequence it touched is taken back to where it was.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::adapters::AdapterSet;
use crate::backend::{BatchRow, DecodeOutcome, SeqId};
use crate::error::EngineError;
use crate::schedule::batch::plan_into;
use crate::sequence::task::{End, Task};
use crate::state::restore::{Wanted, find_plan};
use crate::worker::status::add;
use crate::worker::{Exit, Worker};

/// Decode calls that may fail one after the other before the context is thought to be broken.
const FAILURES_BEFORE_REBUILD: u32 = 2;

impl Worker {
    /// Runs one decode call.
    pub(crate) fn tick(&mut self) -> Result<(), Exit> {
        let (set, lane) = self.choose_group();
        let mut members = std::mem::take(&mut self.members);
        members.clear();
        self.work.clear();
        for (place, task) in self.tasks.iter().enumerate() {
            if task.end.is_none() && task.follow.is_none() && self.is_in_group(task, &set, lane) {
                members.push(place);
                self.work.push(task.work(self.grid_of(&task.request)));
            }
        }
        self.members = members;
        plan_into(&self.work, &self.budget, &mut self.plan);
        if self.plan.is_empty() {
            // Prefills only, and room for none of them.
            if !self.release_followers() {
                self.fail_youngest();
            }
            return Ok(());
        }
        self.order_decodes();
        self.fill_batch();
        if let Err(error) = self.attach(&set) {
            self.fail_members(&EngineError::Backend { call: "attaching adapters".to_owned(), reason: error });
            return Ok(());
        }
        match self.decode()? {
            DecodeOutcome::Done => {
                self.failures = 0;
                self.budget.prefill_rows = self.budget.n_batch.min(self.budget.prefill_rows.saturating_mul(2));
                self.take_results();
                Ok(())
            }
            DecodeOutcome::NoRoom => {
                self.make_room();
                Ok(())
            }
            DecodeOutcome::Aborted => {
                self.roll_back_members();
                Ok(())
            }
            DecodeOutcome::Invalid => self.decode_failed(-1),
            DecodeOutcome::Fatal(code) => self.decode_failed(code),
        }
    }

    fn attach(&mut self, set: &Arc<AdapterSet>) -> Result<(), String> {
        if !Arc::ptr_eq(set, &self.attached) {
            self.context.set_adapters(&set.uses()).map_err(|error| error.to_string())?;
            self.attached = Arc::clone(set);
        }
        Ok(())
    }

    /// With split cells llama.cpp computes neighbouring sequences together, and only if their rows come in this order.
    fn order_decodes(&mut self) {
        let Self { plan, members, tasks, .. } = self;
        let seq_of = |place: &usize| members.get(*place).and_then(|place| tasks.get(*place)).map(|task| task.seq);
        plan.decodes.sort_unstable_by_key(seq_of);
    }

    fn fill_batch(&mut self) {
        let Self { batch, plan, members, tasks, .. } = self;
        batch.rows.clear();
        let task_of = |place: usize| members.get(place).and_then(|place| tasks.get(*place));
        for task in plan.decodes.iter().filter_map(|place| task_of(*place)) {
            push_rows(&mut batch.rows, task, 1);
        }
        for slice in &plan.prefills {
            if let Some(task) = task_of(slice.index) {
                push_rows(&mut batch.rows, task, slice.len);
            }
        }
    }

    fn decode(&mut self) -> Result<DecodeOutcome, Exit> {
        let status = &self.shared.status;
        let alone = match self.members.as_slice() {
            [place] => self.tasks.get(*place).map(|task| task.id),
            _ => None,
        };
        let began = Instant::now();
        if let Some(decoded_at) = self.decoded_at {
            add(&status.overhead_nanos, nanos(began.duration_since(decoded_at)));
        }
        self.shared.running.begin(&self.abort, alone);
        let outcome = self.context.decode(&self.batch);
        if outcome == DecodeOutcome::Done {
            self.context.synchronize();
        }
        if self.given_up.load(Ordering::SeqCst) {
            return Err(Exit::GivenUp);
        }
        if self.shared.running.end(&self.abort) && outcome == DecodeOutcome::Aborted {
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
                self.estimates.record_prefill(prefill_rows, took);
            }
        }
        Ok(outcome)
    }

    /// Moves every request of the batch on and draws from the logits that are there.
    fn take_results(&mut self) {
        let Self { context, plan, members, tasks, shared, policy, .. } = self;
        let mut row = 0;
        let mut drawn = 0;
        let decodes = plan.decodes.iter().map(|place| (*place, 1));
        let prefills = plan.prefills.iter().map(|slice| (slice.index, slice.len));
        for (place, rows) in decodes.chain(prefills) {
            row += rows;
            let Some(task) = members.get(place).and_then(|place| tasks.get_mut(*place)) else { continue };
            task.n_past += rows;
            if !task.wants_logits_at(task.n_past) {
                continue;
            }
            let Some(logits) = context.logits(row - 1) else {
                let reason = "no logits came out; load the model again".to_owned();
                task.end = Some(End::Failed(EngineError::Backend { call: "decode".to_owned(), reason }));
                continue;
            };
            let at_end = task.n_past == task.tokens.len();
            let prompt_end = task.n_past == task.prompt_len;
            if at_end {
                task.draw(logits, &*shared.model);
                drawn += 1;
            }
            let since = task.n_past.saturating_sub(task.last_save.max(task.prompt_len));
            if task.end.is_some() || prompt_end || !at_end || policy.continued_due(since) {
                task.copy_logits(logits);
            }
        }
        add(&shared.status.generated, drawn);
    }

    /// The context has no cells for the batch: what nobody needs goes first, then idle sessions, then smaller steps, and
    /// at last the request that came last.
    fn make_room(&mut self) {
        if self.give_up_idle_cells() {
            return;
        }
        let rows = self.plan.prefill_rows();
        if rows > 1 {
            self.budget.prefill_rows = rows / 2;
            return;
        }
        self.fail_youngest();
    }

    fn fail_youngest(&mut self) {
        let held: usize = self.tasks.iter().map(|task| task.n_past).sum();
        let cells = self.context.info().n_cells as usize;
        let (needed, free) = (self.batch.rows.len().max(1), cells.saturating_sub(held));
        self.budget.prefill_rows = self.budget.n_batch;
        if let Some(task) = self.tasks.iter_mut().rfind(|task| task.end.is_none()) {
            task.end = Some(End::Failed(EngineError::NoRoom { needed, free }));
        }
    }

    fn fail_members(&mut self, error: &EngineError) {
        for place in &self.members {
            if let Some(task) = self.tasks.get_mut(*place) {
                task.end.get_or_insert_with(|| End::Failed(error.clone()));
            }
        }
    }

    /// The requests of the batch fail; if that goes on, the context is built anew and the others are put back into it.
    fn decode_failed(&mut self, code: i32) -> Result<(), Exit> {
        tracing::error!(model = self.shared.config.id, code, rows = self.batch.rows.len(), "decode failed");
        self.failures += 1;
        self.fail_batch(code);
        if self.failures < FAILURES_BEFORE_REBUILD {
            return Ok(());
        }
        self.failures = 0;
        self.end_tasks();
        self.rebuild_context()
    }

    /// Only requests that had a row in the batch are touched.
    fn fail_batch(&mut self, code: i32) {
        let in_batch = |seq: SeqId| self.batch.rows.iter().any(|row| row.seq == seq);
        for task in &mut self.tasks {
            if in_batch(task.seq) {
                task.end.get_or_insert(End::Failed(EngineError::Decode { code }));
            }
        }
    }

    fn rebuild_context(&mut self) -> Result<(), Exit> {
        tracing::warn!(model = self.shared.config.id, "the context is built anew");
        let shared = Arc::clone(&self.shared);
        self.context = shared
            .model
            .new_context(&shared.config.context, Arc::clone(&self.abort))
            .map_err(|error| Exit::Broken(error.to_string()))?;
        self.live.clear();
        let idle: Vec<SeqId> = self.admission.idle_sessions().map(|(seq, _, _)| seq).collect();
        for seq in idle {
            self.admission.release_session(seq);
        }
        let none = AdapterSet::new(Vec::new(), &shared.file, self.hashes);
        self.attached = Arc::new(none.map_err(|error| Exit::Broken(error.to_string()))?);
        for place in 0..self.tasks.len() {
            self.put_back(place);
        }
        Ok(())
    }

    /// After an aborted call: every sequence that had a row goes back to what its request knows of.
    fn roll_back_members(&mut self) {
        for place in self.members.clone() {
            let Some(task) = self.tasks.get(place) else { continue };
            let (seq, end) = (task.seq, u32::try_from(task.n_past).unwrap_or(u32::MAX));
            if !self.batch.rows.iter().any(|row| row.seq == seq) {
                continue;
            }
            // Cutting is exact on plain attention only; the others start from their last saved state.
            if !(self.context.info().memory.can_cut() && self.context.remove(seq, end..u32::MAX)) {
                self.put_back(place);
            }
        }
    }

    /// Fills the sequence of a request again from the cache, as far as it goes; the rest is computed again.
    fn put_back(&mut self, place: usize) {
        let Self { shared, context, estimates, tasks, staging, exact, .. } = self;
        let Some(task) = tasks.get_mut(place) else { return };
        let grid = exact.as_ref().filter(|_| task.request.exact).map(|exact| exact.grid);
        // The last token is computed in any case: its logits are needed. On a grid, only the prompt was computed so.
        let known = match grid {
            Some(_) => task.prompt_len.min(task.tokens.len().saturating_sub(1)),
            None => task.tokens.len().saturating_sub(1),
        };
        let prompt = task.tokens.get(..known).unwrap_or(&[]);
        let plan =
            find_plan(&shared.cache, context.info().memory, &Wanted { namespace: &task.namespace, prompt, grid }, None);
        let mut restorer = shared.restorer(&mut **context, estimates, staging);
        task.n_past = restorer.restore(task.seq, &Wanted { namespace: &task.namespace, prompt, grid }, plan).n_past;
        task.read = task.read.min(task.n_past);
        task.logits_for = usize::MAX;
    }
}

fn push_rows(rows: &mut Vec<BatchRow>, task: &Task, count: usize) {
    let tokens = task.tokens.iter().enumerate().skip(task.n_past).take(count);
    let last = task.n_past + count;
    rows.extend(tokens.map(|(position, token)| BatchRow {
        token: *token,
        pos: u32::try_from(position).unwrap_or(u32::MAX),
        seq: task.seq,
        want_logits: position + 1 == last && task.wants_logits_at(last),
    }));
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
