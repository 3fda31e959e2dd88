//! Requests whose stored state is on its way from a disk: they have a sequence, compute nothing, and nobody waits with them.
//!
//! Part of the worker. A request whose rows are all in memory never comes here. The others are looked at between two ticks: what
//! has come is set, and what has not come by its deadline is computed instead. They are outside of the worker's tasks until
//! then, so that nothing takes their sequences for filled. A late read must never change a reply, only its time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_cache::RestorePlan;

use crate::sequence::task::{End, Task};
use crate::state::chosen::{Chosen, Reads};
use crate::state::restore::{ATTEMPTS, Failure, Restored, Wanted, find_plan};
use crate::state::segment_reader::{PartId, Parts, Reading};
use crate::worker::Worker;

/// Bytes that may be on their way at the same time; a single restore may have more. Those beyond wait for their turn.
const IN_FLIGHT: u64 = 256 << 20;

/// A request whose state is being read. See the module.
pub(crate) struct Restoring {
    pub(crate) task: Task,
    chosen: Chosen,
    missing: Vec<PartId>,
    bytes: u64,
    /// `None` while others are read.
    reading: Option<Reading>,
    limits: Limits,
}

/// What is left of a request's patience, over all plans that it tries.
#[derive(Debug, Clone, Copy)]
struct Limits {
    attempts: usize,
    /// Set when the first byte is asked for.
    until: Option<Instant>,
}

impl Restoring {
    fn is_over(&self, now: Instant) -> bool {
        let is_late = self.limits.until.is_some_and(|until| until <= now);
        self.reading.as_ref().is_some_and(|reading| is_late || reading.is_over())
    }
}

impl Worker {
    /// Puts a request to work with what a plan has for it: at once if all of that is in memory.
    pub(crate) fn restore_from(&mut self, task: Task, plan: Option<RestorePlan>) {
        let limits = Limits { attempts: ATTEMPTS, until: None };
        self.restore_within(task, plan.map(Arc::new), limits);
    }

    fn restore_within(&mut self, task: Task, plan: Option<Arc<RestorePlan>>, mut limits: Limits) {
        let grid = self.grid_of(&task.request);
        let memory = self.context.info().memory;
        let mut next = plan;
        while let Some(plan) = next.take().filter(|_| limits.attempts > 0) {
            limits.attempts -= 1;
            let wanted = Wanted { namespace: &task.namespace, prompt: &task.tokens, grid };
            let Ok(chosen) = self.restorer().choose(&wanted, plan, &Parts::default(), Reads::Allowed) else { break };
            let missing = chosen.missing();
            if !missing.is_empty() {
                // Its cells are of use to others meanwhile.
                self.context.remove(task.seq, 0..u32::MAX);
                let bytes = chosen.bytes_of(&missing);
                self.restoring.push(Restoring { task, chosen, missing, bytes, reading: None, limits });
                return self.start_reads();
            }
            let set = self.set_chosen(&task, &chosen, &Parts::default(), Duration::ZERO);
            // Rows are not held any longer than they are needed.
            drop(chosen);
            match set {
                Ok(restored) => return self.settle(task, restored),
                // The row is out of the cache; what lies before it may still serve.
                Err(Failure::Unusable) => next = find_plan(&self.shared.cache, memory, &wanted, None).map(Arc::new),
                Err(Failure::NoRoom | Failure::Refused) => break,
            }
        }
        self.context.remove(task.seq, 0..u32::MAX);
        self.settle(task, Restored::default());
    }

    /// Sets what is at hand. What others left behind is in the cache too, so it makes room.
    fn set_chosen(
        &mut self,
        task: &Task,
        chosen: &Chosen,
        parts: &Parts,
        reading: Duration,
    ) -> Result<Restored, Failure> {
        loop {
            let set = self.restorer().set(task.seq, chosen, parts, reading);
            if !matches!(set, Err(Failure::NoRoom)) {
                return set;
            }
            self.context.remove(task.seq, 0..u32::MAX);
            if !self.give_up_idle_cells() {
                return set;
            }
        }
    }

    /// Requests whose reads are over, or were waited for long enough, go on.
    pub(crate) fn look_at_reads(&mut self) {
        if self.restoring.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(place) = self.restoring.iter().position(|restoring| restoring.is_over(now)) {
            let restoring = self.restoring.remove(place);
            self.finish_reading(restoring);
        }
        self.start_reads();
    }

    /// When the next request has waited long enough.
    pub(crate) fn reads_until(&self) -> Option<Instant> {
        let started = self.restoring.iter().filter(|restoring| restoring.reading.is_some());
        started.filter_map(|restoring| restoring.limits.until).min()
    }

    /// Ends requests that are still being read for, those for which `is_meant` says so.
    pub(crate) fn cancel_reads(&mut self, is_meant: impl Fn(&Task) -> bool) {
        // In order: they are ended as if they had just begun.
        let gone: Vec<Restoring> = self.restoring.extract_if(.., |restoring| is_meant(&restoring.task)).collect();
        for Restoring { mut task, .. } in gone {
            task.end = Some(End::CANCELLED);
            self.tasks.push(task);
        }
    }

    /// Starts the reads of those whose turn it is, in order.
    fn start_reads(&mut self) {
        let in_flight = self.restoring.iter().filter(|restoring| restoring.reading.is_some());
        let mut in_flight: u64 = in_flight.map(|restoring| restoring.bytes).sum();
        let mut refused = Vec::new();
        for place in 0..self.restoring.len() {
            let Some(restoring) = self.restoring.get(place).filter(|restoring| restoring.reading.is_none()) else {
                continue;
            };
            let bytes = restoring.bytes;
            if in_flight > 0 && in_flight.saturating_add(bytes) > IN_FLIGHT {
                break;
            }
            in_flight = in_flight.saturating_add(bytes);
            let Self { restoring, shared, staging, estimates, commands, context, .. } = self;
            let Some(entry) = restoring.get_mut(place) else { break };
            let restorer = shared.restorer(&mut **context, estimates, staging);
            entry.limits.until.get_or_insert_with(|| Instant::now() + restorer.patience(&entry.chosen));
            let wake = Some(commands.clone());
            match shared.readers.read(restorer.buffers, &entry.chosen.plan, &entry.missing, wake) {
                Ok(reading) => entry.reading = Some(reading),
                Err(_) => refused.push(place),
            }
        }
        for place in refused.into_iter().rev() {
            let Restoring { task, .. } = self.restoring.remove(place);
            self.settle(task, Restored::default());
        }
    }

    fn finish_reading(&mut self, restoring: Restoring) {
        let Restoring { task, chosen, missing, reading, limits, .. } = restoring;
        let Some(reading) = reading else { return self.settle(task, Restored::default()) };
        let grid = self.grid_of(&task.request);
        let wanted = Wanted { namespace: &task.namespace, prompt: &task.tokens, grid };
        let is_late = !reading.is_over();
        let gathered = self.restorer().gather(&wanted, chosen, &missing, reading);
        let restored = gathered.and_then(|(chosen, parts, took)| self.set_chosen(&task, &chosen, &parts, took));
        match restored {
            Ok(restored) => self.settle(task, restored),
            Err(Failure::Unusable) => {
                let memory = self.context.info().memory;
                let plan = find_plan(&self.shared.cache, memory, &wanted, None).map(Arc::new);
                self.restore_within(task, plan, limits);
            }
            Err(Failure::NoRoom | Failure::Refused) => {
                self.context.remove(task.seq, 0..u32::MAX);
                self.settle(task, Restored::default());
            }
        }
        if is_late {
            self.choose_again();
        }
    }

    /// A tier turned out to be slow: those that only wait for their turn to read choose again.
    fn choose_again(&mut self) {
        let queued = self.restoring.extract_if(.., |restoring| restoring.reading.is_none());
        for Restoring { task, chosen, limits, .. } in queued.collect::<Vec<_>>() {
            self.restore_within(
                task,
                Some(chosen.plan),
                Limits { attempts: limits.attempts.saturating_add(1), ..limits },
            );
        }
    }
}
