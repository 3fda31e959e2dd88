//! The accept loop and the shutdown.
//!
//! Readiness turns off first; then new work is refused while what is in flight may end. A reply that is still open after
//! the grace is cut off: its client gets the error event of its dialect, and the engine cancels it. Then connections are
//! closed. Loads and unloads under way may end too. Models are not unloaded here: the caller owns the engine and saves what it holds when this returns.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use poncho_api::Node;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::config::{ConfigError, ServerConfig, traces_url};
use crate::http::app::{App, SharedApp};
use crate::http::uploads;
use crate::http::write_timeout::TimedStream;
use crate::router;
use crate::telemetry::savings::Savings;
use crate::telemetry::traces::export::Exporter;

/// Bytes at a time that a connection reads. A head that did not end within two of them, more than any honest client sends,
/// is answered with 431; so are more than a hundred headers, which is the limit of the HTTP library.
const READ_BUFFER: usize = 32 << 10;

/// A process without free file descriptors cannot accept; a moment later it may.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long clients that are cut off have to take their error event.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// How often the sums of what the cache saved are written.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// How a server ends.
pub struct Ending<S, H, N> {
    /// Ready when the server is asked to stop: it takes no more work, and requests in flight may end within their grace.
    pub shutdown: S,
    /// Ready when the rest of the grace is not wanted: requests in flight are cut off.
    pub hurry: H,
    /// Called when the grace begins, if there is somebody to wait for.
    pub notice: N,
}

/// A server that was asked to stop and waits for requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draining {
    /// How many requests there are.
    pub replies: usize,
    /// How long it waits for them at most.
    pub limit: Duration,
}

/// Serves until `shutdown` is ready and the requests in flight have ended or used up their grace.
///
/// Models may be loaded and unloaded meanwhile, by requests and by the caller. When it returns, all requests
/// have ended; unload the models then, so that their state is saved. Use [`check_bind`](crate::check_bind) before binding the listener.
///
/// # Errors
/// A setting cannot be used. Failing connections are logged and end alone.
pub async fn serve(
    listener: TcpListener,
    node: Arc<dyn Node>,
    config: ServerConfig,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ConfigError> {
    let ending = Ending { shutdown, hurry: std::future::pending(), notice: |_| {} };
    serve_until(listener, node, config, ending).await
}

/// The same for a caller that shows the wait at the end, and may shorten it.
///
/// # Errors
/// As [`serve`].
pub async fn serve_until(
    listener: TcpListener,
    node: Arc<dyn Node>,
    config: ServerConfig,
    ending: Ending<impl Future<Output = ()>, impl Future<Output = ()>, impl FnOnce(Draining)>,
) -> Result<(), ConfigError> {
    config.check()?;
    let collector = config.otlp_endpoint.as_deref().map(traces_url).transpose()?;
    let (exporter, sending) = collector.as_ref().map(Exporter::start).transpose()?.unzip();
    let app: SharedApp = Arc::new(App::new(node, config, listener.local_addr().ok(), exporter).await);
    let mut connections = Connections::new(&app);
    let mut background = JoinSet::new();
    if let Some(library) = app.models.manager().library() {
        background.spawn(uploads::sweep(Arc::clone(library), app.config.uploads.sweep_every));
    }
    background.spawn(keep_savings(Arc::clone(&app.savings)));
    let Ending { shutdown, hurry, notice } = ending;
    let mut shutdown = pin!(shutdown);
    tokio::select! {
        () = connections.accept(&listener) => {}
        () = &mut shutdown => {}
    }
    app.life.begin_shutdown();
    let (replies, limit) = (app.life.count(), app.config.shutdown_grace);
    tracing::info!(in_flight = replies, "shutdown began");
    if replies > 0 && !limit.is_zero() {
        notice(Draining { replies, limit });
    }
    let mut end = Instant::now() + limit;
    tokio::select! {
        // Probes still reach the server while it waits.
        () = connections.accept(&listener) => {}
        () = app.life.idle() => {}
        () = sleep_until(end) => {}
        () = hurry => end = Instant::now(),
    }
    drop(listener);
    let cut = app.life.count();
    if cut > 0 {
        tracing::warn!(in_flight = cut, "requests did not end within the grace and are cut off");
        app.life.cut();
        end = Instant::now() + LAST_EVENTS;
    }
    connections.close(end).await;
    background.shutdown().await;
    app.models.close(end).await;
    save(&app.savings).await;
    if let Some(sending) = sending {
        sending.stop().await;
    }
    Ok(())
}

/// Writes the sums of what the cache saved from time to time.
async fn keep_savings(savings: Arc<Savings>) {
    loop {
        sleep(SAVE_EVERY).await;
        save(&savings).await;
    }
}

async fn save(savings: &Arc<Savings>) {
    let savings = Arc::clone(savings);
    // A panic in there loses sums and nothing else.
    let _ = tokio::task::spawn_blocking(move || savings.save()).await;
}

struct Connections {
    router: Router,
    http: http1::Builder,
    write_timeout: Duration,
    places: Arc<Semaphore>,
    graceful: GracefulShutdown,
    tasks: JoinSet<()>,
}

impl Connections {
    fn new(app: &SharedApp) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(app.config.header_timeout).max_buf_size(READ_BUFFER);
        Self {
            router: router::router(app),
            http,
            write_timeout: app.config.write_timeout,
            places: Arc::new(Semaphore::new(app.config.max_connections.min(Semaphore::MAX_PERMITS))),
            graceful: GracefulShutdown::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Accepts connections until it is dropped.
    async fn accept(&mut self, listener: &TcpListener) {
        loop {
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            self.start(stream, place);
            // What ended meanwhile is forgotten.
            while self.tasks.try_join_next().is_some() {}
        }
    }

    fn start(&mut self, stream: TcpStream, place: tokio::sync::OwnedSemaphorePermit) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "small packets may be delayed");
        }
        let service = TowerToHyperService::new(self.router.clone());
        let stream = TimedStream::new(stream, self.write_timeout);
        let connection = self.http.serve_connection(TokioIo::new(stream), service);
        let connection = self.graceful.watch(connection);
        self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended badly");
            }
            drop(place);
        });
    }

    /// Closes idle connections at once and the others when they are done or when the time is over.
    async fn close(self, end: Instant) {
        // Also with no grace left, idle connections get the chance to close in order.
        let end = end.max(Instant::now() + ACCEPT_PAUSE);
        if timeout_at(end, self.graceful.shutdown()).await.is_err() {
            tracing::warn!("connections did not end within the grace and are dropped");
        }
        let mut tasks = self.tasks;
        tasks.shutdown().await;
    }
}
