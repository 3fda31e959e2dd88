//! The idle sessions of a model, readable without asking its worker.
//!
//! The worker publishes the list whenever it changes, before the reply that changed it ends; the supervisor clears it when
//! a worker is gone. Readers get a copy and never wait for the worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use poncho_api::SessionInfo;

/// A session and the moment at which its sequence came to rest.
#[derive(Debug, Clone)]
pub(crate) struct Resting {
    /// Unique for the life of a worker, so that nothing is computed again for a session that did not change.
    pub(crate) stamp: u64,
    pub(crate) info: SessionInfo,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct SessionList {
    resting: Mutex<Arc<Vec<Resting>>>,
}

impl SessionList {
    /// The last published list.
    pub(crate) fn get(&self) -> Arc<Vec<Resting>> {
        Arc::clone(&self.lock())
    }

    pub(crate) fn set(&self, resting: Vec<Resting>) {
        *self.lock() = Arc::new(resting);
    }

    /// The sessions of a worker that is gone are gone too.
    pub(crate) fn clear(&self) {
        self.set(Vec::new());
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Vec<Resting>>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
