//! The worker: the loop on the one thread that uses a model's context.
//!
//! It takes commands between two ticks, admits requests to sequences, runs one decode call per tick, saves states and ends
//! requests. The loop only says in which order that happens: the work is done by the types in its fields and by the functions
//! in `sequence/`. Nothing outside this thread may touch the context. A panic ends this worker only; its supervisor starts
//! another.

pub(crate) mod command;
mod commands;
mod drafting;
pub(crate) mod embed;
mod group;
mod inbox;
mod queue;
mod rows;
mod speculate;
pub(crate) mod supervisor;
mod tick;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, TryRecvError};
use std::time::{Duration, Instant};

use poncho_api::{RequestProgress, RequestStage};

use crate::config::Checked as _;
use crate::draft::library::Scope;
use crate::error::EngineError;
use crate::schedule::awaiting_parent::POLL_INTERVAL;
use crate::sequence::lifecycle::{end_all, save_all_and_cancel};
use crate::sequence::pending_read::PendingRead;
use crate::sequence::reading;
use crate::sequence::slots::Slots;
use crate::sequence::start::start_reread;
use crate::sequence::task::{End, Task, Waiting};
use crate::sequence::tasks::Tasks;
use crate::sequence::{followers, idle, remote, saves};
use crate::shared::Shared;
use crate::shared::status::Phase;
use crate::worker::command::Command;
use crate::worker::embed::Embeds;
use crate::worker::inbox::Inbox;
use crate::worker::queue::Queue;
use crate::worker::tick::{Exit, Ticker};

/// How often a worker that only waits for reads checks whether their callers are still there.
const CALLER_CHECK: Duration = Duration::from_millis(10);

/// See the module.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    /// Set by the watchdog when it starts another worker in this one's place.
    given_up: Arc<AtomicBool>,
    slots: Slots,
    tasks: Tasks,
    queue: Queue,
    ticker: Ticker,
    embeds: Embeds,
    /// Whether the memory of the first restore is prepared.
    is_prepared: bool,
}

impl Worker {
    /// A worker with a fresh context and no request.
    pub(crate) fn new(
        shared: Arc<Shared>,
        given_up: Arc<AtomicBool>,
        commands: Sender<Command>,
    ) -> Result<Self, EngineError> {
        let abort = shared.running.new_worker();
        let wake = Arc::new(move || {
            // A worker that is gone does not wait.
            let _ = commands.send(Command::Wake);
        });
        let slots = Slots::new(&shared, abort, wake)?;
        let info = slots.info();
        // A call of a model that goes back to the state before it is ended when a row comes: it may be long.
        let fetches = slots.has_remote() && !slots.can_cut();
        let ticker = Ticker::new(shared.config.budget(info.n_batch, info.n_seq_max, fetches)?);
        if let Some(library) = &shared.library {
            // So that the first request finds what is stored.
            library.want(Scope { namespace: slots.adapters().namespace, owner: None });
        }
        shared.status.set_draft_obstacle(slots.draft_obstacle());
        let embeds = Embeds::new(Arc::clone(slots.abort()));
        Ok(Self {
            slots,
            tasks: Tasks::default(),
            queue: Queue::default(),
            ticker,
            embeds,
            is_prepared: false,
            given_up,
            shared,
        })
    }

    /// Serves until it is asked to stop.
    pub(crate) fn run(&mut self, inbox: &Inbox) -> Exit {
        loop {
            // A request that waits for a sequence while reads are pending waits for those reads.
            let is_waiting = self.queue.waits_for_sequence() && self.tasks.reading.is_empty();
            if self.tasks.is_empty() && self.embeds.is_empty() && !is_waiting {
                self.ticker.pause_clock();
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
            self.shared.running.look();
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
            // A command may have contained the call that the watchdog gave up on.
            if self.given_up.load(Ordering::SeqCst) {
                return Exit::GivenUp;
            }
            self.sweep_cancelled();
            let Self { slots, tasks, queue, shared, .. } = self;
            queue.look_for_parents(slots, tasks, shared);
            queue.look_for_fetched(slots, tasks, shared);
            reading::collect(slots, tasks, shared);
            remote::take_over(slots, tasks, shared);
            // A request may be over as soon as it starts: everything that it asked for was known.
            loop {
                end_all(slots, tasks, shared);
                queue.admit(slots, tasks, shared);
                if tasks.first_ended().is_none() {
                    break;
                }
            }
            if !self.embeds.is_empty() {
                self.note_status();
                if self.embeds.run_next(&self.shared, !self.tasks.is_empty()) {
                    self.ticker.pause_clock();
                }
                if self.given_up.load(Ordering::SeqCst) {
                    return Exit::GivenUp;
                }
            }
            if self.tasks.is_empty() {
                continue;
            }
            self.note_status();
            let began = Instant::now();
            let Self { slots, tasks, shared, ticker, embeds, given_up, .. } = self;
            if let Err(exit) = ticker.tick(slots, tasks, shared, given_up) {
                return exit;
            }
            embeds.requests_ran(began.elapsed());
            followers::serve(slots, tasks, shared);
            saves::save_due(slots, tasks, shared);
            end_all(slots, tasks, shared);
            idle::shed(slots, shared, ticker.rows());
        }
    }

    /// The next command for a worker without requests. `Empty` if there is something to do without one.
    fn next_command(&mut self, inbox: &Inbox) -> Result<Command, TryRecvError> {
        self.note_status();
        // Cancellations send no command, so they are polled for.
        let deadline = reading::next_deadline(&self.tasks);
        let reads = deadline.map(|until| until.saturating_duration_since(Instant::now()).min(CALLER_CHECK));
        let parents = self.queue.waits_for_parent().then_some(POLL_INTERVAL);
        let fetches = self.queue.fetch_deadline();
        let fetches = fetches.map(|until| until.saturating_duration_since(Instant::now()).min(CALLER_CHECK));
        if let Some(time) = reads.into_iter().chain(parents).chain(fetches).min() {
            return inbox.wait_for(&self.given_up, time);
        }
        match inbox.poll(&self.given_up) {
            Err(TryRecvError::Empty) if !self.is_prepared => {
                self.is_prepared = true;
                self.slots.prepare_restores();
                Err(TryRecvError::Empty)
            }
            Err(TryRecvError::Empty) if start_reread(&mut self.slots, &mut self.tasks, &self.shared) => {
                Err(TryRecvError::Empty)
            }
            Err(TryRecvError::Empty) => inbox.wait(&self.given_up),
            other => other,
        }
    }

    /// Takes one command. Returns whether it was the last.
    fn handle(&mut self, command: Command) -> bool {
        let Self { slots, tasks, queue, embeds, shared, .. } = self;
        match command {
            Command::Submit { id, request, grammar, events, submitted } => {
                queue.submit(slots, tasks, shared, id, Waiting { request, grammar, events, submitted, fetched: None });
            }
            Command::Shutdown { reply } => {
                self.shut_down();
                let _ = reply.send(Ok(()));
                return true;
            }
            other => commands::execute(slots, tasks, embeds, shared, other),
        }
        false
    }

    /// Marks the requests that were cancelled, and ends those that have not started.
    fn sweep_cancelled(&mut self) {
        for task in self.tasks.iter_mut() {
            if task.end.is_none() && task.events.is_cancelled() {
                task.end = Some(End::CANCELLED);
            }
        }
        reading::cancel(&mut self.tasks, |task| task.events.is_cancelled());
        self.queue.sweep_cancelled(&mut self.slots, &self.shared);
    }

    /// Saves everything and ends every request.
    fn shut_down(&mut self) {
        self.sweep_cancelled();
        let Self { slots, tasks, queue, shared, .. } = self;
        reading::cancel(tasks, |_| true);
        save_all_and_cancel(slots, tasks, shared);
        // Before the answer: the caller that ends the process then waits for the uploads.
        slots.stop_sharing();
        queue.clear();
        shared.fail_all(&EngineError::ShuttingDown { model: shared.config.id.clone() });
        self.note_status();
    }

    /// Publishes what status answers show: they are made without asking the worker.
    fn note_status(&mut self) {
        let Self { shared, slots, tasks, queue, embeds, .. } = self;
        slots.publish_sessions(shared);
        let now = Instant::now();
        let running = tasks.iter().map(|(_, task)| (task.id, task.report(now)));
        let restoring = tasks.reading.iter().map(|PendingRead { task, .. }| {
            (task.id, RequestProgress { stage: RequestStage::Restoring, ..task.report(now) })
        });
        shared.streams.note(running.chain(restoring));
        let status = &shared.status;
        status.pending.store(queue.len(), Ordering::Relaxed);
        status.active.store(tasks.len() + tasks.reading.len(), Ordering::Relaxed);
        status.sessions.store(slots.idle_sessions().count(), Ordering::Relaxed);
        let is_idle = tasks.is_empty() && embeds.is_empty() && tasks.reading.is_empty();
        status.set_phase(if is_idle {
            Phase::Idle
        } else if tasks.iter().map(|(_, task)| task).all(Task::is_prefilling) {
            Phase::Prefilling
        } else {
            Phase::Generating
        });
    }
}
