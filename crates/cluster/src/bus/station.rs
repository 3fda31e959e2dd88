//! A node's side: announces rows, sends beats, and answers the questions of routers.
//!
//! The node's cache reports rows here; nothing waits for the network. Questions that are not sealed with the cluster key
//! get no answer, not even an error.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use poncho_kinds::Key;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::{Bus, BusError, Topic, check_name, frames};
use crate::hints::{Announcer, Drain, Incarnation, ModelBeat, Question, decode, encode};
use crate::index::Row;
use crate::member::State;
use crate::seal::{ClusterKey, Opener, Sealer};

/// Between two beats.
const BEAT: Duration = Duration::from_secs(1);
/// Removals that a router may have missed without starting over.
const REMOVALS: usize = 10_000;
/// A question is short.
const MOST_QUESTION: u32 = 4096;
/// Connections that are answered at the same time.
const MOST_CONNECTIONS: usize = 64;
/// Announcements that wait to be sent.
const QUEUED: usize = 10_000;
/// For reading a question.
const PATIENCE: Duration = Duration::from_secs(5);

/// The models of a node at this moment.
pub type Report = Arc<dyn Fn() -> Vec<ModelBeat> + Send + Sync>;

/// How a node is known and reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its name, unique in the cluster.
    pub name: String,
    /// Where requests reach it.
    pub address: String,
    /// The socket for questions.
    pub listen: SocketAddr,
    /// The host under which others reach that socket, if it listens on all interfaces.
    pub host: Option<String>,
}

/// See the module. Ends when it is dropped.
pub struct Station {
    shared: Arc<Shared>,
    announcements: mpsc::Sender<Vec<u8>>,
    hints: SocketAddr,
    tasks: JoinSet<()>,
}

struct Shared {
    name: String,
    announcer: Mutex<Announcer>,
    sealer: Sealer,
    opener: Opener,
    report: Report,
    is_draining: AtomicBool,
    /// Wakes the next beat.
    hurry: Notify,
}

impl Shared {
    fn announcer(&self) -> std::sync::MutexGuard<'_, Announcer> {
        self.announcer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seal<T: serde::Serialize>(&self, purpose: &str, message: &T) -> Option<Vec<u8>> {
        encode(message).ok().map(|plain| self.sealer.seal(purpose, &plain))
    }

    fn state(&self) -> State {
        if self.is_draining.load(Ordering::Relaxed) { State::Draining } else { State::Up }
    }

    /// Takes no more requests from now on.
    fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
        self.hurry.notify_one();
    }

    fn purpose(&self, topic: Topic) -> String {
        format!("{}/{}", topic.as_str(), self.name)
    }
}

impl Station {
    /// Joins a cluster. Without a bus, routers that know its socket ask it directly.
    ///
    /// # Errors
    ///
    /// The name or the socket cannot be used.
    pub async fn join(
        key: &ClusterKey,
        bus: Option<Arc<dyn Bus>>,
        place: &Place,
        report: Report,
    ) -> Result<Self, BusError> {
        let Place { name, address, listen, host } = place;
        check_name(name)?;
        let failed = |source| BusError::Listen { address: listen.to_string(), source };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let hints = listener.local_addr().map_err(failed)?;
        let incarnation = incarnation()?;
        let reached = match host {
            Some(host) if host.contains(':') => format!("[{host}]:{}", hints.port()),
            Some(host) => format!("{host}:{}", hints.port()),
            None => hints.to_string(),
        };
        let announcer = Announcer::new(name, address, &reached, incarnation, REMOVALS);
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            announcer: Mutex::new(announcer),
            sealer: Sealer::new(key)?,
            opener: Opener::new(key.clone()),
            report,
            is_draining: AtomicBool::new(false),
            hurry: Notify::new(),
        });
        let (announcements, queue) = mpsc::channel(QUEUED);
        let mut tasks = JoinSet::new();
        match bus {
            Some(bus) => _ = tasks.spawn(send(Arc::clone(&shared), bus, queue)),
            None => drop(queue),
        }
        tasks.spawn(answer(Arc::clone(&shared), listener));
        Ok(Self { shared, announcements, hints, tasks })
    }

    /// Where questions are answered.
    #[must_use]
    pub fn hints(&self) -> SocketAddr {
        self.hints
    }

    /// A row was stored or moved.
    pub fn stored(&self, row: Row) {
        // The order of numbers and of the queue must agree, so both happen under the lock.
        let mut announcer = self.shared.announcer();
        let changes = announcer.stored(row);
        self.queue(&changes);
    }

    /// A row is gone.
    pub fn removed(&self, key: &Key) {
        let mut announcer = self.shared.announcer();
        if let Some(changes) = announcer.removed(key) {
            self.queue(&changes);
        }
    }

    fn queue(&self, changes: &crate::hints::Changes) {
        let sealed = self.shared.seal(&self.shared.purpose(Topic::Rows), changes);
        // A full queue drops it: the number of the next one shows the gap.
        let _dropped = sealed.map(|sealed| self.announcements.try_send(sealed));
    }

    /// Where other nodes pull its rows from now on, if they can.
    pub fn serves_rows(&self, address: Option<String>) {
        self.shared.announcer().serves_rows(address);
    }

    /// The cache was opened again: all rows are announced from the start.
    pub fn reset(&self) {
        let mut announcer = self.shared.announcer();
        if !announcer.is_fresh()
            && let Ok(incarnation) = incarnation()
        {
            announcer.reset(incarnation);
        }
    }

    /// Announces at once that this node takes no more requests. What it has, it finishes.
    pub fn drain(&self) {
        self.shared.drain();
    }

    /// Whether it announces that it takes no more requests.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.shared.state() == State::Draining
    }

    /// Leaves: beats and answers end.
    pub async fn leave(mut self) {
        self.tasks.shutdown().await;
    }
}

fn incarnation() -> Result<Incarnation, BusError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| crate::seal::KeyError::NoRandom)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let started_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    Ok(Incarnation { started_ms, random: u64::from_le_bytes(random) })
}

async fn send(shared: Arc<Shared>, bus: Arc<dyn Bus>, mut queue: mpsc::Receiver<Vec<u8>>) {
    let mut beats = tokio::time::interval(BEAT);
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beats.tick() => beat(&shared, &*bus).await,
            () = shared.hurry.notified() => beat(&shared, &*bus).await,
            sealed = queue.recv() => {
                let Some(sealed) = sealed else { return };
                bus.publish(Topic::Rows, &shared.name, sealed).await;
            }
        }
    }
}

async fn beat(shared: &Shared, bus: &dyn Bus) {
    let models = (shared.report)();
    let beat = shared.announcer().beat(shared.state(), models);
    if let Some(sealed) = shared.seal(&shared.purpose(Topic::Beat), &beat) {
        bus.publish(Topic::Beat, &shared.name, sealed.clone()).await;
        bus.register(&shared.name, sealed).await;
    }
}

async fn answer(shared: Arc<Shared>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    // No file handles, mostly: a loop without a pause would take a core.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                if connections.len() < MOST_CONNECTIONS {
                    let shared = Arc::clone(&shared);
                    connections.spawn(async move {
                        let _late = tokio::time::timeout(PATIENCE, answer_one(&shared, stream)).await;
                    });
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn answer_one(shared: &Shared, mut stream: TcpStream) -> Option<()> {
    let sealed = frames::read(&mut stream, MOST_QUESTION).await.ok()?;
    let Ok(plain) = shared.opener.open("ask", &sealed) else {
        let drain: Drain = decode(&shared.opener.open("drain", &sealed).ok()?).ok()?;
        if drain.node != shared.name || drain.incarnation != shared.announcer().incarnation() {
            return None;
        }
        shared.drain();
        let sealed = shared.seal(&format!("drained/{}", drain.nonce), &true)?;
        return frames::write(&mut stream, &sealed).await.ok();
    };
    let question: Question = decode(&plain).ok()?;
    let models = (shared.report)();
    let answer = shared.announcer().answer(&question, shared.state(), models);
    let sealed = shared.seal(&format!("answer/{}", question.nonce), &answer)?;
    frames::write(&mut stream, &sealed).await.ok()
}
