//! The worker: the one thread that owns a model's context.
//!
//! It takes commands between two ticks, admits requests to sequences, runs one decode call per tick, draws tokens, saves
//! states and ends requests. `tick.rs` holds the decode call and its outcomes, `lifecycle.rs` admission's other half (where a
//! prompt is found, where a request ends), `commands.rs` the commands that are no requests. Nothing else may touch the
//! context. A panic in here ends this worker only; its supervisor starts another.

pub(crate) mod command;
pub(crate) mod commands;
pub(crate) mod embed;
pub(crate) mod inbox;
pub(crate) mod running;
pub(crate) mod shared;
pub(crate) mod status;
pub(crate) mod supervisor;
pub(crate) mod tick;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, TryRecvError};
use std::time::{Duration, Instant};

use poncho_cache::Policy;

use crate::adapters::{AdapterSet, ContextHashes};
use crate::backend::{Batch, Context, Grammar, KvLayout};
use crate::calls::event::StreamEvent;
use crate::calls::request::{Mode, Request, RequestId};
use crate::calls::stream::EventSender;
use crate::config::Checked as _;
use crate::error::EngineError;
use crate::schedule::admission::{Admission, Next, Place, Submitted, Ticket};
use crate::schedule::awaiting_parent::{LOOK_AGAIN, Orphan};
use crate::schedule::batch::{Budget, Plan, Work};
use crate::sequence::exact::ExactFacts;
use crate::sequence::live::LiveTable;
use crate::sequence::reading::Restoring;
use crate::sequence::task::{End, Task};
use crate::state::buffer_pool::{self, Staging};
use crate::state::compaction::Compactor;
use crate::state::cost::Estimates;
use crate::state::identity::{context_hash, exact_context_hash};
use crate::state::restore::Restorer;
use crate::state::save::Saver;
use crate::worker::command::Command;
use crate::worker::embed::Embeds;
use crate::worker::inbox::Inbox;
use crate::worker::running::AbortFlag;
use crate::worker::shared::Shared;
use crate::worker::status::Phase;

/// How often a worker that only waits for reads looks whether its callers still want them.
const LOOK_AT_CALLERS: Duration = Duration::from_millis(10);

/// Why a worker ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It was asked to, or nobody can reach it any more.
    Done,
    /// Its context cannot be used any more.
    Broken(String),
    /// The watchdog gave it up and another one serves; it must touch nothing that is shared.
    GivenUp,
}

/// A request that has no sequence yet.
pub(crate) struct Waiting {
    pub(crate) request: Box<Request>,
    pub(crate) grammar: Option<Box<dyn Grammar>>,
    pub(crate) events: EventSender,
    pub(crate) submitted: Instant,
}

/// See the module.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    /// Set by the watchdog when it starts another worker in this one's place.
    pub(crate) given_up: Arc<AtomicBool>,
    /// Stops its decode calls; `Running` sets it.
    pub(crate) abort: AbortFlag,
    pub(crate) context: Box<dyn Context>,
    pub(crate) policy: Policy,
    pub(crate) budget: Budget,
    pub(crate) hashes: ContextHashes,
    /// What exact requests need; `None` if the model was not loaded for them.
    pub(crate) exact: Option<ExactFacts>,
    pub(crate) admission: Admission,
    pub(crate) waiting: HashMap<RequestId, Waiting>,
    /// Requests that wait for their parent row, outside of the queue.
    pub(crate) orphans: Vec<Orphan>,
    /// Requests with a sequence whose stored state is being read.
    pub(crate) restoring: Vec<Restoring>,
    /// Where those who read wake the worker.
    pub(crate) commands: Sender<Command>,
    /// Requests with a sequence, in the order of their admission.
    pub(crate) tasks: Vec<Task>,
    pub(crate) live: LiveTable,
    /// What requests that are admitted now get.
    pub(crate) adapters: Arc<AdapterSet>,
    /// What the context has attached.
    pub(crate) attached: Arc<AdapterSet>,
    pub(crate) estimates: Estimates,
    /// Calls for embeddings, computed between ticks.
    pub(crate) embeds: Embeds,
    /// When the last decode call was over, unless the worker had nothing to do since.
    pub(crate) decoded_at: Option<Instant>,
    /// Joins rows of long chains in the background.
    pub(crate) compactor: Compactor,
    /// Where stored states are read into.
    pub(crate) staging: Staging,
    /// Whether the memory of the first restore was made ready.
    is_prepared: bool,
    /// Decode calls that failed one after the other.
    pub(crate) failures: u32,
    /// Whose turn it is when requests with different adapters run.
    pub(crate) turn: usize,
    pub(crate) batch: Batch,
    pub(crate) plan: Plan,
    pub(crate) work: Vec<Work>,
    /// Indexes into `tasks` of the requests in `work`.
    pub(crate) members: Vec<usize>,
}

impl Worker {
    /// A worker with a fresh context and no request.
    pub(crate) fn new(
        shared: Arc<Shared>,
        given_up: Arc<AtomicBool>,
        commands: Sender<Command>,
    ) -> Result<Self, EngineError> {
        let options = &shared.config.context;
        let abort = shared.running.new_worker();
        let mut context = shared.model.new_context(options, Arc::clone(&abort)).map_err(|error| {
            EngineError::Backend { call: "creating a context".to_owned(), reason: error.to_string() }
        })?;
        let exact = match shared.config.grid() {
            Some(grid) => Some(ExactFacts::find_out(&mut *context, grid, shared.limits.vocab)?),
            None => None,
        };
        let info = context.info();
        let budget = shared.config.budget(info.n_batch, info.n_seq_max)?;
        let policy = shared.config.policy()?;
        let plain = context_hash(options, info, shared.model.info());
        let build = shared.backend.build();
        let on_grid = |grid| exact_context_hash(options, info, shared.model.info(), grid, &build);
        let hashes = ContextHashes { plain, exact: shared.config.grid().map_or(plain, on_grid) };
        let none = Arc::new(AdapterSet::new(Vec::new(), &shared.file, hashes)?);
        let (n_seq, neighbours) = (info.n_seq_max, info.kv == KvLayout::Split);
        let compactor = Compactor::new(Arc::clone(&shared.cache), &*context, shared.config.bounds());
        shared.context_hash.get_or_init(|| plain);
        Ok(Self {
            admission: Admission::new(n_seq, shared.config.queue_limit).with_neighbours(neighbours),
            live: LiveTable::new(n_seq),
            adapters: shared.adapters().unwrap_or_else(|| Arc::clone(&none)),
            attached: none,
            abort,
            context,
            policy,
            budget,
            hashes,
            exact,
            waiting: HashMap::new(),
            orphans: Vec::new(),
            restoring: Vec::new(),
            commands,
            tasks: Vec::new(),
            estimates: Estimates::new(shared.config.restore_rule),
            embeds: Embeds::default(),
            failures: 0,
            decoded_at: None,
            compactor,
            staging: Staging::default(),
            is_prepared: false,
            turn: 0,
            batch: Batch::default(),
            plan: Plan::default(),
            work: Vec::new(),
            members: Vec::new(),
            given_up,
            shared,
        })
    }

    /// Serves until it is told to stop.
    pub(crate) fn run(&mut self, inbox: &Inbox) -> Exit {
        loop {
            // Whoever waits for a sequence while all of them are being read for waits for those reads.
            let is_waiting = !self.waiting.is_empty() && self.restoring.is_empty();
            if self.tasks.is_empty() && self.embeds.is_empty() && !is_waiting {
                self.decoded_at = None;
                match self.next_command(inbox) {
                    Ok(command) => {
                        if self.handle(command) {
                            return Exit::Done;
                        }
                    }
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => return Exit::Done,
                }
            }
            loop {
                match inbox.poll(&self.given_up) {
                    Ok(command) => {
                        if self.handle(command) {
                            return Exit::Done;
                        }
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) if self.tasks.is_empty() => return Exit::Done,
                    Err(TryRecvError::Disconnected) => break,
                }
            }
            // A command may have been the call that the watchdog gave up.
            if self.given_up.load(Ordering::SeqCst) {
                return Exit::GivenUp;
            }
            self.sweep_cancelled();
            self.look_for_parents();
            self.look_at_reads();
            // A request may be over as soon as it starts: all that it asked for was known.
            loop {
                self.end_tasks();
                self.admit();
                if self.tasks.iter().all(|task| task.end.is_none()) {
                    break;
                }
            }
            if !self.embeds.is_empty() {
                self.note_phase();
                self.embed_next();
                if self.given_up.load(Ordering::SeqCst) {
                    return Exit::GivenUp;
                }
            }
            if self.tasks.is_empty() {
                continue;
            }
            self.note_phase();
            let began = Instant::now();
            if let Err(exit) = self.tick() {
                return exit;
            }
            self.embeds.requests_ran(began.elapsed());
            self.serve_followers();
            self.make_saves();
            self.end_tasks();
            self.shed_idle(self.batch.rows.len());
        }
    }

    /// The next command for a worker that serves nobody. `Empty` if there is something to do without one.
    fn next_command(&mut self, inbox: &Inbox) -> Result<Command, TryRecvError> {
        self.note_phase();
        // Callers that change their mind meanwhile are only seen by looking.
        let reads =
            self.reads_until().map(|until| until.saturating_duration_since(Instant::now()).min(LOOK_AT_CALLERS));
        let parents = (!self.orphans.is_empty()).then_some(LOOK_AGAIN);
        if let Some(time) = reads.into_iter().chain(parents).min() {
            return inbox.wait_for(&self.given_up, time);
        }
        match inbox.poll(&self.given_up) {
            Err(TryRecvError::Empty) if !self.is_prepared => {
                self.prepare_restores();
                Err(TryRecvError::Empty)
            }
            Err(TryRecvError::Empty) if self.start_reread() => Err(TryRecvError::Empty),
            Err(TryRecvError::Empty) => inbox.wait(&self.given_up),
            other => other,
        }
    }

    /// With nothing else to do after a start: has the memory ready that the first restore will take. On a machine that has to
    /// make its pages first, filling fresh memory takes longer than all the rest of a restore.
    fn prepare_restores(&mut self) {
        self.is_prepared = true;
        let info = self.context.info().clone();
        let rows = self.shared.cache.rows();
        let ours = rows.iter().filter(|row| self.adapters.may_have_namespace(&row.meta.namespace));
        let expected = buffer_pool::expected(ours.map(|row| (row.bytes, row.meta.token_count)), &info);
        self.staging.prepare(&*self.shared.backend, expected);
    }

    /// Takes one command. True if it was the last.
    fn handle(&mut self, command: Command) -> bool {
        match command {
            Command::Submit { id, request, grammar, events, submitted } => {
                self.submit(id, Waiting { request, grammar, events, submitted });
            }
            Command::Shutdown { reply } => {
                self.shut_down();
                let _ = reply.send(Ok(()));
                return true;
            }
            other => self.handle_extra(other),
        }
        false
    }

    fn submit(&mut self, id: RequestId, waiting: Waiting) {
        if let Some(waiting) = self.set_aside(id, waiting) {
            self.enter(id, waiting);
        }
    }

    /// Admission: a request gets a sequence, waits for one, or is refused.
    pub(crate) fn enter(&mut self, id: RequestId, waiting: Waiting) {
        if waiting.events.is_cancelled() {
            return self.end_unstarted(id, waiting);
        }
        self.stop_rereads();
        let ticket = Ticket {
            request: id,
            session: waiting.request.session_id.clone(),
            needs_session: waiting.request.mode == Mode::Continue,
            owner: waiting.request.tenant.map(|tenant| tenant.id),
        };
        match self.admission.submit(ticket) {
            Submitted::Admitted(place) => self.start(id, waiting, place),
            Submitted::Queued(_) => {
                self.waiting.insert(id, waiting);
                self.admit();
            }
            Submitted::Refused(refusal) => self.shared.end(id, StreamEvent::Error(refusal.into())),
        }
    }

    /// Gives sequences to waiting requests, in their order. Idle sessions make room when none is free.
    fn admit(&mut self) {
        loop {
            match self.admission.admit_next() {
                Next::Admit(id, seq) => match self.waiting.remove(&id) {
                    Some(waiting) => self.start(id, waiting, Place::Fresh(seq)),
                    None => drop(self.admission.release(seq, crate::schedule::admission::After::Free)),
                },
                Next::ReleaseFirst(seq) => self.release_session(seq),
                Next::Wait => break,
            }
        }
    }

    /// Marks requests whose callers are gone or changed their mind.
    pub(crate) fn sweep_cancelled(&mut self) {
        for task in &mut self.tasks {
            if task.end.is_none() && task.events.is_cancelled() {
                task.end = Some(End::CANCELLED);
            }
        }
        self.cancel_reads(|task| task.events.is_cancelled());
        let gone: Vec<Orphan> = self.orphans.extract_if(.., |orphan| orphan.waiting.events.is_cancelled()).collect();
        for orphan in gone {
            self.end_unstarted(orphan.id, orphan.waiting);
        }
        if self.waiting.values().any(|waiting| waiting.events.is_cancelled()) {
            let gone: Vec<RequestId> =
                self.waiting.iter().filter(|(_, waiting)| waiting.events.is_cancelled()).map(|(id, _)| *id).collect();
            for id in gone {
                self.admission.cancel_queued(id);
                if let Some(waiting) = self.waiting.remove(&id) {
                    self.end_unstarted(id, waiting);
                }
            }
        }
    }

    /// A request was cancelled before it got a sequence.
    fn end_unstarted(&self, id: RequestId, waiting: Waiting) {
        let completion = crate::sequence::lifecycle::never_started(*waiting.request, waiting.submitted.elapsed());
        self.shared.end(id, StreamEvent::Done(Box::new(completion)));
    }

    pub(crate) fn note_phase(&self) {
        let status = &self.shared.status;
        status.pending.store(self.waiting.len() + self.orphans.len(), Ordering::Relaxed);
        status.active.store(self.tasks.len() + self.restoring.len(), Ordering::Relaxed);
        status.sessions.store(self.admission.idle_sessions().count(), Ordering::Relaxed);
        let is_idle = self.tasks.is_empty() && self.embeds.is_empty() && self.restoring.is_empty();
        status.set_phase(if is_idle {
            Phase::Idle
        } else if self.tasks.iter().all(Task::is_prefilling) {
            Phase::Prefilling
        } else {
            Phase::Generating
        });
    }

    /// What restoring needs.
    pub(crate) fn restorer(&mut self) -> Restorer<'_> {
        self.shared.restorer(&mut *self.context, &mut self.estimates, &self.staging)
    }

    /// What saving needs, borrowed apart from the tasks.
    pub(crate) fn saver(&mut self) -> Saver<'_> {
        Saver {
            context: &mut *self.context,
            backend: &*self.shared.backend,
            cache: &self.shared.cache,
            policy: &self.policy,
            tier: self.shared.config.tier,
            mode: self.shared.file.mode,
            watch: &self.shared.watch,
        }
    }
}
