//! What the manager knows of each model: being loaded, ready, on its way out; who uses it and until when it stays.
//!
//! Only the manager holds it, behind a lock that is never held across a wait. It must never block: loading and unloading
//! happen elsewhere and are only noted here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use poncho_api::{Node, NodeModel, Phase as ModelPhase};
use tokio::sync::watch;
use tokio::time::Instant;

use super::budget::Idle;
use crate::config::KeepAlive;
use crate::error::ApiError;
use crate::library::LibraryFacts;
use crate::models::defaults::ServedDefaults;

/// How a load ended; `None` while it goes on.
pub(super) type Outcome = Option<Result<(), ApiError>>;

/// How far the reading of a model's file is.
#[derive(Debug, Default)]
pub(crate) struct LoadProgress {
    pub(super) read: AtomicU64,
    pub(super) total: AtomicU64,
}

impl LoadProgress {
    /// Bytes read and bytes in all; both 0 where the file needs no reading.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.read.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}

pub(super) enum Phase {
    Loading { outcome: watch::Receiver<Outcome>, progress: Arc<LoadProgress> },
    Ready(Arc<dyn NodeModel>),
    Unloading,
}

/// What stays the same while a model is loaded.
#[derive(Default)]
pub(crate) struct Known {
    /// What requests that leave something out get.
    pub(crate) defaults: ServedDefaults,
    /// What the library said.
    pub(crate) facts: LibraryFacts,
    /// Why its Modelfile is not applied.
    pub(crate) problem: Option<String>,
}

pub(super) struct Entry {
    /// Distinguishes this load from an earlier one of the same model.
    pub(super) load: u64,
    /// The model and its first context.
    pub(super) bytes: u64,
    /// What the context for embeddings takes at most, once one was asked for.
    pub(super) embedding_bytes: u64,
    /// Whether the bytes count against the budget; not yet while a load waits for room.
    pub(super) is_counted: bool,
    /// Requests that run or wait for the load.
    pub(super) users: usize,
    pub(super) last_used: u64,
    pub(super) keep_alive: KeepAlive,
    /// When it goes, if nobody uses it until then.
    pub(super) expires: Option<Instant>,
    /// Loaded by the program around the server, which cannot be asked to load it again: it never goes by itself.
    pub(super) is_held: bool,
    pub(super) known: Arc<Known>,
    pub(super) phase: Phase,
}

impl Entry {
    /// Begins the time after the last request.
    pub(super) fn rest(&mut self, now: Instant) {
        self.expires = match self.keep_alive {
            KeepAlive::For(pause) if !self.is_held => now.checked_add(pause),
            KeepAlive::For(_) | KeepAlive::Forever => None,
        };
    }

    /// All that it takes.
    pub(super) fn total(&self) -> u64 {
        self.bytes.saturating_add(self.embedding_bytes)
    }

    fn is_idle(&self) -> bool {
        self.users == 0 && matches!(self.phase, Phase::Ready(_))
    }
}

/// A model that is being unloaded.
pub(super) struct Leaving {
    pub(super) id: String,
    pub(super) load: u64,
    /// Dropped where blocking is fine: the last handle waits for the worker.
    pub(super) model: Arc<dyn NodeModel>,
}

/// How a load can get its room.
pub(super) enum Room {
    /// It has it.
    Taken,
    /// Some models are on their way out.
    Soon(Vec<Leaving>),
    /// Too much of it is in use.
    Busy { used: u64 },
    /// Never.
    TooLarge,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) entries: BTreeMap<String, Entry>,
    /// Models that were loaded when the server started. They have no expiry, also after they were unloaded once.
    pub(super) configured: BTreeSet<String>,
    /// Counts uses, as a clock.
    uses: u64,
    loads: u64,
    /// Models are no longer given out.
    pub(super) is_closed: bool,
    /// Nobody will unload what is loaded from now on.
    pub(super) is_abandoned: bool,
}

impl State {
    /// A number for a new load.
    pub(super) fn next_load(&mut self) -> u64 {
        self.loads += 1;
        self.loads
    }

    /// A point in time for "last used".
    pub(super) fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// How long a model stays that is loaded by a request without a wish of its own.
    pub(super) fn keep_alive_of(&self, id: &str, otherwise: KeepAlive) -> KeepAlive {
        if self.configured.contains(id) { KeepAlive::Forever } else { otherwise }
    }

    /// Takes over what the program around loaded, and forgets what it unloaded.
    pub(super) fn follow(&mut self, node: &dyn Node) {
        self.entries.retain(|_, entry| match &entry.phase {
            // The registry forgets a model at once; its worker takes a moment to stop.
            Phase::Ready(model) => node.has_model(&model.report().id) && model.status().phase != ModelPhase::Stopped,
            Phase::Loading { .. } | Phase::Unloading => true,
        });
        for model in node.models() {
            if !self.entries.contains_key(&model.report().id) {
                let bytes = model.report().info.size_bytes;
                self.take_over(model, bytes, None);
            }
        }
    }

    /// Adds a model that is loaded already; one that the library knows may go when it is not used.
    pub(super) fn take_over(&mut self, model: Arc<dyn NodeModel>, bytes: u64, known: Option<Known>) {
        let id = model.report().id.clone();
        let entry = Entry {
            load: self.next_load(),
            bytes,
            embedding_bytes: 0,
            is_counted: true,
            users: 0,
            last_used: self.next_use(),
            keep_alive: KeepAlive::Forever,
            expires: None,
            is_held: known.is_none(),
            known: Arc::new(known.unwrap_or_default()),
            phase: Phase::Ready(model),
        };
        self.entries.insert(id, entry);
    }

    /// The entry of a load, unless it is gone.
    pub(super) fn of_load(&mut self, id: &str, load: u64) -> Option<&mut Entry> {
        self.entries.get_mut(id).filter(|entry| entry.load == load)
    }

    /// Begins to unload a model that nobody uses.
    pub(super) fn begin_unload(&mut self, id: &str) -> Option<Leaving> {
        let entry = self.entries.get_mut(id).filter(|entry| entry.is_idle())?;
        match std::mem::replace(&mut entry.phase, Phase::Unloading) {
            Phase::Ready(model) => Some(Leaving { id: id.to_owned(), load: entry.load, model }),
            other => {
                entry.phase = other;
                None
            }
        }
    }

    /// Begins to unload what has rested long enough; says when the next one has.
    pub(super) fn expire(&mut self, now: Instant) -> (Vec<Leaving>, Option<Instant>) {
        let due = |entry: &Entry| entry.is_idle() && entry.expires.is_some_and(|at| at <= now);
        let ids: Vec<String> = self.entries.iter().filter(|(_, entry)| due(entry)).map(|(id, _)| id.clone()).collect();
        let leaving = ids.iter().filter_map(|id| self.begin_unload(id)).collect();
        let resting = self.entries.values().filter(|entry| entry.is_idle());
        (leaving, resting.filter_map(|entry| entry.expires).min())
    }

    /// Counts a load against the budget, or begins what has to happen first.
    pub(super) fn make_room(&mut self, id: &str, budget: Option<u64>) -> Room {
        let Some(bytes) = self.entries.get(id).map(Entry::total) else { return Room::TooLarge };
        let room = self.room_for(bytes, bytes, budget);
        if let (Room::Taken, Some(entry)) = (&room, self.entries.get_mut(id)) {
            entry.is_counted = true;
        }
        room
    }

    /// Counts the context for embeddings of a loaded model against the budget, or begins what has to happen first.
    pub(super) fn make_embedding_room(&mut self, id: &str, wanted: u64, budget: Option<u64>) -> Room {
        let Some(entry) = self.entries.get(id) else { return Room::TooLarge };
        let more = wanted.saturating_sub(entry.embedding_bytes);
        let room = match more {
            0 => Room::Taken,
            more => self.room_for(more, entry.bytes.saturating_add(wanted), budget),
        };
        if let (Room::Taken, Some(entry)) = (&room, self.entries.get_mut(id)) {
            entry.embedding_bytes = entry.embedding_bytes.max(wanted);
        }
        room
    }

    /// Makes room for `bytes` more, for a model that takes `whole` with them.
    fn room_for(&mut self, bytes: u64, whole: u64, budget: Option<u64>) -> Room {
        let counted = self.entries.values().filter(|entry| entry.is_counted);
        let used = counted.map(Entry::total).fold(0, u64::saturating_add);
        if budget.is_none_or(|budget| used.saturating_add(bytes) <= budget) {
            return Room::Taken;
        }
        let budget = budget.unwrap_or(u64::MAX);
        if whole > budget {
            return Room::TooLarge;
        }
        let leaving = self.entries.values().filter(|entry| matches!(entry.phase, Phase::Unloading));
        let leaving_bytes = leaving.map(Entry::total).fold(0, u64::saturating_add);
        let missing = used.saturating_add(bytes).saturating_sub(budget).saturating_sub(leaving_bytes);
        let idle = self.entries.iter().filter(|(_, entry)| entry.is_idle() && !entry.is_held);
        let idle = idle.map(|(id, entry)| Idle { id: id.clone(), bytes: entry.total(), last_used: entry.last_used });
        match super::budget::victims(idle.collect(), missing) {
            Some(ids) => Room::Soon(ids.iter().filter_map(|id| self.begin_unload(id)).collect()),
            None => Room::Busy { used },
        }
    }

    /// Whether a load or an unload is under way.
    pub(super) fn is_moving(&self) -> bool {
        self.entries.values().any(|entry| !matches!(entry.phase, Phase::Ready(_)))
    }
}
