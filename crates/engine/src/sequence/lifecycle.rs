//! Where a request starts and where it ends: finding what is known of its prompt, the saves on its way, its last event,
//! and what its sequence is afterwards.
//!
//! Part of the worker. Resolution order: the session's live sequence, the named parent row, the longest prefix among
//! the cache and the idle sequences, nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_cache::{HitKind, PartKind, RestorePlan, SaveReason};

use crate::backend::{KvLayout, Restore, SeqId, StateError};
use crate::calls::event::{CacheDelta, Completion, FinishReason, StreamEvent};
use crate::calls::request::{Mode, Request, RequestId};
use crate::calls::tenant::Tenant;
use crate::error::EngineError;
use crate::reply::output::Output;
use crate::reply::sampler::Sampler;
use crate::schedule::admission::{After, Place};
use crate::sequence::live::{Live, LiveMatch, common_prefix, is_of};
use crate::sequence::task::{End, NewTask, Task};
use crate::state::restore::{Restored, Wanted, find_plan};
use crate::state::save::{Boundary, logits_from_bytes};
use crate::worker::status::{LastHit, add};
use crate::worker::{Waiting, Worker};

/// With split cells a copy is two passes over the bytes; fewer tokens than these may be computed as soon.
const WORTH_COPYING: usize = 16;

/// No state is saved at the end of a model once its saves have taken so long.
const SHUTDOWN_SAVES: Duration = Duration::from_secs(20);

/// Where the state of a prompt was found.
enum Resolved {
    /// In the request's sequence, as far as it goes.
    Here(Restored),
    /// In the cache, or nowhere.
    Stored(Option<RestorePlan>),
}

impl Worker {
    /// A request got its sequence: finds what is known of its prompt and puts it to work.
    pub(crate) fn start(&mut self, id: RequestId, waiting: Waiting, place: Place) {
        let Waiting { request, grammar, events, submitted } = waiting;
        let admitted = Instant::now();
        let seq = match place {
            Place::Fresh(seq) | Place::Session(seq) => seq,
        };
        let held = self.live.get(seq).filter(|_| request.mode == Mode::Continue).map_or(&[][..], |live| &live.tokens);
        let sampler = Sampler::new(&request.sampling, fresh_seed(), grammar, &[held, &request.tokens].concat());
        let output = Output::new(&request, &self.shared.config.markers, self.shared.config.signing_key.clone());
        let namespace = self.adapters.namespace_of(&request);
        let mut task = Task::new(NewTask {
            id,
            seq,
            request: *request,
            events,
            namespace,
            adapters: Arc::clone(&self.adapters),
            sampler,
            output,
            submitted,
            admitted,
        });
        task.own_reach = self.own_reach(&task);
        match self.resolve(&mut task, place) {
            Ok(Resolved::Here(restored)) => self.settle(task, restored),
            Ok(Resolved::Stored(plan)) => self.restore_from(task, plan),
            Err(error) => {
                // The session keeps what it had: the request never touched it.
                let after = if matches!(place, Place::Session(_)) { After::Pin } else { After::Free };
                self.admission.release(task.seq, after);
                self.shared.end(id, StreamEvent::Error(error));
            }
        }
    }

    /// A request has what was known of its prompt: from here on it runs.
    pub(crate) fn settle(&mut self, mut task: Task, restored: Restored) {
        if task.hit == HitKind::Cold {
            task.hit = restored.hit();
        }
        task.restore_time = task.admitted().elapsed();
        task.n_past = restored.n_past;
        task.read = restored.n_past;
        task.last_save = restored.n_past;
        task.set_generation_limit(task.request.generation_limit(&self.shared.limits, task.prompt_len));
        task.follow = if restored.logits.is_none() { self.find_leader(&task) } else { None };
        let (follow, place) = (task.follow, self.tasks.len());
        self.tasks.push(task);
        match follow {
            Some(follow) => {
                self.arrange_pause(follow);
                self.serve_followers();
            }
            None => self.begin(place, restored.logits),
        }
    }

    /// A request has what it could get for nothing: from here on it computes. With the logits after its prompt it has its
    /// first token already.
    pub(crate) fn begin(&mut self, place: usize, logits: Option<Vec<f32>>) {
        let Some(task) = self.tasks.get(place) else { return };
        let mut stops = self.pauses(task);
        // Others may have asked it to pause for them meanwhile.
        stops.extend(task.stops.iter().filter(|stop| **stop > task.n_past));
        stops.sort_unstable();
        stops.dedup();
        let Self { shared, tasks, .. } = self;
        let Some(task) = tasks.get_mut(place) else { return };
        task.stops = stops;
        shared.status.set_last_hit(LastHit { kind: task.hit, read: task.read as u64, prompt: task.prompt_len as u64 });
        tracing::debug!(
            request = %task.id, seq = task.seq, hit = task.hit.as_str(), read = task.read, prompt = task.prompt_len,
            us = task.waited().as_micros(), "request admitted"
        );
        task.events.send(StreamEvent::Started { prompt: task.prompt_len, read: task.told().1 });
        if let Some(logits) = logits {
            task.draw(&logits, &*shared.model);
            add(&shared.status.generated, task.generated() as u64);
            task.keep_logits(logits);
            task.prompt_saved = true;
        }
    }

    fn resolve(&mut self, task: &mut Task, place: Place) -> Result<Resolved, EngineError> {
        if task.request.mode == Mode::Continue {
            return self.continue_session(task).map(Resolved::Here);
        }
        let memory = self.context.info().memory;
        let grid = self.grid_of(&task.request);
        let parent = task.request.parent_key;
        let own = match place {
            Place::Session(seq) => self.best_live(task, std::iter::once(seq)),
            Place::Fresh(_) => None,
        };
        // The session's own sequence needs no look at the cache if it holds everything up to the prompt's end.
        let complete = |found: &LiveMatch| found.common + 1 >= task.tokens.len();
        let plan = if own.as_ref().is_some_and(complete) && parent.is_none() {
            None
        } else {
            let wanted = Wanted { namespace: &task.namespace, prompt: &task.tokens, grid };
            find_plan(&self.shared.cache, memory, &wanted, parent)
        };
        let wanted = Wanted { namespace: &task.namespace, prompt: &task.tokens, grid };
        let reach = plan.as_ref().map_or(0, |plan| match grid {
            Some(_) => wanted.usable(plan).0,
            None => plan.reach() as usize,
        });
        let elsewhere = match place {
            Place::Session(_) => None,
            Place::Fresh(seq) => {
                let free: Vec<SeqId> = self.admission.free().chain(std::iter::once(seq)).collect();
                self.best_live(task, free.into_iter())
            }
        };
        let elsewhere = elsewhere.filter(|found| found.common >= reach);
        let (used_up, shared) = match elsewhere {
            Some(found) if found.seq != task.seq && self.is_another_ones(task, found) => {
                // What lies in the place that the request was given goes in any case, and may begin alike too.
                let given = self.best_live(task, std::iter::once(task.seq)).filter(|given| given.common >= reach);
                (given.filter(|_| !self.is_worth_copying(found, reach)), Some(found))
            }
            found => (found, None),
        };
        if let Some(found) = own.filter(|found| found.common >= reach).or(used_up)
            && let Some(restored) = self.use_in_place(task, found, plan.as_ref())
        {
            task.hit = HitKind::Sticky;
            return Ok(Resolved::Here(restored));
        }
        let idle: Vec<SeqId> = self.admission.idle_sessions().map(|(seq, _, _)| seq).collect();
        let idle = self.best_live(task, idle.into_iter().chain(shared.map(|found| found.seq)));
        if let Some(found) = idle.filter(|found| self.is_worth_copying(*found, reach))
            && let Some(restored) = self.copy_from(task, found)
        {
            return Ok(Resolved::Here(restored));
        }
        drop(self.live.take(task.seq));
        Ok(Resolved::Stored(plan))
    }

    /// How much of a prompt its own tenant has sent before, as far as something still holds it: the most that a discreet
    /// tenant may be told of. `None` if it may be told everything.
    fn own_reach(&self, task: &Task) -> Option<usize> {
        let tenant = task.request.tenant.filter(Tenant::is_discreet)?;
        if task.request.mode == Mode::Continue {
            // The session is its own.
            return None;
        }
        let stored = self.shared.cache.owned_reach(&task.namespace, &task.tokens, tenant.id);
        let live = self.live.own_reach(&tenant, &task.namespace, &task.tokens);
        let own = |other: &&Task| other.namespace == task.namespace && is_of(other.request.tenant, &tenant);
        let running = self.tasks.iter().filter(own).map(|other| common_prefix(&task.tokens, &other.tokens)).max();
        Some(stored.max(live).max(running.unwrap_or(0)))
    }

    /// Rows that hold a beginning of what a request sent and got belong to its tenant.
    fn claim(&self, task: &Task) {
        if let (Some(tenant), Some(tokens)) = (task.request.tenant, task.tokens.get(..task.n_past)) {
            self.shared.cache.claim(&task.namespace, tokens, tenant.id);
        }
    }

    fn best_live(&self, task: &Task, candidates: impl Iterator<Item = SeqId>) -> Option<LiveMatch> {
        let grid = self.grid_of(&task.request);
        let wanted = Wanted { namespace: &task.namespace, prompt: &task.tokens, grid };
        self.live.best(&wanted, self.context.info().memory.can_cut(), candidates)
    }

    /// Whether most of what a leftover holds would be cut off: a conversation that only begins alike, as all do that have the
    /// same template. It is left whole, and what the two share is copied if that is worth it.
    fn is_another_ones(&self, task: &Task, found: LiveMatch) -> bool {
        let held = self.live.get(found.seq).map_or(0, |live| live.n_past);
        // All of a short prompt is the same conversation, however long its reply was.
        found.common < held / 2 && found.common + 1 < task.tokens.len()
    }

    /// Whether to copy a live prefix where the cache has `reach` tokens: in one pool of cells that costs nothing.
    fn is_worth_copying(&self, found: LiveMatch, reach: usize) -> bool {
        match self.context.info().kv {
            KvLayout::Unified => found.common >= reach,
            KvLayout::Split => found.common > reach && found.common >= WORTH_COPYING,
        }
    }

    /// Goes on with what a sequence already holds. `None`, and nothing changed but the sequence emptied at worst, if
    /// that does not work out.
    fn use_in_place(&mut self, task: &mut Task, found: LiveMatch, plan: Option<&RestorePlan>) -> Option<Restored> {
        let live = self.live.get(found.seq)?;
        let prompt = task.tokens.len();
        let mut keep = found.common;
        let mut logits = None;
        if keep == prompt {
            logits = if found.whole && !live.logits.is_empty() {
                Some(live.logits.clone())
            } else {
                plan.filter(|plan| plan.reach() as usize == prompt).and_then(|plan| self.logits_in_memory(plan))
            };
            if logits.is_none() {
                // The last token is computed again, which only a model that can be cut allows.
                if !self.context.info().memory.can_cut() {
                    return None;
                }
                keep -= 1;
            }
        }
        if found.seq != task.seq {
            if !self.admission.reassign(task.seq, found.seq) {
                return None;
            }
            task.seq = found.seq;
        }
        let held = self.live.take(found.seq).n_past;
        self.cut(found.seq, keep, held).then_some(Restored { n_past: keep, logits })
    }

    /// Copies what an idle session's sequence holds.
    fn copy_from(&mut self, task: &Task, found: LiveMatch) -> Option<Restored> {
        let held = self.live.get(found.seq)?.n_past;
        let can_cut = self.context.info().memory.can_cut();
        let prompt = task.tokens.len();
        let keep = match self.grid_of(&task.request) {
            _ if found.common < prompt => found.common,
            Some(grid) => grid.usable(found.common, prompt),
            None => found.common - 1,
        };
        if keep == 0 || (keep < held && !can_cut) {
            return None;
        }
        drop(self.live.take(task.seq));
        let copied = self.copy_live(found.seq, task.seq, keep, held);
        copied.then_some(Restored { n_past: keep, logits: None })
    }

    /// Makes `to` hold the first `keep` of the `held` tokens of `from`. After `false` it may hold anything.
    pub(crate) fn copy_live(&mut self, from: SeqId, to: SeqId, keep: usize, held: usize) -> bool {
        let info = self.context.info();
        // Between sequences with cells of their own the library copies all cells, whether they are in use or not; a device does so
        // without a detour through our memory.
        if info.kv == KvLayout::Unified || info.on_device || info.memory.has_partial() || !info.memory.can_cut() {
            return self.context.copy(from, to) && self.cut(to, keep, held);
        }
        let copied = self.copy_tokens(from, to, keep);
        copied.inspect_err(|error| tracing::warn!(from, to, keep, %error, "a live prefix could not be copied")).is_ok()
    }

    fn copy_tokens(&mut self, from: SeqId, to: SeqId, keep: usize) -> Result<(), StateError> {
        let n_tokens = u32::try_from(keep).unwrap_or(u32::MAX);
        let size = self.context.pack_size(from, 0..n_tokens)?;
        let mut bytes = self.staging.take(&*self.shared.backend, size);
        let written = self.context.pack_range(from, 0..n_tokens, bytes.as_mut())?;
        let segment = bytes.as_ref().get(..written).unwrap_or_default();
        self.context.restore(Restore { seq: to, n_tokens, segments: &[segment], partial: None })
    }

    /// Shortens a sequence from `held` to `keep` tokens.
    pub(crate) fn cut(&mut self, seq: SeqId, keep: usize, held: usize) -> bool {
        let Ok(end) = u32::try_from(keep) else { return false };
        keep == held || self.context.remove(seq, end..u32::MAX)
    }

    /// The stored logits after a plan's last token, unless a disk would have to be asked: computing one token is as quick.
    fn logits_in_memory(&self, plan: &RestorePlan) -> Option<Vec<f32>> {
        let bytes = plan.boundary()?.bytes(PartKind::Logits)?;
        logits_from_bytes(&bytes, self.shared.limits.vocab)
    }

    /// `continue`: the suffix is appended to everything the session holds, unchecked.
    fn continue_session(&mut self, task: &mut Task) -> Result<Restored, EngineError> {
        let session = task.request.session_id.clone().unwrap_or_default();
        let Some(live) = self.live.get(task.seq).filter(|live| live.namespace == Some(task.namespace)) else {
            return Err(EngineError::NoSession { session });
        };
        let (tokens, limit) =
            (live.tokens.len() + task.tokens.len(), self.shared.limits.longest_prompt(Mode::Continue));
        if tokens > limit {
            return Err(EngineError::PromptTooLong { tokens, limit });
        }
        let live = self.live.take(task.seq);
        // The caller counts from the start of what it sent.
        task.request.boundary_hints.iter_mut().for_each(|hint| *hint += live.tokens.len());
        task.tokens.splice(0..0, live.tokens);
        task.prompt_len = task.tokens.len();
        task.hit = HitKind::Continuation;
        Ok(Restored { n_past: live.n_past, logits: None })
    }

    /// Where the prefill of a model that cannot be cut pauses for a save.
    fn pauses(&self, task: &Task) -> Vec<usize> {
        let memory = self.context.info().memory;
        if memory.can_cut() || !memory.has_partial() {
            return Vec::new();
        }
        let prompt = task.prompt_len;
        let mut pauses = self.policy.resumable_boundaries(prompt, &task.request.boundary_hints);
        if pauses.is_empty() {
            pauses = self.policy.cold_boundaries(prompt);
        }
        if let Some(grid) = self.grid_of(&task.request) {
            pauses.push(prompt);
            pauses.iter_mut().for_each(|pause| *pause = grid.floor(*pause));
            pauses.sort_unstable();
            pauses.dedup();
        }
        pauses.retain(|pause| *pause > task.n_past && *pause < prompt);
        pauses
    }

    /// The saves that are due between two ticks.
    pub(crate) fn make_saves(&mut self) {
        for place in 0..self.tasks.len() {
            let Some(task) = self.tasks.get(place) else { break };
            if matches!(task.end, Some(End::Failed(_))) {
                continue;
            }
            if !task.prompt_saved && task.n_past >= task.prompt_len {
                self.save_prompt(place);
            } else if task.is_prefilling() && task.stops.contains(&task.n_past) && task.last_save < task.n_past {
                self.save_task(place, task.n_past, SaveReason::Cold);
            } else if task.end.is_none()
                && !task.request.exact
                && self.policy.continued_due(task.n_past.saturating_sub(task.last_save.max(task.prompt_len)))
            {
                self.save_task(place, task.n_past, SaveReason::Continued);
            }
        }
    }

    /// The prompt is computed: its boundaries and its end, with the logits, are worth keeping.
    fn save_prompt(&mut self, place: usize) {
        let memory = self.context.info().memory;
        let Some(task) = self.tasks.get_mut(place) else { return };
        task.prompt_saved = true;
        let (prompt, read) = (task.prompt_len, task.read);
        if read >= prompt {
            return;
        }
        // An exact state is good at every boundary of the grid before its end.
        let exact = task.request.exact;
        let boundaries = if memory.can_cut() && !exact { self.policy.cold_boundaries(prompt) } else { Vec::new() };
        if self.policy.gates().cold_min_tokens as usize > prompt {
            return;
        }
        for boundary in boundaries.into_iter().filter(|boundary| *boundary > read && *boundary < prompt) {
            self.save_task(place, boundary, SaveReason::Cold);
        }
        self.save_task(place, prompt, SaveReason::Cold);
    }

    /// Saves the first `count` tokens of a request.
    fn save_task(&mut self, place: usize, count: usize, reason: SaveReason) -> Option<poncho_cache::Key> {
        let Self { shared, context, policy, tasks, exact, .. } = self;
        let task = tasks.get_mut(place)?;
        let grid = exact.as_ref().filter(|_| task.request.exact).map(|exact| exact.grid);
        let count = task.savable(count, grid);
        // What cannot be cut is saved as it is or not at all.
        if count == 0 || (count != task.n_past && !context.info().memory.can_cut()) {
            return None;
        }
        task.last_save = task.last_save.max(count);
        let mut saver = crate::state::save::Saver {
            context: &mut **context,
            backend: &*shared.backend,
            cache: &shared.cache,
            policy,
            tier: shared.config.tier,
            mode: shared.file.mode,
            watch: &shared.watch,
        };
        let key = saver.save(&Boundary {
            seq: task.seq,
            tokens: task.tokens.get(..count)?,
            namespace: task.namespace,
            logits: task.logits_at(count),
            reason,
            grid,
            tenant: task.request.tenant,
        });
        key.inspect(|key| self.compactor.saved(*key))
    }

    /// Ends every request that is over.
    pub(crate) fn end_tasks(&mut self) {
        // Whoever waits for one of them takes over what it has, and nobody goes on waiting for one that is gone.
        self.serve_followers();
        while let Some(place) = self.tasks.iter().position(|task| task.end.is_some()) {
            self.end_task(place);
            self.serve_followers();
        }
    }

    fn end_task(&mut self, place: usize) {
        let Some(end) = self.tasks.get_mut(place).and_then(|task| task.end.take()) else { return };
        match end {
            End::Failed(error) => {
                let task = self.tasks.remove(place);
                self.context.remove(task.seq, 0..u32::MAX);
                drop(self.live.take(task.seq));
                self.admission.release(task.seq, After::Free);
                self.shared.end(task.id, StreamEvent::Error(error));
            }
            End::Finished { reason, stop } => {
                let committed = self.tasks.get(place).map_or(0, |task| task.n_past);
                let key = self.save_task(place, committed, SaveReason::Finish);
                let mut task = self.tasks.remove(place);
                self.claim(&task);
                if reason != FinishReason::Cancelled {
                    self.note_reread(&task);
                }
                let completion = task.complete(reason, stop, key, &*self.shared.model);
                let Task { seq, id, tokens, n_past, namespace, logits, logits_for, request, prompt_len, .. } = task;
                let on_grid = if request.exact { n_past.min(prompt_len) } else { 0 };
                if n_past == 0 {
                    self.context.remove(seq, 0..u32::MAX);
                } else {
                    let logits = if logits_for == n_past { logits } else { Vec::new() };
                    let (namespace, tenant) = (Some(namespace), request.tenant);
                    self.live.put(seq, Live { tokens, n_past, logits, on_grid, namespace, tenant, ..Live::default() });
                }
                self.admission.release(seq, if n_past > 0 { After::Pin } else { After::Free });
                self.shared.end(id, StreamEvent::Done(Box::new(completion)));
            }
        }
    }

    /// Saves everything and ends every request.
    pub(crate) fn shut_down(&mut self) {
        self.sweep_cancelled();
        self.cancel_reads(|_| true);
        // Each save waits for its disk, up to a bound; all of them together have one too.
        let started = Instant::now();
        let mut given_up = 0;
        for place in 0..self.tasks.len() {
            let Some(task) = self.tasks.get_mut(place) else { break };
            task.end.get_or_insert(End::CANCELLED);
            let count = task.n_past;
            if started.elapsed() < SHUTDOWN_SAVES {
                self.save_task(place, count, SaveReason::Shutdown);
            } else {
                given_up += 1;
            }
        }
        self.end_tasks();
        let idle: Vec<SeqId> = self.admission.idle_sessions().map(|(seq, _, _)| seq).collect();
        for seq in idle {
            if started.elapsed() < SHUTDOWN_SAVES {
                self.save_live(seq, SaveReason::Shutdown);
            } else {
                given_up += 1;
            }
        }
        if given_up > 0 {
            let seconds = SHUTDOWN_SAVES.as_secs();
            tracing::warn!(
                states = given_up,
                seconds,
                "saving takes too long; these states are computed again next time"
            );
        }
        let model = self.shared.config.id.clone();
        self.waiting.clear();
        self.orphans.clear();
        self.shared.fail_all(&EngineError::ShuttingDown { model });
        self.note_phase();
    }
}

/// The facts of a request that was cancelled before it got a sequence.
pub(crate) fn never_started(request: Request, waited: Duration) -> Completion {
    Completion {
        reply: String::new(),
        generated: Vec::new(),
        prompt_tokens: request.tokens.len(),
        context_tokens: request.tokens,
        committed_tokens: 0,
        finish_key: None,
        hit: HitKind::Cold,
        cache_delta: CacheDelta::default(),
        finish_reason: FinishReason::Cancelled,
        stop_sequence: None,
        queue_time: waited,
        restore_time: Duration::ZERO,
        prefill_time: waited,
        generation_time: Duration::ZERO,
        completion_tokens: 0,
        logprobs: Vec::new(),
    }
}

/// A seed for requests that bring none.
fn fresh_seed() -> u64 {
    // The standard library seeds each of these differently, which is all that is asked for.
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
