//! Which models are in memory: loads them when a request names one, keeps them within a budget, unloads them when their
//! time is over.
//!
//! `Models` asks it for every request; a `Lease` says that a request uses a model, from before the load until the last
//! byte of the reply. Loading and unloading run on blocking threads, one load for each model however many wait for it.
//! It must never unload a model that a lease is out for, nor give one out that is on its way out.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use poncho_api::{LoadEvent, Node, NodeModel};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::Instant;

use crate::config::KeepAlive;
use crate::error::ApiError;
use crate::library::{LibraryModel, ModelLibrary};
use crate::models::defaults::ServedDefaults;

pub(crate) mod budget;
mod embedding;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use state::{Known, LoadProgress};

use state::{Entry, Leaving, Outcome, Phase, Room, State};

/// A model of the library, with what is needed to load it.
pub(crate) struct Found {
    model: LibraryModel,
    bytes: u64,
    defaults: ServedDefaults,
}

impl Found {
    /// Looks at the model's file.
    pub(crate) async fn new(node: &dyn Node, model: LibraryModel) -> Result<Self, ApiError> {
        let defaults = ServedDefaults::new(&model.defaults)?;
        let bytes = node.footprint(&model.load()).await.total();
        Ok(Self { model, bytes, defaults })
    }

    /// The model's full name.
    pub(crate) fn id(&self) -> &str {
        self.model.name()
    }
}

/// A model that a request uses.
pub(crate) struct Held {
    pub(crate) model: Arc<dyn NodeModel>,
    pub(crate) known: Arc<Known>,
    pub(crate) lease: Lease,
}

/// A use of a model, or the wait for it.
pub(crate) struct Lease {
    shared: Arc<Shared>,
    id: String,
    load: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let used = state.next_use();
        let Some(entry) = state.of_load(&self.id, self.load) else { return };
        entry.users = entry.users.saturating_sub(1);
        entry.last_used = used;
        if entry.users == 0 {
            entry.rest(Instant::now());
            drop(state);
            self.shared.announce();
        }
    }
}

/// What came of a wish to unload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unloaded {
    /// It is gone.
    Gone,
    /// It goes when the last request has ended.
    WhenIdle,
    /// It was not there.
    NotLoaded,
    /// It stays: nobody could load it again.
    Kept,
}

/// A model as lists show it.
pub(crate) struct InMemory {
    pub(crate) id: String,
    pub(crate) place: Place,
    pub(crate) known: Arc<Known>,
    /// By the estimate.
    pub(crate) bytes: u64,
    pub(crate) users: usize,
    /// Larger for a later use.
    pub(crate) last_used: u64,
    /// When it goes by itself; counts from its last request, so it is later for one in use.
    pub(crate) expires: Option<Instant>,
}

/// Where a model stands.
pub(crate) enum Place {
    Loading(Arc<LoadProgress>),
    Ready(Arc<dyn NodeModel>),
    Unloading,
}

/// See the module.
pub(crate) struct Manager {
    shared: Arc<Shared>,
    /// Unloads what was not used for long; taken when the manager closes.
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Manager {
    fn drop(&mut self) {
        if let Some(keeper) = self.take_keeper() {
            keeper.abort();
        }
    }
}

/// The settings of the manager.
pub(crate) struct ManagerSettings {
    pub(crate) library: Option<Arc<dyn ModelLibrary>>,
    pub(crate) budget: Option<u64>,
    pub(crate) keep_alive: KeepAlive,
}

struct Shared {
    node: Arc<dyn Node>,
    settings: ManagerSettings,
    state: Mutex<State>,
    /// Loads and unloads that are under way: each holds the node.
    tasks: Mutex<JoinSet<()>>,
    /// Rises when a model came, went, or is used no more.
    changes: watch::Sender<u64>,
}

/// What a request for a model has to do next.
enum Step {
    Use(Held),
    Wait(Lease, watch::Receiver<Outcome>),
    Until(watch::Receiver<u64>),
    Absent,
}

impl Manager {
    /// Takes over what is loaded; what the library knows of it may be unloaded later. Needs a runtime.
    pub(crate) async fn start(node: Arc<dyn Node>, settings: ManagerSettings) -> Self {
        let loaded = node.models();
        let (state, tasks, changes) = (Mutex::default(), Mutex::default(), watch::Sender::new(0));
        let shared = Arc::new(Shared { node, settings, state, tasks, changes });
        for model in loaded {
            let (bytes, known) = shared.look_up(&*model).await;
            let mut state = shared.lock();
            state.configured.insert(model.report().id.clone());
            state.take_over(model, bytes, known);
        }
        let keeper = Mutex::new(Some(tokio::spawn(keep(Arc::clone(&shared)))));
        Self { shared, keeper }
    }

    fn take_keeper(&self) -> Option<JoinHandle<()>> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Where models come from.
    pub(crate) fn library(&self) -> Option<&Arc<dyn ModelLibrary>> {
        self.shared.settings.library.as_ref()
    }

    /// A model by its full name, loaded from `found` if it is not there; `None` if there is nothing to load it from.
    /// Waits for a load that is under way; a caller that stops waiting gives up its share in it.
    pub(crate) async fn acquire(
        &self,
        id: &str,
        mut found: Option<Found>,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Option<Held>, ApiError> {
        loop {
            match self.shared.step(id, &mut found, keep_alive)? {
                // A model with a changed file leaves, and the next step finds it gone. One that may not leave
                // refuses requests by itself.
                Step::Use(held) => {
                    if held.model.is_file_changed() || !held.model.look_at_file().await {
                        return Ok(Some(held));
                    }
                }
                Step::Absent => return Ok(None),
                Step::Until(mut change) => {
                    // The sender lives as long as `self`.
                    let _ = change.changed().await;
                }
                Step::Wait(lease, mut outcome) => {
                    let ended = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
                    ended.ok().flatten().unwrap_or(Err(ApiError::Internal { doing: "loaded a model" }))?;
                    return self.shared.ready(lease).map(Some);
                }
            }
        }
    }

    /// Unloads a model as soon as nobody uses it; waits for that only if nobody does now.
    pub(crate) async fn unload(&self, id: &str) -> Unloaded {
        let mut change = self.shared.changes.subscribe();
        let load = {
            let mut state = self.shared.lock();
            state.follow(&*self.shared.node);
            let Some(entry) = state.entries.get_mut(id) else { return Unloaded::NotLoaded };
            if entry.is_held {
                return Unloaded::Kept;
            }
            entry.keep_alive = KeepAlive::For(std::time::Duration::ZERO);
            if entry.users > 0 || matches!(entry.phase, Phase::Loading { .. }) {
                return Unloaded::WhenIdle;
            }
            let load = entry.load;
            let leaving = state.begin_unload(id);
            drop(state);
            self.shared.spawn_unloads(leaving);
            load
        };
        while self.shared.lock().of_load(id, load).is_some() {
            let _ = change.changed().await;
        }
        Unloaded::Gone
    }

    /// All models that are in memory, or on their way.
    pub(crate) fn in_memory(&self) -> Vec<InMemory> {
        let mut state = self.shared.lock();
        state.follow(&*self.shared.node);
        let now = Instant::now();
        let listed = state.entries.iter().map(|(id, entry)| InMemory {
            id: id.clone(),
            place: match &entry.phase {
                Phase::Loading { progress, .. } => Place::Loading(Arc::clone(progress)),
                Phase::Ready(model) => Place::Ready(Arc::clone(model)),
                Phase::Unloading => Place::Unloading,
            },
            known: Arc::clone(&entry.known),
            bytes: entry.total(),
            users: entry.users,
            last_used: entry.last_used,
            expires: match entry.keep_alive {
                _ if entry.is_held => None,
                KeepAlive::Forever => None,
                KeepAlive::For(pause) if entry.users > 0 => now.checked_add(pause),
                KeepAlive::For(_) => entry.expires,
            },
        });
        listed.collect()
    }

    /// Stops giving out models and waits until every load and unload has ended, or until `end`.
    pub(crate) async fn close(&self, end: Instant) {
        // Waited for: the owner of the engine may close its cache afterwards and open it again.
        if let Some(keeper) = self.take_keeper() {
            keeper.abort();
            let _ = keeper.await;
        }
        let mut change = self.shared.changes.subscribe();
        self.shared.lock().is_closed = true;
        let settled = async {
            while self.shared.lock().is_moving() {
                let _ = change.changed().await;
            }
        };
        if tokio::time::timeout_at(end, settled).await.is_err() {
            self.shared.lock().is_abandoned = true;
            tracing::warn!("a model is still being loaded or unloaded at the end of the grace");
        }
        let mut tasks = std::mem::take(&mut *self.shared.tasks());
        if tokio::time::timeout_at(end, async { while tasks.join_next().await.is_some() {} }).await.is_err() {
            tasks.detach_all();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks();
        // What ended meanwhile is forgotten.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    fn announce(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn step(
        self: &Arc<Self>,
        id: &str,
        found: &mut Option<Found>,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Step, ApiError> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(ApiError::ShuttingDown);
        }
        state.follow(&*self.node);
        let used = state.next_use();
        if let Some(entry) = state.entries.get_mut(id) {
            if matches!(entry.phase, Phase::Unloading) {
                return Ok(Step::Until(self.changes.subscribe()));
            }
            if matches!(&entry.phase, Phase::Ready(model) if model.is_file_changed()) && !entry.is_held {
                // Requests that run may end first; the last of them lets it go.
                entry.keep_alive = KeepAlive::For(std::time::Duration::ZERO);
                let change = self.changes.subscribe();
                let leaving = state.begin_unload(id);
                drop(state);
                self.spawn_unloads(leaving);
                return Ok(Step::Until(change));
            }
            entry.users += 1;
            entry.last_used = used;
            entry.keep_alive = keep_alive.unwrap_or(entry.keep_alive);
            // Not made where it could be dropped under the lock, which its end takes.
            let lease = || Lease { shared: Arc::clone(self), id: id.to_owned(), load: entry.load };
            return Ok(match &entry.phase {
                Phase::Loading { outcome, .. } => Step::Wait(lease(), outcome.clone()),
                Phase::Ready(model) => {
                    Step::Use(Held { model: Arc::clone(model), known: Arc::clone(&entry.known), lease: lease() })
                }
                Phase::Unloading => Step::Absent,
            });
        }
        let Some(Found { model, bytes, defaults }) = found.take() else { return Ok(Step::Absent) };
        let (announce, outcome) = watch::channel(None);
        let progress = Arc::<LoadProgress>::default();
        let load = state.next_load();
        let entry = Entry {
            load,
            bytes,
            embedding_bytes: 0,
            is_counted: false,
            users: 1,
            last_used: used,
            keep_alive: keep_alive.unwrap_or_else(|| state.keep_alive_of(id, self.settings.keep_alive)),
            expires: None,
            is_held: false,
            known: Arc::new(Known { defaults, facts: model.facts.clone(), problem: None }),
            phase: Phase::Loading { outcome: outcome.clone(), progress: Arc::clone(&progress) },
        };
        state.entries.insert(id.to_owned(), entry);
        self.spawn(Arc::clone(self).load(NewLoad { model, load, progress, announce }));
        Ok(Step::Wait(Lease { shared: Arc::clone(self), id: id.to_owned(), load }, outcome))
    }

    /// The model of a lease after its load succeeded.
    fn ready(&self, lease: Lease) -> Result<Held, ApiError> {
        let mut state = self.lock();
        let found = state.of_load(&lease.id, lease.load).and_then(|entry| match &entry.phase {
            Phase::Ready(model) => Some((Arc::clone(model), Arc::clone(&entry.known))),
            Phase::Loading { .. } | Phase::Unloading => None,
        });
        drop(state);
        match found {
            Some((model, known)) => Ok(Held { model, known, lease }),
            None => Err(ApiError::Internal { doing: "gave out a model that it had loaded" }),
        }
    }

    async fn load(self: Arc<Self>, new: NewLoad) {
        let NewLoad { model: found, load, progress, announce } = new;
        let id = found.name().to_owned();
        let loaded = match self.room(&id, load).await {
            Ok(()) => self.read(&found, &progress).await,
            Err(error) => Err(error),
        };
        let mut leaving = None;
        let outcome = {
            let mut state = self.lock();
            let is_abandoned = state.is_abandoned;
            let outcome = loaded.map(|model| {
                if let Some(entry) = state.of_load(&id, load) {
                    entry.phase = Phase::Ready(model);
                    if entry.users == 0 {
                        entry.rest(Instant::now());
                    }
                }
            });
            if outcome.is_err() {
                state.entries.remove(&id);
            } else if is_abandoned {
                leaving = state.begin_unload(&id);
            }
            outcome
        };
        match &outcome {
            Ok(()) => tracing::info!(model = %id, "loaded"),
            Err(error) => tracing::warn!(model = %id, %error, "not loaded"),
        }
        // Every waiter may have left.
        let _ = announce.send(Some(outcome));
        self.spawn_unloads(leaving);
        self.announce();
    }

    /// Waits until the budget has room for a load, unloading what nobody uses.
    async fn room(self: &Arc<Self>, id: &str, load: u64) -> Result<(), ApiError> {
        let mut change = self.changes.subscribe();
        loop {
            change.borrow_and_update();
            let (room, needed) = {
                let mut state = self.lock();
                state.follow(&*self.node);
                let needed = state.of_load(id, load).map_or(0, |entry| entry.bytes);
                (state.make_room(id, self.settings.budget), needed)
            };
            let (model, budget) = (id.to_owned(), self.settings.budget.unwrap_or(u64::MAX));
            match room {
                Room::Taken => return Ok(()),
                Room::TooLarge => return Err(ApiError::ModelTooLarge { model, needed, budget }),
                Room::Busy { used } => return Err(ApiError::NoMemory { model, needed, used, budget }),
                Room::Soon(leaving) => {
                    for model in &leaving {
                        tracing::info!(model = %model.id, "unloaded to make room for {id}");
                    }
                    self.spawn_unloads(leaving);
                    let _ = change.changed().await;
                }
            }
        }
    }

    /// What a model that is loaded already takes, and what the library knows of it.
    async fn look_up(&self, model: &dyn NodeModel) -> (u64, Option<Known>) {
        let (library, id) = (self.settings.library.clone(), model.report().id.clone());
        let found = spawn_blocking(move || library.and_then(|library| library.find(&id).ok().flatten()));
        let found = found.await.unwrap_or_else(|_| {
            tracing::error!("a loaded model could not be looked up; it stays loaded");
            None
        });
        let Some(found) = found.filter(|found| found.name() == model.report().id) else {
            return (model.footprint().await.total().max(model.report().info.size_bytes), None);
        };
        let facts = found.facts.clone();
        match Found::new(&*self.node, found).await {
            Ok(found) => (found.bytes, Some(Known { defaults: found.defaults, facts, problem: None })),
            Err(error) => {
                let (model_id, problem) = (&model.report().id, error.to_string());
                tracing::error!(
                    model = %model_id,
                    "the Modelfile cannot be used, so its settings are not applied: {problem}; create the model again"
                );
                let bytes = model.footprint().await.total().max(model.report().info.size_bytes);
                (bytes, Some(Known { defaults: ServedDefaults::default(), facts, problem: Some(problem) }))
            }
        }
    }

    async fn read(&self, found: &LibraryModel, progress: &LoadProgress) -> Result<Arc<dyn NodeModel>, ApiError> {
        let failed = || ApiError::Internal { doing: "loaded a model" };
        let mut loading = self.node.load(found.load());
        loop {
            match loading.next().await.ok_or_else(failed)? {
                LoadEvent::Progress { read, total } => {
                    progress.read.store(read, Ordering::Relaxed);
                    progress.total.store(total, Ordering::Relaxed);
                }
                LoadEvent::Loaded => return self.node.model(found.name()).ok_or_else(failed),
                LoadEvent::Failed(error) => return Err(ApiError::load_failed(found.name(), &error)),
            }
        }
    }

    fn spawn_unloads(self: &Arc<Self>, leaving: impl IntoIterator<Item = Leaving>) {
        for model in leaving {
            self.spawn(Arc::clone(self).unload(model));
        }
    }

    async fn unload(self: Arc<Self>, leaving: Leaving) {
        let Leaving { id, load, model } = leaving;
        let unloaded = self.node.unload(&id).await;
        // The last handle frees the weights.
        let _ = spawn_blocking(move || drop(model)).await;
        match unloaded {
            Ok(()) => tracing::info!(model = %id, "unloaded"),
            Err(error) => tracing::warn!(model = %id, %error, "unloaded, and not in order"),
        }
        let mut state = self.lock();
        if state.of_load(&id, load).is_some() {
            state.entries.remove(&id);
        }
        drop(state);
        self.announce();
    }
}

/// A load that begins.
struct NewLoad {
    model: LibraryModel,
    load: u64,
    progress: Arc<LoadProgress>,
    announce: watch::Sender<Outcome>,
}

/// Unloads models after their keep-alive, for as long as the manager lives.
async fn keep(shared: Arc<Shared>) {
    let mut change = shared.changes.subscribe();
    loop {
        change.borrow_and_update();
        let (leaving, next) = shared.lock().expire(Instant::now());
        shared.spawn_unloads(leaving);
        match next {
            Some(at) => {
                tokio::select! { () = tokio::time::sleep_until(at) => {}, _ = change.changed() => {} }
            }
            None => {
                let _ = change.changed().await;
            }
        }
    }
}
