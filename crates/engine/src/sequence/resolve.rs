//! Resolution: finding what is known of a prompt when its request gets a sequence.
//!
//! Called by `start.rs`. The order: the session's own sequence, the named parent row, then the longest prefix among the cache
//! and the sequences at rest. It must never leave a sequence in a state that its lease does not describe.

use poncho_cache::{HitKind, HitTier, PartKind, RestorePlan};

use crate::backend::{KvLayout, SeqId};
use crate::calls::request::Mode;
use crate::calls::tenant::Tenant;
use crate::error::EngineError;
use crate::schedule::admission::Place;
use crate::schedule::prefix_sharing::common_prefix;
use crate::sequence::held::{PrefixMatch, is_of};
use crate::sequence::slots::Slots;
use crate::sequence::task::Task;
use crate::sequence::tasks::Tasks;
use crate::shared::Shared;
use crate::state::restore::{Restored, Wanted, find_plan};
use crate::state::save::logits_from_bytes;

/// With split cells a copy is two passes over the bytes; computing fewer tokens than this may be as fast.
const WORTH_COPYING: usize = 16;

/// The tier of what is found in a sequence.
const LIVE: Option<HitTier> = Some(HitTier::Sequence);

/// Where the state of a prompt was found.
pub(crate) enum Resolved {
    /// In the request's sequence, as far as it goes.
    InPlace(Restored),
    /// In the cache, or nowhere.
    Stored(Option<RestorePlan>),
}

/// Finds what is known of a request's prompt.
pub(crate) fn resolve(
    slots: &mut Slots,
    shared: &Shared,
    task: &mut Task,
    place: Place,
) -> Result<Resolved, EngineError> {
    if task.request.mode == Mode::Continue {
        return continue_session(slots, shared, task).map(Resolved::InPlace);
    }
    let grid = shared.grid_of(&task.request);
    let parent = task.request.parent_key;
    let own = match place {
        Place::Session(seq) => best_match(slots, shared, task, std::iter::once(seq)),
        Place::Fresh(_) => None,
    };
    // The session's own sequence needs no lookup in the cache if it holds everything up to the end of the prompt.
    let is_complete = |found: &PrefixMatch| found.common + 1 >= task.tokens.len();
    let wanted = Wanted { namespace: &task.namespace, prompt: task.restorable(grid), grid };
    let plan = if own.as_ref().is_some_and(is_complete) && parent.is_none() {
        None
    } else {
        find_plan(&shared.cache, slots.memory(), &wanted, parent)
    };
    let reach = plan.as_ref().map_or(0, |plan| match grid {
        Some(_) => wanted.usable(plan).0,
        None => plan.reach() as usize,
    });
    let elsewhere = match place {
        Place::Session(_) => None,
        Place::Fresh(seq) => best_match(slots, shared, task, slots.free().chain(std::iter::once(seq))),
    };
    let elsewhere = elsewhere.filter(|found| found.common >= reach);
    let (in_place, other) = match elsewhere {
        Some(found) if found.seq != task.seq() && belongs_to_other_conversation(slots, task, found) => {
            // The content of the sequence that the request was given is lost in any case, and may begin alike too.
            let given = best_match(slots, shared, task, std::iter::once(task.seq()));
            let given = given.filter(|given| given.common >= reach);
            (given.filter(|_| !is_worth_copying(slots, found, reach)), Some(found))
        }
        found => (found, None),
    };
    if let Some(found) = own.filter(|found| found.common >= reach).or(in_place)
        && let Some(restored) = use_in_place(slots, shared, task, found, plan.as_ref())
    {
        task.hit = HitKind::Sticky;
        return Ok(Resolved::InPlace(restored));
    }
    let idle = slots.idle_sessions().map(|(seq, _)| seq).chain(other.map(|found| found.seq));
    let idle = best_match(slots, shared, task, idle);
    if let Some(found) = idle.filter(|found| is_worth_copying(slots, *found, reach))
        && let Some(restored) = copy_from(slots, shared, task, found)
    {
        return Ok(Resolved::InPlace(restored));
    }
    slots.forget(&task.lease);
    Ok(Resolved::Stored(plan))
}

/// How much of a prompt its own tenant has sent before, as far as that is still held: the most that a discreet tenant may
/// learn of. `None` if it may learn everything.
pub(crate) fn own_reach(slots: &Slots, tasks: &Tasks, shared: &Shared, task: &Task) -> Option<usize> {
    let tenant = task.request.tenant.filter(Tenant::is_discreet)?;
    if task.request.mode == Mode::Continue {
        // The session is its own.
        return None;
    }
    let stored = shared.cache.owned_reach(&task.namespace, &task.tokens, tenant.id);
    let held = slots.held().own_reach(&tenant, &task.namespace, &task.tokens);
    let all = tasks.iter().map(|(_, other)| other);
    let own = all.filter(|other| other.namespace == task.namespace && is_of(other.request.tenant, &tenant));
    let running = own.map(|other| common_prefix(&task.tokens, &other.tokens)).max();
    Some(stored.max(held).max(running.unwrap_or(0)))
}

fn best_match(
    slots: &Slots,
    shared: &Shared,
    task: &Task,
    candidates: impl Iterator<Item = SeqId>,
) -> Option<PrefixMatch> {
    let grid = shared.grid_of(&task.request);
    let wanted = Wanted { namespace: &task.namespace, prompt: task.restorable(grid), grid };
    slots.held().best(&wanted, slots.can_cut(), candidates)
}

/// Whether most of the content of a free sequence would be cut off: a conversation that only begins alike, as all
/// conversations with the same template do. It is left whole, and the shared prefix is copied if that is worth it.
fn belongs_to_other_conversation(slots: &Slots, task: &Task, found: PrefixMatch) -> bool {
    let Some(held) = slots.held().get(found.seq).map(|held| held.n_past) else { return false };
    // All of a short prompt is the same conversation, however long its reply was.
    found.common < held / 2 && found.common + 1 < task.tokens.len()
}

/// Whether to copy a live prefix where the cache has `reach` tokens: in one pool of cells that costs nothing.
fn is_worth_copying(slots: &Slots, found: PrefixMatch, reach: usize) -> bool {
    match slots.info().kv {
        KvLayout::Unified => found.common >= reach,
        KvLayout::Split => found.common > reach && found.common >= WORTH_COPYING,
    }
}

/// Resumes from what a sequence holds. Returns `None` if that cannot be used; the sequence has to be filled then.
fn use_in_place(
    slots: &mut Slots,
    shared: &Shared,
    task: &mut Task,
    found: PrefixMatch,
    plan: Option<&RestorePlan>,
) -> Option<Restored> {
    let held = slots.held().get(found.seq)?;
    let prompt = task.tokens.len();
    let mut keep = found.common;
    let mut logits = None;
    if keep == prompt {
        logits = held.logits.as_ref().filter(|_| found.whole).cloned().or_else(|| {
            plan.filter(|plan| plan.reach() as usize == prompt).and_then(|plan| logits_in_memory(shared, plan))
        });
        if logits.is_none() {
            // The last token is computed again, which needs a model that can be cut.
            if !slots.can_cut() {
                return None;
            }
            keep -= 1;
        }
    }
    slots.adopt(&mut task.lease, found.seq, keep).then_some(Restored { n_past: keep, logits, tier: LIVE })
}

/// Copies a prefix of what an idle sequence holds.
fn copy_from(slots: &mut Slots, shared: &Shared, task: &mut Task, found: PrefixMatch) -> Option<Restored> {
    let held = slots.held().get(found.seq)?.n_past;
    let prompt = task.tokens.len();
    let keep = match shared.grid_of(&task.request) {
        _ if found.common < prompt => found.common,
        Some(grid) => grid.usable(found.common, prompt),
        None => found.common - 1,
    };
    if keep == 0 || (keep < held && !slots.can_cut()) {
        return None;
    }
    slots.forget(&task.lease);
    let is_copied = slots.copy_prefix(found.seq, held, &mut task.lease, keep);
    is_copied.then_some(Restored { n_past: keep, logits: None, tier: LIVE })
}

/// The stored logits after a plan's last token, unless they have to be read from a disk: computing one token is as fast.
fn logits_in_memory(shared: &Shared, plan: &RestorePlan) -> Option<Vec<f32>> {
    let bytes = plan.boundary()?.bytes(PartKind::Logits)?;
    logits_from_bytes(&bytes, shared.limits.vocab)
}

/// `continue`: the suffix is appended to everything that the session holds, unchecked.
#[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
fn continue_session(slots: &mut Slots, shared: &Shared, task: &mut Task) -> Result<Restored, EngineError> {
    let held = slots.held().get(task.seq()).filter(|held| held.namespace == task.namespace);
    let held = held.ok_or_else(|| {
        let session = task.request.session_id.clone();
        EngineError::NoSession { session: session.expect("invariant: a request that continues names its session") }
    })?;
    let (tokens, limit) = (held.tokens.len() + task.tokens.len(), shared.limits.longest_prompt(Mode::Continue));
    if tokens > limit {
        return Err(EngineError::PromptTooLong { tokens, limit });
    }
    let held = slots.resume(&mut task.lease).expect("invariant: the session holds something");
    // The caller counts from the start of what it sent.
    task.request.boundary_hints.iter_mut().for_each(|hint| *hint += held.tokens.len());
    task.tokens.splice(0..0, held.tokens);
    task.prompt_len = task.tokens.len();
    task.hit = HitKind::Continuation;
    Ok(Restored { n_past: held.n_past, logits: None, tier: LIVE })
}
