//! Keeps a model served: runs its worker, starts another when one ends by accident, and watches for ticks that never end.
//!
//! One thread per model runs workers one after the other; a second one, the watchdog, looks at the clock. Requests that
//! were open when a worker ended get an error that says so; those that come after are served by the next one. A worker
//! that does not come back from a decode call is left alone, and a thread with another one takes its place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::EngineError;
use crate::shared::Shared;
use crate::shared::running::{Age, Newcomer};
use crate::shared::status::{Phase, add};
use crate::worker::Worker;
use crate::worker::command::Command;
use crate::worker::inbox::Inbox;
use crate::worker::tick::Exit;

/// Room for whatever llama.cpp does by recursion while it computes; pages that are never touched cost nothing.
const WORKER_STACK: usize = 64 << 20;
/// A worker that lived this long before it ended is started again without a longer pause.
const LONG_ENOUGH: Duration = Duration::from_secs(60);

/// The loader that waits for the first worker.
type Ready = SyncSender<Result<(), EngineError>>;

/// A model's threads. Dropping it ends them.
pub(crate) struct Supervisor {
    link: Arc<Link>,
    watchdog: Option<(Sender<()>, JoinHandle<()>)>,
}

/// What the handle, the watchdog and the workers' threads share besides the model.
struct Link {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    inbox: Inbox,
    current: Mutex<Option<Current>>,
    /// Whether a worker ended on purpose, and the condition to wait for that.
    ended: (Mutex<bool>, Condvar),
}

/// The thread that serves at the moment.
struct Current {
    thread: JoinHandle<()>,
    given_up: Arc<AtomicBool>,
}

impl Supervisor {
    /// Starts the first worker on a thread of its own and waits until it can serve.
    pub(crate) fn start(shared: Arc<Shared>) -> Result<Self, EngineError> {
        let (commands, received) = channel();
        let inbox = Inbox::new(received);
        let link = Arc::new(Link { shared, commands, inbox, current: Mutex::new(None), ended: Default::default() });
        let (ready, first) = sync_channel(1);
        link.start_worker(Some(ready))?;
        let model = || link.shared.config.id.clone();
        let died = || EngineError::WorkerDied { model: model(), reason: "it never started".to_owned() };
        first.recv().map_err(|_| died())??;
        let (stop, stopped) = channel();
        let watched = Arc::clone(&link);
        let watchdog = std::thread::Builder::new()
            .name("poncho-watchdog".to_owned())
            .spawn(move || watched.watch(&stopped))
            .map_err(|error| no_thread(&error))?;
        Ok(Self { link, watchdog: Some((stop, watchdog)) })
    }

    /// Sends a command to the worker.
    pub(crate) fn send(&self, command: Command) -> Result<(), EngineError> {
        let Link { shared, commands, .. } = &*self.link;
        let newcomer = match &command {
            Command::Submit { id, .. } | Command::Embed { id, .. } => Some(Newcomer::Request(*id)),
            Command::Wake => None,
            _ => Some(Newcomer::Command),
        };
        commands.send(command).map_err(|_| EngineError::ShuttingDown { model: shared.config.id.clone() })?;
        if let Some(newcomer) = newcomer {
            shared.running.arrived(newcomer);
        }
        Ok(())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let (reply, _) = tokio::sync::oneshot::channel();
        // The watchdog stays until a worker has taken the command: the one that serves now may be stuck.
        if self.send(Command::Shutdown { reply }).is_ok() {
            self.link.wait_until_ended();
        }
        if let Some((stop, thread)) = self.watchdog.take() {
            drop(stop);
            let _ = thread.join();
        }
        let current = self.link.lock().take();
        if let Some(current) = current {
            let _ = current.thread.join();
        }
    }
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until_ended(&self) {
        let (ended, changed) = &self.ended;
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_while(ended, |ended| !*ended));
    }

    /// Starts a thread that serves from now on.
    fn start_worker(self: &Arc<Self>, ready: Option<Ready>) -> Result<(), EngineError> {
        let given_up = Arc::new(AtomicBool::new(false));
        let (link, flag) = (Arc::clone(self), Arc::clone(&given_up));
        let thread = std::thread::Builder::new()
            .name("poncho-worker".to_owned())
            .stack_size(WORKER_STACK)
            .spawn(move || link.serve(&flag, ready))
            .map_err(|error| no_thread(&error))?;
        *self.lock() = Some(Current { thread, given_up });
        Ok(())
    }

    /// The watchdog: aborts a decode call that takes too long, and gives its worker up if that does not help.
    fn watch(self: &Arc<Self>, stopped: &Receiver<()>) {
        let bound = self.shared.config.watchdog;
        let step = (bound / 4).clamp(Duration::from_millis(5), Duration::from_secs(5));
        while matches!(stopped.recv_timeout(step), Err(RecvTimeoutError::Timeout)) {
            match self.shared.running.watch(bound) {
                Age::Fine => {}
                Age::Stuck(age) => self.replace_worker(age),
                Age::Aborted(age) => tracing::error!(
                    model = self.shared.config.id,
                    ms = age.as_millis(),
                    "a decode call exceeds its bound; aborted"
                ),
            }
        }
    }

    /// The worker does not come back from its decode call. Its thread cannot be ended, only left alone.
    fn replace_worker(self: &Arc<Self>, waited: Duration) {
        let model = self.shared.config.id.clone();
        tracing::error!(model, ms = waited.as_millis(), "the worker is stuck and is given up; another one is started");
        if let Some(current) = self.lock().as_ref() {
            current.given_up.store(true, Ordering::SeqCst);
        }
        // After the flag: what the old worker took before it saw the flag is open, and so fails here.
        self.shared.sessions.clear();
        self.shared.fail_all(&EngineError::Watchdog { model, waited });
        // Its call counts no more, also until the next worker has a flag of its own.
        drop(self.shared.running.new_worker());
        if let Err(error) = self.start_worker(None) {
            tracing::error!(%error, "no other worker could be started");
            self.stop();
        }
    }

    /// Runs workers until one ends on purpose or is given up.
    fn serve(&self, given_up: &Arc<AtomicBool>, mut ready: Option<Ready>) {
        let shared = &self.shared;
        let mut pause = shared.config.restart_pause;
        loop {
            shared.status.set_phase(Phase::Starting);
            let started = Instant::now();
            let served = catch_unwind(AssertUnwindSafe(|| {
                let mut worker = Worker::new(Arc::clone(shared), Arc::clone(given_up), self.commands.clone())?;
                add(&shared.status.starts, 1);
                shared.status.set_phase(Phase::Idle);
                if let Some(ready) = ready.take() {
                    let _ = ready.send(Ok(()));
                }
                Ok(worker.run(&self.inbox))
            }));
            if given_up.load(Ordering::SeqCst) {
                return;
            }
            let reason = match served {
                Ok(Ok(Exit::Done)) => break,
                Ok(Ok(Exit::Broken(reason))) => reason,
                Ok(Ok(Exit::GivenUp)) => return,
                Ok(Err(error)) => {
                    // The first context could not be made: loading failed, and nobody waits for a second try.
                    if let Some(ready) = ready.take() {
                        let _ = ready.send(Err(error));
                        break;
                    }
                    EngineError::to_string(&error)
                }
                Err(panic) => panic_text(&*panic),
            };
            let model = shared.config.id.clone();
            tracing::error!(model, reason, "the worker ended; it is started again");
            drop(shared.running.new_worker());
            shared.sessions.clear();
            shared.fail_all(&EngineError::WorkerDied { model, reason });
            if started.elapsed() > LONG_ENOUGH {
                pause = shared.config.restart_pause;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(shared.config.restart_pause_limit);
        }
        self.stop();
    }

    /// The model is no longer served.
    fn stop(&self) {
        self.shared.status.set_phase(Phase::Stopped);
        // In this order: a request that came too late is either refused by the inbox or open, and so fails here.
        self.inbox.close();
        self.shared.sessions.clear();
        self.shared.fail_all(&EngineError::ShuttingDown { model: self.shared.config.id.clone() });
        let (ended, changed) = &self.ended;
        *ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("it panicked: {}", text.unwrap_or_else(|| "without a message".to_owned()))
}

fn no_thread(error: &std::io::Error) -> EngineError {
    EngineError::Backend { call: "starting a thread".to_owned(), reason: error.to_string() }
}
