//! What all handlers share: the models, the settings, the counters, and whether the server is going down.
//!
//! Made once by `serve`. It holds no state of any inference; a request in flight is only counted here, so that a
//! shutdown knows when the last one has ended.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use http_body_util::BodyExt;
use poncho_api::Node;
use tokio::sync::{Semaphore, watch};

use crate::config::ServerConfig;
use crate::http::auth::Keys;
use crate::http::origin::Gate;
use crate::http::warnings::WarningLog;
use crate::models::names::Models;
use crate::models::pulls::Pulls;
use crate::responses::records::Records;
use crate::responses::store::ResponseStore;
use crate::responses::tool_lists::ToolLists;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::record::Record;
use crate::telemetry::savings::Savings;
use crate::telemetry::traces::export::Exporter;

/// How handlers hold it.
pub(crate) type SharedApp = Arc<App>;

/// See the module.
pub(crate) struct App {
    /// Names to models.
    pub(crate) models: Models,
    /// The checked settings.
    pub(crate) config: ServerConfig,
    /// Who may come in.
    pub(crate) keys: Keys,
    /// What was measured.
    pub(crate) metrics: Arc<Metrics>,
    /// Downloads that are going on.
    pub(crate) pulls: Pulls,
    /// Files that may arrive at the same time.
    pub(crate) uploads: Semaphore,
    /// The origins and host names that are allowed.
    pub(crate) gate: Gate,
    /// Where spans go, if somebody collects them.
    pub(crate) exporter: Option<Arc<Exporter>>,
    /// Past responses of `/v1/responses`.
    pub(crate) responses: ResponseStore,
    /// Past requests that asked for diagnostics.
    pub(crate) records: Arc<Records>,
    /// The tools of MCP servers.
    pub(crate) tool_lists: ToolLists,
    /// Warnings that were logged.
    pub(crate) warnings: WarningLog,
    /// The last requests.
    pub(crate) record: Arc<Record>,
    /// What the cache saved.
    pub(crate) savings: Arc<Savings>,
    /// Shutdown and the requests it waits for.
    pub(crate) life: Life,
}

impl App {
    pub(crate) async fn new(
        node: Arc<dyn Node>,
        config: ServerConfig,
        address: Option<SocketAddr>,
        exporter: Option<Arc<Exporter>>,
    ) -> Self {
        Self {
            models: Models::new(node, &config).await,
            keys: Keys::new(&config),
            metrics: Arc::default(),
            pulls: Pulls::default(),
            uploads: Semaphore::new(config.uploads.at_once.min(Semaphore::MAX_PERMITS)),
            gate: Gate::new(&config, address),
            exporter,
            responses: ResponseStore::default(),
            records: Arc::new(Records::open(config.records_file.as_deref())),
            tool_lists: ToolLists::default(),
            warnings: WarningLog::default(),
            record: Arc::new(Record::new(config.requests_kept)),
            savings: Arc::new(Savings::open(config.savings_file.clone())),
            life: Life::default(),
            config,
        }
    }
}

/// Whether work is taken, how much of it is in flight, and whether that is being cut off.
pub(crate) struct Life {
    draining: AtomicBool,
    in_flight: Arc<watch::Sender<usize>>,
    cut: watch::Sender<bool>,
}

impl Default for Life {
    fn default() -> Self {
        Self {
            draining: AtomicBool::new(false),
            in_flight: Arc::new(watch::Sender::new(0)),
            cut: watch::Sender::new(false),
        }
    }
}

impl Life {
    /// From now on no work is taken.
    pub(crate) fn begin_shutdown(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Whether shutdown began.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Cuts off what is in flight: every reply ends with the error event of its dialect.
    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// For requests that must notice it.
    pub(crate) fn cut_signal(&self) -> CutSignal {
        CutSignal(self.cut.subscribe())
    }

    /// Counts a request until the value is dropped.
    pub(crate) fn enter(&self) -> InFlight {
        self.in_flight.send_modify(|count| *count += 1);
        InFlight(Arc::clone(&self.in_flight))
    }

    /// Requests in flight.
    pub(crate) fn count(&self) -> usize {
        *self.in_flight.borrow()
    }

    /// Waits until no request is in flight.
    pub(crate) async fn idle(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.in_flight.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// Lets a request in flight notice that it is cut off.
#[derive(Debug, Clone)]
pub(crate) struct CutSignal(watch::Receiver<bool>);

impl CutSignal {
    /// Waits until requests are cut off.
    pub(crate) async fn received(&mut self) {
        if self.0.wait_for(|is_cut| *is_cut).await.is_err() {
            // Nobody is left who could cut anything off.
            std::future::pending::<()>().await;
        }
    }
}

/// A request in flight.
pub(crate) struct InFlight(Arc<watch::Sender<usize>>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Lets a body hold something until it was sent or given up, such as its request in flight.
pub(crate) fn holding(body: Body, held: impl Send + 'static) -> Body {
    Body::new(body.map_err(move |error| {
        let _ = &held;
        error
    }))
}
