//! Requests and the shared tier: what to fetch for a prompt before it takes a sequence, and taking over what was fetched
//! while it is being computed.
//!
//! Called by the worker's queue and between two ticks. A fetch never delays a request by more than a small share of the time
//! that computing takes: then the prompt is computed beside it, and the first to finish wins. Nothing here waits, and
//! nothing does anything for a cache without a shared tier.

use std::sync::Arc;
use std::time::Instant;

use poncho_cache::{NO_TENANT, Policy};

use crate::calls::request::{Mode, Request};
use crate::schedule::grid::Grid;
use crate::schedule::prefix_sharing::common_prefix;
use crate::sequence::lifecycle::draw_known;
use crate::sequence::slots::Slots;
use crate::sequence::task::{Fetched, Waiting};
use crate::sequence::tasks::{TaskId, Tasks};
use crate::shared::Shared;
use crate::state::chosen::Reads;
use crate::state::remote_fetch::FetchRequest;
use crate::state::restore::{Wanted, needs_of};
use crate::state::segment_reader::Parts;

/// Prefixes that are asked for at once, the longest ones.
const MOST_CANDIDATES: usize = 24;
/// A reply is stored up to its last computed token; the template closes the message with up to this many more.
const CLOSING_TOKENS: usize = 3;

/// Starts a fetch for a request that has no sequence yet, if the shared tier could have more of its prompt than this
/// machine. Returns until when the request waits for it.
pub(crate) fn begin_fetch(slots: &mut Slots, tasks: &Tasks, shared: &Shared, waiting: &mut Waiting) -> Option<Instant> {
    if !slots.has_remote() || waiting.request.mode == Mode::Continue {
        return None;
    }
    let request = &*waiting.request;
    let (grid, namespace) = (shared.grid_of(request), slots.adapters().namespace_of(request));
    let known = {
        let needs = needs_of(slots.memory())?;
        let prompt = &request.tokens;
        let stored = shared.cache.reach(&namespace, prompt, needs);
        let wanted = Wanted { namespace: &namespace, prompt, grid };
        let idle = slots.idle_sessions().map(|(seq, _)| seq);
        let held = slots.held().best(&wanted, slots.can_cut(), slots.free().chain(idle));
        let running = tasks.iter().map(|(_, task)| task).filter(|task| task.namespace == namespace);
        let running = running.map(|task| common_prefix(prompt, &task.tokens)).max();
        stored.max(held.map_or(0, |found| found.common)).max(running.unwrap_or(0))
    };
    let mut boundaries = candidates(slots.policy(), request, grid);
    boundaries.retain(|boundary| *boundary > known);
    boundaries.drain(..boundaries.len().saturating_sub(MOST_CANDIDATES));
    let saved = boundaries.last()?.saturating_sub(known);
    let cost = slots.restorer().estimates.fetch_cost();
    let owner = request.tenant.map_or(NO_TENANT, |tenant| tenant.id);
    let fetch = FetchRequest { owner, namespace, prompt: request.tokens.clone(), boundaries, known, cost };
    let fetching = slots.fetch(fetch)?;
    waiting.fetched = Some(Fetched { fetching, known });
    Some(Instant::now() + cost.wait(saved))
}

/// Where rows of this prompt may end, ascending: at its end, at the ends of its messages, where the last reply ended, and
/// where a cold prompt is saved.
pub(crate) fn candidates(policy: &Policy, request: &Request, grid: Option<Grid>) -> Vec<usize> {
    let prompt = request.tokens.len();
    let hints = policy.resumable_boundaries(prompt, &request.boundary_hints);
    let replies = hints.iter().flat_map(|hint| (1..=CLOSING_TOKENS).filter_map(|back| hint.checked_sub(back)));
    let mut boundaries: Vec<usize> = policy.cold_boundaries(prompt);
    boundaries.extend(replies);
    boundaries.extend(&hints);
    if let Some(grid) = grid {
        boundaries.iter_mut().for_each(|boundary| *boundary = grid.floor(*boundary));
    }
    boundaries.push(prompt);
    boundaries.retain(|boundary| policy.should_save(poncho_cache::SaveReason::Cold, *boundary));
    boundaries.sort_unstable();
    boundaries.dedup();
    boundaries
}

/// Requests that computed beside a fetch take over what it brought, if that is further than they are. Fetches that cannot
/// help end.
pub(crate) fn take_over(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared) {
    if !slots.has_remote() {
        return;
    }
    for place in 0..tasks.len() {
        let id = tasks.nth(place);
        let task = tasks.get_mut(id);
        let Some(Fetched { fetching, .. }) = &task.fetched else { continue };
        if task.is_prefilling() && task.end.is_none() && !fetching.is_over() {
            continue;
        }
        let imported = fetching.imported();
        let fetched = task.fetched.take();
        let helps = imported.is_some_and(|arrived| arrived.tokens > task.n_past() + 1);
        if helps && task.is_prefilling() && task.end.is_none() && task.waits_for.is_none() {
            tasks.get_mut(id).fetched = fetched;
            restore_fetched(slots, tasks, shared, id);
            tasks.get_mut(id).fetched = None;
        }
    }
}

/// Fills the sequence of a request that is being computed with a longer stored prefix, as far as that is in memory and
/// cheaper than going on.
fn restore_fetched(slots: &mut Slots, tasks: &mut Tasks, shared: &Shared, id: TaskId) {
    let started = Instant::now();
    let task = tasks.get_mut(id);
    let grid = shared.grid_of(&task.request);
    let wanted = Wanted { namespace: &task.namespace, prompt: task.restorable(grid), grid };
    let Some(plan) = slots.restorer().find(&wanted) else { return };
    // The worker does not wait for a disk here: what was just imported is in memory, as long as there is room.
    let chosen = slots.restorer().choose(&wanted, Arc::new(plan), &Parts::default(), Reads::No);
    let Ok(chosen) = chosen else { return };
    if chosen.n_past <= task.n_past() {
        return;
    }
    let restored = slots.fill(&mut task.lease, &chosen, &Parts::default(), started.elapsed());
    drop(chosen);
    let restored = match restored {
        Ok(restored) => restored,
        Err(_) => {
            slots.clear(&mut task.lease);
            task.forget_logits();
            (task.read, task.last_save) = (0, 0);
            return;
        }
    };
    task.restored(&restored);
    task.restore_time += started.elapsed();
    tracing::debug!(request = %task.id, read = task.read, "a fetched row overtook the prefill");
    draw_known(shared, task, restored.logits);
}
