//! Requests that wait for stored rows to be read from a disk. They have a sequence, compute nothing, and delay nobody.
//!
//! Called by the worker between two ticks and by `start.rs`. A request with all rows in memory never waits here. For the
//! others, what has arrived is restored, and what has not arrived by the deadline is computed instead. Until then they are
//! not among the running tasks, so that nothing takes their sequences for filled. A late read must never change a reply, only
//! its time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_cache::RestorePlan;

use crate::calls::tenant::Tenant;
use crate::sequence::idle;
use crate::sequence::lifecycle::settle;
use crate::sequence::pending_read::{PendingRead, ReadLimits};
use crate::sequence::slots::{Lease, Slots};
use crate::sequence::task::{End, Task};
use crate::sequence::tasks::Tasks;
use crate::shared::Shared;
use crate::state::chosen::{Chosen, Reads};
use crate::state::failure::Failure;
use crate::state::restore::{ATTEMPTS, Restored, Wanted};
use crate::state::segment_reader::Parts;

/// Bytes that may be read at the same time; a single restore may have more. Further requests wait for their turn.
const IN_FLIGHT: u64 = 256 << 20;

/// Restores a request from a plan and lets it run: at once if everything is in memory.
pub(crate) fn restore_from(
    slots: &mut Slots,
    tasks: &mut Tasks,
    shared: &Shared,
    task: Task,
    plan: Option<RestorePlan>,
) {
    let limits = ReadLimits { attempts: ATTEMPTS, until: None };
    restore_within(slots, tasks, shared, task, plan.map(Arc::new), limits);
}

fn restore_within(
    slots: &mut Slots,
    tasks: &mut Tasks,
    shared: &Shared,
    mut task: Task,
    plan: Option<Arc<RestorePlan>>,
    mut limits: ReadLimits,
) {
    let (grid, tenant) = (shared.grid_of(&task.request), task.request.tenant);
    let mut next = plan;
    while let Some(plan) = next.take().filter(|_| limits.attempts > 0) {
        limits.attempts -= 1;
        let wanted = Wanted { namespace: &task.namespace, prompt: &task.tokens, grid };
        let chosen = slots.restorer().choose(&wanted, plan, &Parts::default(), Reads::Allowed);
        let Ok(chosen) = chosen else { break };
        let missing = chosen.missing();
        if !missing.is_empty() {
            // Other requests can use its cells meanwhile.
            slots.clear(&mut task.lease);
            let bytes = chosen.bytes_of(&missing);
            tasks.reading.push(PendingRead { task, chosen, missing, bytes, reading: None, limits });
            return start_reads(slots, tasks, shared);
        }
        let filled = fill(slots, shared, &mut task.lease, tenant, &chosen, &Parts::default(), Duration::ZERO);
        // Rows are not kept longer than they are needed.
        drop(chosen);
        match filled {
            Ok(restored) => return settle(slots, tasks, shared, task, restored),
            // The row is out of the cache; what lies before it may still serve.
            Err(Failure::Unusable) => {
                let wanted = Wanted { namespace: &task.namespace, prompt: &task.tokens, grid };
                next = slots.restorer().find(&wanted).map(Arc::new);
            }
            Err(Failure::NoRoom | Failure::Refused) => break,
        }
    }
    slots.clear(&mut task.lease);
    settle(slots, tasks, shared, task, Restored::default());
}

/// Fills a sequence with what is in memory. Idle sequences make room: their states are in the cache too.
fn fill(
    slots: &mut Slots,
    shared: &Shared,
    lease: &mut Lease,
    tenant: Option<Tenant>,
    chosen: &Chosen,
    parts: &Parts,
    reading: Duration,
) -> Result<Restored, Failure> {
    loop {
        let filled = slots.fill(lease, chosen, parts, reading);
        if filled.is_ok() {
            slots.used(chosen, tenant);
        }
        if !matches!(filled, Err(Failure::NoRoom)) {
            return filled;
        }
        slots.clear(lease);
        if !idle::make_room(slots, shared) {
            return filled;
        }
    }
}

/// Lets requests run with reads that have ended, or that took too long.
pub(crate) fn collect(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
    if tasks.reading.is_empty() {
        return;
    }
    let now = Instant::now();
    while let Some(place) = tasks.reading.iter().position(|pending| pending.is_over(now)) {
        let pending = tasks.reading.remove(place);
        finish(slots, tasks, shared, pending);
    }
    start_reads(slots, tasks, shared);
}

/// When the time of the next request is over.
pub(crate) fn next_deadline(tasks: &Tasks) -> Option<Instant> {
    let started = tasks.reading.iter().filter(|pending| pending.reading.is_some());
    started.filter_map(|pending| pending.limits.until).min()
}

/// Cancels the requests that wait for reads and match. They are ended as if they had just begun.
pub(crate) fn cancel(tasks: &mut Tasks, matches: impl Fn(&Task) -> bool) {
    // In order: they are ended as if they had just begun.
    let gone: Vec<PendingRead> = tasks.reading.extract_if(.., |pending| matches(&pending.task)).collect();
    for PendingRead { mut task, .. } in gone {
        task.end = Some(End::CANCELLED);
        tasks.push(task);
    }
}

/// Starts reads in order, as many as may be in flight.
fn start_reads(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
    let in_flight = tasks.reading.iter().filter(|pending| pending.reading.is_some());
    let mut in_flight: u64 = in_flight.map(|pending| pending.bytes).sum();
    let mut refused = Vec::new();
    for (place, pending) in tasks.reading.iter_mut().enumerate().filter(|(_, pending)| pending.reading.is_none()) {
        if in_flight > 0 && in_flight.saturating_add(pending.bytes) > IN_FLIGHT {
            break;
        }
        in_flight = in_flight.saturating_add(pending.bytes);
        let restorer = slots.restorer();
        pending.limits.until.get_or_insert_with(|| Instant::now() + restorer.patience(&pending.chosen));
        match restorer.read(&pending.chosen, &pending.missing) {
            Ok(reading) => pending.reading = Some(reading),
            Err(_) => refused.push(place),
        }
    }
    for place in refused.into_iter().rev() {
        let PendingRead { task, .. } = tasks.reading.remove(place);
        settle(slots, tasks, shared, task, Restored::default());
    }
}

#[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
fn finish(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared, pending: PendingRead) {
    let PendingRead { mut task, chosen, missing, reading, limits, .. } = pending;
    let reading = reading.expect("invariant: only a read that was started can be over");
    let wanted = Wanted { namespace: &task.namespace, prompt: &task.tokens, grid: shared.grid_of(&task.request) };
    let (is_late, tenant) = (!reading.is_over(), task.request.tenant);
    let collected = slots.restorer().collect(&wanted, chosen, &missing, reading);
    let restored =
        collected.and_then(|(chosen, parts, took)| fill(slots, shared, &mut task.lease, tenant, &chosen, &parts, took));
    match restored {
        Ok(restored) => settle(slots, tasks, shared, task, restored),
        Err(Failure::Unusable) => {
            let plan = slots.restorer().find(&wanted).map(Arc::new);
            restore_within(slots, tasks, shared, task, plan, limits);
        }
        Err(Failure::NoRoom | Failure::Refused) => {
            slots.clear(&mut task.lease);
            settle(slots, tasks, shared, task, Restored::default());
        }
    }
    if is_late {
        choose_again(slots, tasks, shared);
    }
}

/// A tier turned out to be slow: requests with reads that have not started choose again.
fn choose_again(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
    let queued: Vec<PendingRead> = tasks.reading.extract_if(.., |pending| pending.reading.is_none()).collect();
    for PendingRead { task, chosen, limits, .. } in queued {
        let limits = ReadLimits { attempts: limits.attempts.saturating_add(1), ..limits };
        restore_within(slots, tasks, shared, task, Some(chosen.plan), limits);
    }
}
