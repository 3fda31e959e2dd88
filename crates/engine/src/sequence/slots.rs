//! The sequences of a model: the context that computes them, who uses each of them, and what each holds.
//!
//! Used by everything that runs on the worker's thread. It is the only code that clears, cuts, copies, fills and packs
//! sequences. While a request runs, its [`Lease`] is the one record of how many tokens its sequence holds; at rest, the
//! content is in a `HeldTable`. No other code may keep a second count.

mod bridging;
mod fill;
mod pack;
mod sessions;
mod steps;

use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_api::{DraftObstacle, Drafts};
use poncho_cache::{Key, Policy, RestorePlan, SaveReason};

use crate::backend::{
    Batch, ComputingDevices, Context, ContextError, ContextInfo, DecodeOutcome, KvLayout, MemoryKind, Restore, SeqId,
    StateError,
};
use crate::calls::request::RequestId;
use crate::calls::tenant::Tenant;
use crate::config::{Checked as _, Exactness};
use crate::error::EngineError;
use crate::schedule::admission::{Admission, After, EndedSession, Next, Submitted, Ticket};
use crate::schedule::bridges::PassBytes;
use crate::schedule::grid::Grid;
use crate::sequence::exact::device::keeps_bits;
use crate::sequence::exact::{decodes_may_share, rows_like_one};
use crate::sequence::held::{Held, HeldTable};
use crate::shared::Shared;
use crate::shared::adapters::{AdapterSet, Adapters, ContextHashes, LoadedAdapter};
use crate::shared::running::AbortFlag;
use crate::state::buffer_pool::{self, BufferPool};
use crate::state::chosen::{Chosen, Reads};
use crate::state::compaction::{ChainBounds, Compactor};
use crate::state::cost::Estimates;
use crate::state::failure::Failure;
use crate::state::identity::{context_hash, exact_context_hash};
use crate::state::position::position;
use crate::state::remote_fetch::{FetchRequest, Fetching, RemoteFetcher};
use crate::state::restore::{ATTEMPTS, Restored, Restorer, Wanted};
use crate::state::save::{Boundary, Saver};
use crate::state::segment_reader::{Buffers, Parts, Wake};
use crate::state::sharing::Sharing;

/// The end of a range of positions that reaches to the end of its sequence, as the backend spells it.
const TO_END: u32 = u32::MAX;

/// The right of one request to compute on a sequence, and the count of tokens that the sequence holds.
///
/// Made by [`Slots::lease`], given back by [`Slots::release`]. It cannot be cloned: nobody else knows the count.
#[derive(Debug)]
pub(crate) struct Lease {
    seq: SeqId,
    n_past: usize,
}

impl Lease {
    pub(crate) fn seq(&self) -> SeqId {
        self.seq
    }

    /// Tokens that the sequence holds.
    pub(crate) fn n_past(&self) -> usize {
        self.n_past
    }

    /// A decode call added this many tokens to the sequence.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.n_past += tokens;
    }
}

/// See the module.
pub(crate) struct Slots {
    context: Box<dyn Context>,
    /// Stops decode calls of this worker.
    abort: AbortFlag,
    admission: Admission,
    held: HeldTable,
    adapters: Adapters,
    restorer: Restorer,
    saver: Saver,
    compactor: Compactor,
    /// Fetches from the shared tier, if there is one.
    fetcher: Option<RemoteFetcher>,
    /// Offers rows to the shared tier, if there is one.
    sharing: Option<Sharing>,
    /// Whether decode rows of exact requests may share a call. Tested when the context is created.
    shares_decodes: bool,
    /// Numbers of rows of one sequence that give the bits of rows computed one by one, as bits. Tested likewise.
    exact_rows: u32,
    /// Why no request is guessed ahead.
    draft_obstacle: Option<DraftObstacle>,
    /// What a pass reads, where rows of resting sequences may join passes.
    bridging: Option<PassBytes>,
    /// Whether the idle sessions may differ from the published ones.
    sessions_changed: bool,
}

impl Slots {
    /// All sequences of a fresh context, empty. `wake` is called when a read is over.
    pub(crate) fn new(shared: &Shared, abort: AbortFlag, wake: Wake) -> Result<Self, EngineError> {
        let config = &shared.config;
        let options = &config.context;
        let mut context = shared.model.new_context(options, Arc::clone(&abort)).map_err(|error| {
            EngineError::Backend { call: "creating a context".to_owned(), reason: error.to_string() }
        })?;
        let devices = shared.backend.computing_devices(&config.model);
        if let (Some(grid), Some(devices)) = (config.grid(), &devices) {
            keeps_bits(&mut *context, grid, shared.limits.vocab, &devices.names)?;
        }
        // Flash attention on a processor adds a single row by parts of its keys once there are 512 cells, and several rows
        // otherwise: what a test with few cells shows does not hold later.
        let is_split_later = context.info().flash_attention == Some(true) && devices.is_none();
        let shares_decodes = match config.grid().filter(|_| !is_split_later) {
            Some(grid) => decodes_may_share(&mut *context, grid, shared.limits.vocab, devices.is_some())?,
            None => false,
        };
        let can_draft = matches!(context.info().memory, MemoryKind::Attention | MemoryKind::Window { .. });
        let tests_rows = can_draft && config.drafts != Drafts::Off && !is_split_later;
        let exact_rows = match config.grid().filter(|_| tests_rows) {
            Some(_) => rows_like_one(&mut *context, shared.limits.vocab, devices.is_some())?,
            None => 0,
        };
        let draft_obstacle = if config.drafts == Drafts::Off {
            Some(DraftObstacle::Setting)
        } else if !can_draft {
            Some(DraftObstacle::Memory)
        } else if !shared.drafts() {
            Some(DraftObstacle::Device)
        } else {
            (config.exactness == Exactness::Always && exact_rows == 0).then_some(DraftObstacle::Exact)
        };
        if draft_obstacle.is_none() && devices.is_some() {
            steps::prepare(&mut *context, shared.limits.vocab);
        }
        let info = context.info();
        let memory = info.memory;
        let plain = context_hash(options, info, shared.model.info());
        let build = shared.backend.build();
        let build = match devices {
            Some(ComputingDevices { names, placement }) => format!("{build}; {names}; {placement}"),
            None => build,
        };
        let on_grid = |grid| exact_context_hash(options, info, shared.model.info(), grid, &build);
        let hashes = ContextHashes { plain, exact: config.grid().map_or(plain, on_grid) };
        let adapters = Adapters::new(shared.adapters(), &shared.file, hashes)?;
        shared.context_hash.get_or_init(|| plain);
        let bounds = ChainBounds { links: config.chain_limit, partials: config.partial_limit };
        let neighbours = info.kv == KvLayout::Split;
        let bridging = bridging::pass_bytes(info, shared);
        let joiner = context.joiner();
        let running = Arc::clone(&shared.running);
        let interrupt = Arc::new(move |id| running.cancel(id));
        let fetcher = RemoteFetcher::new(&shared.cache, joiner.clone(), Arc::clone(&wake), interrupt);
        Ok(Self {
            admission: Admission::new(info.n_seq_max, config.queue_limit).with_neighbours(neighbours),
            held: HeldTable::new(info.n_seq_max),
            adapters,
            restorer: Restorer {
                cache: Arc::clone(&shared.cache),
                estimates: Estimates::new(config.restore_rule),
                readers: Arc::clone(&shared.readers),
                buffers: Buffers { backend: Arc::clone(&shared.backend), pool: BufferPool::default() },
                wake,
                read_wait: config.read_wait,
                memory,
                n_ctx: info.n_ctx,
                n_vocab: shared.limits.vocab,
            },
            saver: Saver {
                cache: Arc::clone(&shared.cache),
                watch: Arc::clone(&shared.watch),
                policy: config.policy()?,
                tier: config.tier,
                mode: shared.file.mode,
                memory,
                n_ctx: info.n_ctx,
                model: Arc::clone(&shared.model),
            },
            compactor: Compactor::new(Arc::clone(&shared.cache), memory, joiner, bounds),
            fetcher,
            sharing: Sharing::new(&shared.cache),
            shares_decodes,
            exact_rows,
            draft_obstacle,
            bridging,
            sessions_changed: true,
            abort,
            context,
        })
    }

    pub(crate) fn info(&self) -> &ContextInfo {
        self.context.info()
    }

    pub(crate) fn memory(&self) -> MemoryKind {
        self.context.info().memory
    }

    /// Whether a sequence may be shortened to any length and stay valid.
    pub(crate) fn can_cut(&self) -> bool {
        self.memory().can_cut()
    }

    /// Bytes of a token in a state that is saved while it grows; 0 for one that is saved at its ends only, because copying it
    /// on the host delays nobody, or because a cut needs more than a token's bytes.
    pub(crate) fn growing_bytes_per_token(&self) -> u64 {
        let info = self.context.info();
        if info.on_device && info.memory.can_cut() { info.segment_bytes_per_token } else { 0 }
    }

    pub(crate) fn abort(&self) -> &AbortFlag {
        &self.abort
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.saver.policy
    }

    pub(crate) fn restorer(&mut self) -> &mut Restorer {
        &mut self.restorer
    }

    pub(crate) fn shares_decodes(&self) -> bool {
        self.shares_decodes
    }

    /// Why no request is guessed ahead; `None` if some are.
    pub(crate) fn draft_obstacle(&self) -> Option<DraftObstacle> {
        self.draft_obstacle
    }

    /// The most draft rows of an exact request, up to `rows`, that change no bit.
    pub(crate) fn exact_draft_rows(&self, rows: usize) -> usize {
        let is_same = |drafts: &usize| {
            u32::try_from(drafts + 1).is_ok_and(|rows| self.exact_rows & 1_u32.unbounded_shl(rows) != 0)
        };
        (1..=rows).rev().find(is_same).unwrap_or(0)
    }

    /// How many of `rows` rows after the next one can be taken back from a sequence.
    pub(crate) fn revocable(&self, lease: &Lease, rows: usize) -> usize {
        match self.memory() {
            MemoryKind::Attention => rows,
            // While nothing has left the window, nothing is missing from it afterwards.
            MemoryKind::Window { size } => rows.min((size as usize).saturating_sub(lease.n_past + 1)),
            MemoryKind::Recurrent | MemoryKind::Hybrid | MemoryKind::None => 0,
        }
    }

    /// Drops the draft rows that the lease does not count. Returns false if that failed; the sequence then has to be restored.
    pub(crate) fn take_back(&mut self, lease: &Lease) -> bool {
        self.context.remove(lease.seq, position(lease.n_past)..TO_END)
    }

    /// Allocates the buffers that the first restore will need. On a machine that has to create the pages first, filling
    /// fresh memory takes longer than the rest of a restore.
    pub(crate) fn prepare_restores(&self) {
        let Restorer { cache, buffers, .. } = &self.restorer;
        let rows = cache.rows();
        let own = rows.iter().filter(|row| self.adapters.current().may_have_namespace(&row.meta.namespace));
        let expected = buffer_pool::expected(own.map(|row| (row.bytes, row.meta.token_count)), self.info());
        buffers.pool.prepare(&*buffers.backend, expected);
    }

    // Who uses which sequence.

    /// Admits, queues or refuses a request.
    pub(crate) fn submit(&mut self, ticket: Ticket) -> Submitted {
        self.sessions_changed = true;
        self.admission.submit(ticket)
    }

    /// What can be done for the head of the queue.
    pub(crate) fn admit_next(&mut self) -> Next {
        let next = self.admission.admit_next();
        self.sessions_changed |= !matches!(next, Next::Wait);
        next
    }

    /// Takes a waiting request out of the queue.
    pub(crate) fn cancel_queued(&mut self, request: RequestId) -> bool {
        self.admission.cancel_queued(request)
    }

    pub(crate) fn end_session(&mut self, name: &str) -> EndedSession {
        self.sessions_changed = true;
        self.admission.end_session(name)
    }

    /// The idle sessions and their sequences.
    pub(crate) fn idle_sessions(&self) -> impl Iterator<Item = (SeqId, &str)> {
        self.admission.idle_sessions().map(|(seq, name, _)| (seq, name))
    }

    /// The idle session that gives up its sequence first.
    pub(crate) fn lru_idle_session(&self) -> Option<SeqId> {
        self.admission.lru_idle_session().map(|(seq, _)| seq)
    }

    /// The sequences that belong to no request and no session; some hold what a request left behind.
    pub(crate) fn free(&self) -> impl Iterator<Item = SeqId> {
        self.admission.free()
    }

    /// The lease of a request that was admitted to a sequence. What the sequence holds is still at rest.
    pub(crate) fn lease(&self, seq: SeqId) -> Lease {
        debug_assert!(self.admission.in_flight().any(|(_, other)| other == seq), "invariant: {seq} was admitted");
        Lease { seq, n_past: 0 }
    }

    /// A free sequence for work between two ticks, emptied; the oldest idle session makes room if need be. Given back with
    /// [`Slots::give_back_scratch`].
    pub(crate) fn scratch(&mut self, grid: Option<Grid>) -> Option<Lease> {
        if self.free().next().is_none()
            && let Some(seq) = self.lru_idle_session()
        {
            self.release_session(seq, grid);
        }
        let oldest = self.held.oldest(self.free());
        let empty = self.free().find(|seq| self.held.get(*seq).is_none());
        let seq = empty.or(oldest)?;
        self.empty(seq);
        Some(Lease { seq, n_past: 0 })
    }

    /// Empties a sequence that was borrowed.
    #[expect(clippy::needless_pass_by_value, reason = "the lease ends here")]
    pub(crate) fn give_back_scratch(&mut self, lease: Lease) {
        self.empty(lease.seq);
    }

    /// A request is over: its sequence keeps what is left, for its session or for later requests, or is cleared.
    #[expect(clippy::needless_pass_by_value, reason = "the lease ends here")]
    pub(crate) fn release(&mut self, lease: Lease, left: Option<Held>) {
        let Lease { seq, n_past } = lease;
        let after = match left {
            Some(held) => {
                debug_assert_eq!(held.n_past, n_past, "invariant: the lease has the count");
                debug_assert_eq!(
                    self.context.pos_max(seq),
                    Some(position(n_past) - 1),
                    "invariant: so has the context"
                );
                self.held.put(seq, held);
                After::Pin
            }
            None => {
                self.context.remove(seq, 0..TO_END);
                drop(self.held.take(seq));
                After::Free
            }
        };
        self.end_lease(seq, after);
    }

    /// A request is refused after admission and has not touched its sequence: a session keeps what it had.
    #[expect(clippy::needless_pass_by_value, reason = "the lease ends here")]
    pub(crate) fn release_untouched(&mut self, lease: Lease) {
        self.end_lease(lease.seq, After::Pin);
    }

    #[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
    fn end_lease(&mut self, seq: SeqId, after: After) {
        self.sessions_changed = true;
        self.admission.release(seq, after).expect("invariant: a leased sequence has a request in flight");
    }

    // What sequences hold.

    /// What sequences at rest hold.
    pub(crate) fn held(&self) -> &HeldTable {
        &self.held
    }

    /// Counts rows that requests computed beside the idle sequences.
    pub(crate) fn pass_idle(&mut self, rows: usize) {
        self.held.pass(rows);
    }

    /// An idle sequence stays; the rows that passed it no longer count.
    pub(crate) fn keep_idle(&mut self, seq: SeqId) {
        self.held.keep(seq);
    }

    /// Clears a sequence that no request runs on. The next request gets it before one that holds something.
    pub(crate) fn empty(&mut self, seq: SeqId) {
        drop(self.held.take(seq));
        self.context.remove(seq, 0..TO_END);
        self.admission.emptied(seq);
    }

    /// An idle session gives up its sequence; its state is saved first.
    pub(crate) fn release_session(&mut self, seq: SeqId, grid: Option<Grid>) {
        self.save_held(seq, SaveReason::Evict, grid);
        self.sessions_changed = true;
        let name = self.admission.release_session(seq);
        tracing::debug!(seq, session = name.as_deref().unwrap_or(""), "idle session released");
    }

    /// Clears the sequence of a request.
    pub(crate) fn clear(&mut self, lease: &mut Lease) {
        self.context.remove(lease.seq, 0..TO_END);
        lease.n_past = 0;
    }

    /// A request that found nothing in its sequence forgets what that held. The cells are cleared by the restore that
    /// follows.
    pub(crate) fn forget(&mut self, lease: &Lease) {
        drop(self.held.take(lease.seq));
    }

    /// A request goes on with everything that its sequence holds.
    pub(crate) fn resume(&mut self, lease: &mut Lease) -> Option<Held> {
        let held = self.held.take(lease.seq)?;
        lease.n_past = held.n_past;
        Some(held)
    }

    /// Moves a request to a sequence at rest that holds a prefix of its prompt, and shortens that to `keep` tokens.
    /// Returns false if it cannot be cut there.
    #[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
    pub(crate) fn adopt(&mut self, lease: &mut Lease, from: SeqId, keep: usize) -> bool {
        if from != lease.seq {
            let moved = self.admission.reassign(lease.seq, from);
            assert!(moved, "invariant: {from} is free and {} is leased", lease.seq);
            lease.seq = from;
        }
        let held = self.held.take(from).expect("invariant: a sequence that was found holds something");
        lease.n_past = held.n_past;
        self.cut(lease, keep)
    }

    /// Shortens a sequence to `keep` tokens. Returns false, and changes nothing, if this memory kind cannot.
    fn cut(&mut self, lease: &mut Lease, keep: usize) -> bool {
        debug_assert!(keep <= lease.n_past, "invariant: {keep} of {} tokens are kept", lease.n_past);
        let is_cut = keep == lease.n_past || self.context.remove(lease.seq, position(keep)..TO_END);
        if is_cut {
            lease.n_past = keep;
        }
        is_cut
    }

    /// After an aborted decode call: drops the rows that the lease does not count. Returns false if this memory kind
    /// cannot; the sequence then has to be restored.
    pub(crate) fn rewind(&mut self, lease: &Lease) -> bool {
        // Cutting is exact on plain attention only.
        self.can_cut() && self.context.remove(lease.seq, position(lease.n_past)..TO_END)
    }

    /// Fills a sequence with the first `keep` of the `held` tokens of another one. After a failure it is empty.
    pub(crate) fn copy_prefix(&mut self, from: SeqId, held: usize, lease: &mut Lease, keep: usize) -> bool {
        let info = self.context.info();
        // Between sequences with cells of their own the library copies all cells, used or not; a device copies them without
        // a detour through the memory of the host.
        let copies_all = info.kv == KvLayout::Unified || info.on_device || info.memory.has_partial();
        let is_copied = if copies_all || !info.memory.can_cut() {
            let is_copied = self.context.copy(from, lease.seq);
            lease.n_past = held;
            is_copied && self.cut(lease, keep)
        } else {
            let copied = self.copy_tokens(from, lease.seq, keep);
            let copied = copied.inspect_err(
                |error| tracing::warn!(from, to = lease.seq, keep, %error, "a live prefix could not be copied"),
            );
            lease.n_past = keep;
            copied.is_ok()
        };
        if !is_copied {
            self.clear(lease);
        }
        is_copied
    }

    fn copy_tokens(&mut self, from: SeqId, to: SeqId, keep: usize) -> Result<(), StateError> {
        let n_tokens = position(keep);
        let size = self.context.pack_size(from, 0..n_tokens)?;
        let Buffers { backend, pool } = &self.restorer.buffers;
        let mut bytes = pool.take(&**backend, size);
        let written = self.context.pack_range(from, 0..n_tokens, bytes.as_mut())?;
        let size = bytes.as_ref().len();
        let segment =
            bytes.as_ref().get(..written).ok_or(StateError::BufferTooSmall { needed: written, given: size })?;
        self.context.restore(Restore { seq: to, n_tokens, segments: &[segment], partial: None })
    }

    // What is stored.

    /// Fills a sequence with what was chosen of a plan. After an error it may hold anything: clear it or fill it again.
    pub(crate) fn fill(
        &mut self,
        lease: &mut Lease,
        chosen: &Chosen,
        parts: &Parts,
        reading: Duration,
    ) -> Result<Restored, Failure> {
        lease.n_past = 0;
        let restored = fill::fill(&mut *self.context, &mut self.restorer, lease.seq, chosen, parts, reading)?;
        lease.n_past = restored.n_past;
        Ok(restored)
    }

    /// Restores a sequence from the cache as far as that pays, and blocks for reads as long as that pays. Only for work that
    /// runs alone: no other request moves meanwhile.
    pub(crate) fn restore(&mut self, lease: &mut Lease, wanted: &Wanted<'_>) -> Restored {
        let (mut next, mut until) = (self.restorer.find(wanted), None);
        for _ in 0..ATTEMPTS {
            let Some(plan) = next.take() else { break };
            match self.try_plan(lease, wanted, plan, &mut until) {
                Ok(restored) => return restored,
                // The row is out of the cache; what lies before it may still serve.
                Err(Failure::Unusable) => next = self.restorer.find(wanted),
                Err(Failure::NoRoom | Failure::Refused) => break,
            }
        }
        self.clear(lease);
        Restored::default()
    }

    fn try_plan(
        &mut self,
        lease: &mut Lease,
        wanted: &Wanted<'_>,
        plan: RestorePlan,
        until: &mut Option<Instant>,
    ) -> Result<Restored, Failure> {
        let chosen = self.restorer.choose(wanted, Arc::new(plan), &Parts::default(), Reads::Allowed)?;
        let missing = chosen.missing();
        if missing.is_empty() {
            return self.fill(lease, &chosen, &Parts::default(), Duration::ZERO);
        }
        let until = *until.get_or_insert_with(|| Instant::now() + self.restorer.patience(&chosen));
        let (chosen, parts, took) = self.restorer.read_blocking(wanted, chosen, &missing, until)?;
        self.fill(lease, &chosen, &parts, took)
    }

    /// Saves a boundary of a request that runs. The chain of the row is joined in the background once it is long.
    pub(crate) fn save(&mut self, boundary: &Boundary<'_>) -> Option<Key> {
        let Self { context, saver, restorer, compactor, .. } = self;
        let key = saver.save(boundary, |range| pack::pack(&mut **context, &*restorer.buffers.backend, boundary, range));
        let key = key.inspect(|key| compactor.saved(*key));
        self.saved(key, boundary);
        key
    }

    /// Saves what an idle sequence holds. Returns the key of the row if the cache has all of it that may be used again.
    pub(crate) fn save_held(&mut self, seq: SeqId, reason: SaveReason, grid: Option<Grid>) -> Option<Key> {
        let Self { context, saver, restorer, held, .. } = self;
        let held = held.get(seq)?;
        let grid = grid.filter(|_| held.on_grid > 0);
        // Of an exact state, only what was computed on the grid may be kept.
        let count = match grid.filter(|_| held.on_grid < held.n_past) {
            Some(_) if !context.info().memory.can_cut() => return None,
            Some(grid) => grid.floor(held.on_grid),
            None => held.n_past,
        };
        let boundary = Boundary {
            seq,
            tokens: held.committed().get(..count)?,
            namespace: held.namespace,
            logits: held.logits.as_deref().filter(|_| count == held.n_past),
            reason,
            grid,
            tenant: held.tenant,
        };
        // Asked repeatedly for a short state, and then not even the tenant is recorded.
        if !saver.policy.should_save(reason, count) {
            return None;
        }
        let key =
            saver.save(&boundary, |range| pack::pack(&mut **context, &*restorer.buffers.backend, &boundary, range));
        if let (Some(key), Some(sharing)) = (key, &mut self.sharing) {
            sharing.saved(key, held.tenant.map(|tenant| tenant.id), reason);
        }
        key
    }

    // What other machines share.

    /// Whether there is a shared tier.
    pub(crate) fn has_remote(&self) -> bool {
        self.fetcher.is_some()
    }

    /// Starts a fetch from the shared tier, if it can pay.
    pub(crate) fn fetch(&mut self, request: FetchRequest) -> Option<Fetching> {
        self.fetcher.as_mut()?.start(request)
    }

    /// A request was restored from stored rows: others may want them too.
    pub(crate) fn used(&mut self, chosen: &Chosen, tenant: Option<Tenant>) {
        if let (Some(sharing), Some(key)) = (&mut self.sharing, chosen.whole_row()) {
            sharing.used(key, tenant.map(|tenant| tenant.id));
        }
    }

    /// Offers everything that waits for its conversation to become quiet. Nothing is offered afterwards.
    pub(crate) fn stop_sharing(&mut self) {
        self.sharing = None;
    }

    fn saved(&mut self, key: Option<Key>, boundary: &Boundary<'_>) {
        if let (Some(sharing), Some(key)) = (&mut self.sharing, key) {
            sharing.saved(key, boundary.tenant.map(|tenant| tenant.id), boundary.reason);
        }
    }

    // The computation.

    /// Whether a decode call can be interrupted at the cost of its own work alone: a device does not look at the flag.
    pub(crate) fn can_yield(&self) -> bool {
        self.can_cut() && !self.context.info().on_device
    }

    /// Runs one decode call, watched by the watchdog; `alone` is the only request in the batch, and up to the age `yields`
    /// the call gives way to a request that arrives. Also returns whether the watchdog aborted it.
    pub(crate) fn decode(
        &mut self,
        batch: &Batch,
        shared: &Shared,
        alone: Option<RequestId>,
        yields: Option<Duration>,
    ) -> (DecodeOutcome, bool) {
        shared.running.begin(&self.abort, alone, yields);
        let outcome = self.context.decode(batch);
        if outcome == DecodeOutcome::Done {
            self.context.synchronize();
        }
        (outcome, shared.running.end(&self.abort))
    }

    /// The logits of a row of the last decode call.
    pub(crate) fn logits(&self, row: usize) -> Option<&[f32]> {
        self.context.logits(row)
    }

    /// The adapters of requests that are admitted now.
    pub(crate) fn adapters(&self) -> &Arc<AdapterSet> {
        self.adapters.current()
    }

    /// Replaces the adapters of requests to come; those in flight keep theirs.
    pub(crate) fn set_adapters(&mut self, adapters: Vec<LoadedAdapter>, shared: &Shared) -> Result<(), EngineError> {
        self.adapters.replace(adapters, &shared.file)?;
        shared.set_adapters(Arc::clone(self.adapters.current()));
        Ok(())
    }

    /// Attaches a set of adapters to the context, unless it is attached already.
    pub(crate) fn attach(&mut self, set: &Arc<AdapterSet>) -> Result<(), EngineError> {
        self.adapters.attach(&mut *self.context, set)
    }

    /// Replaces a broken context by a fresh one. All sequences are empty then and all idle sessions forgotten; the requests
    /// in flight have to be restored.
    pub(crate) fn rebuild(&mut self, shared: &Shared) -> Result<(), ContextError> {
        self.context = shared.model.new_context(&shared.config.context, Arc::clone(&self.abort))?;
        self.held.clear();
        self.sessions_changed = true;
        let idle: Vec<SeqId> = self.idle_sessions().map(|(seq, _)| seq).collect();
        for seq in idle {
            self.admission.release_session(seq);
        }
        self.adapters.detached();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
