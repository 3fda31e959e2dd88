//! The data that a model's handle, worker, supervisor and watchdog share.
//!
//! Everything here is read-only after loading or synchronised by itself. Reading it must never wait for the worker.

pub(crate) mod adapters;
pub(crate) mod embedding;
pub(crate) mod queue_place;
pub(crate) mod running;
pub(crate) mod session_list;
pub(crate) mod speeds;
pub(crate) mod status;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use poncho_api::{DraftRule, Drafts};
use poncho_cache::Cache;

use crate::backend::{Backend, Model};
use crate::calls::event::StreamEvent;
use crate::calls::request::{ModelLimits, Request, RequestId};
use crate::calls::stream::Streams;
use crate::config::{Checked as _, ModelConfig};
use crate::draft::library::Library;
use crate::error::EngineError;
use crate::files::file_watch::FileWatch;
use crate::schedule::grid::Grid;
use crate::shared::adapters::AdapterSet;
use crate::shared::embedding::OpenEmbeddings;
use crate::shared::running::Running;
use crate::shared::session_list::SessionList;
use crate::shared::status::{Status, add};
use crate::state::identity::FileIdentity;
use crate::state::segment_reader::Readers;

/// See the module.
pub(crate) struct Shared {
    pub(crate) config: ModelConfig,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) cache: Arc<Cache>,
    /// Stored rows as a source of drafts; `None` if drafts are off or come from elsewhere.
    pub(crate) library: Option<Library>,
    pub(crate) file: FileIdentity,
    /// Whether its files have changed since.
    pub(crate) watch: Arc<FileWatch>,
    pub(crate) limits: ModelLimits,
    pub(crate) status: Status,
    pub(crate) streams: Arc<Streams>,
    /// The idle sessions, as the worker last published them.
    pub(crate) sessions: SessionList,
    /// Calls for embeddings without an answer.
    pub(crate) embeddings: OpenEmbeddings,
    /// The decode call that runs, and the right to abort it.
    pub(crate) running: Arc<Running>,
    /// The threads that read stored rows.
    pub(crate) readers: Arc<Readers>,
    /// Set by the first worker: only a context knows the layout of its state.
    pub(crate) context_hash: OnceLock<[u8; 32]>,
    /// The adapters of requests that are admitted now; kept here because they outlive a worker. `None` until one is
    /// attached.
    pub(crate) adapters: Mutex<Option<Arc<AdapterSet>>>,
}

/// Whether the settings ask for drafts, or leave it to a backend on which they pay.
pub(crate) fn drafts_wanted(config: &ModelConfig, backend: &dyn Backend) -> bool {
    config.drafts != Drafts::Auto || config.draft_rule == DraftRule::Always || backend.drafts_by_itself()
}

impl Shared {
    /// Whether replies are drafted, as far as the settings and the backend decide it.
    pub(crate) fn drafts(&self) -> bool {
        drafts_wanted(&self.config, &*self.backend)
    }

    /// The grid of a request, if it is exact.
    pub(crate) fn grid_of(&self, request: &Request) -> Option<Grid> {
        self.config.grid().filter(|_| request.exact)
    }

    /// Gives a request its last event.
    pub(crate) fn end(&self, id: RequestId, last: StreamEvent) {
        if let Some(sender) = self.streams.close(id) {
            // Counted first: a caller that has read the event may send the next request at once.
            self.status.depth.fetch_sub(1, Ordering::Relaxed);
            add(&self.status.ended, 1);
            sender.send(last);
        }
    }

    /// Ends every open request and every open call for embeddings with an error.
    pub(crate) fn fail_all(&self, error: &EngineError) {
        // All are closed before the first error is sent: what a caller starts after its error is for the next worker.
        let (open, embeddings) = (self.streams.close_all(), self.embeddings.close_all());
        self.status.depth.fetch_sub(open.len(), Ordering::Relaxed);
        add(&self.status.ended, open.len() as u64);
        open.iter().for_each(|sender| sender.send(StreamEvent::Error(error.clone())));
        for reply in embeddings {
            let _ = reply.send(Err(error.clone()));
        }
    }

    /// The adapters of a worker that starts now.
    pub(crate) fn adapters(&self) -> Option<Arc<AdapterSet>> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Remembers the adapters for workers to come.
    pub(crate) fn set_adapters(&self, set: Arc<AdapterSet>) {
        *self.adapters.lock().unwrap_or_else(PoisonError::into_inner) = Some(set);
    }

    /// Cancels a request; a decode call that works for it alone stops soon.
    pub(crate) fn cancel(&self, id: RequestId) -> bool {
        let found = self.streams.cancel(id);
        if found {
            self.running.cancel(id);
        }
        found
    }
}
