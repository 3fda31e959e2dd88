//! The way of the spans to a collector: a bounded queue, and a task that sends what is in it as OTLP/HTTP JSON.
//!
//! `serve` starts and stops it. A caller with a span never waits: a full queue or a collector that is down or refuses
//! costs spans, which are counted, and nothing else. Plain HTTP only; a collector beside the server can speak TLS to
//! the rest of the world.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::header;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::otlp;
use super::span::Span;
use crate::config::Endpoint;

/// Spans that may wait: some seconds of a busy server.
const QUEUE: usize = 4096;
/// The most spans in a message.
const BATCH: usize = 512;
/// How long the first span of a message waits for others.
const GATHER: Duration = Duration::from_millis(500);
/// How long a collector may take.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// How long the last message may hold up a shutdown.
const LAST_LIMIT: Duration = Duration::from_secs(3);

/// Takes spans.
pub(crate) struct Exporter {
    queue: mpsc::Sender<Span>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, spans: usize) {
        counter.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

impl Exporter {
    /// Starts the task that sends.
    pub(crate) fn start(endpoint: Endpoint) -> (Arc<Self>, Sending) {
        let (queue, spans) = mpsc::channel(QUEUE);
        let (stop, stopped) = oneshot::channel();
        let counts = Arc::<Counts>::default();
        let sender = Sender { endpoint, spans, counts: Arc::clone(&counts), is_failing: false };
        let task = tokio::spawn(sender.run(stopped));
        (Arc::new(Self { queue, counts }), Sending { stop, task })
    }

    /// Hands a span over, or counts it as dropped.
    pub(crate) fn send(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            Counts::add(&self.counts.dropped, 1);
        }
    }

    /// Spans that a collector took, and spans that were given up.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.counts.sent.load(Ordering::Relaxed), self.counts.dropped.load(Ordering::Relaxed))
    }
}

/// The task that sends.
pub(crate) struct Sending {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Sending {
    /// Sends what is left, within a bound.
    pub(crate) async fn stop(self) {
        // A task that ended already needs no word.
        let _ = self.stop.send(());
        let task = self.task.abort_handle();
        if timeout(LAST_LIMIT, self.task).await.is_err() {
            task.abort();
        }
    }
}

struct Sender {
    endpoint: Endpoint,
    spans: mpsc::Receiver<Span>,
    counts: Arc<Counts>,
    is_failing: bool,
}

impl Sender {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut batch = Vec::new();
        loop {
            let is_over = tokio::select! {
                () = gather(&mut self.spans, &mut batch) => batch.is_empty(),
                _ = &mut stopped => true,
            };
            if is_over {
                break;
            }
            self.send(&mut batch).await;
        }
        // Nothing new comes after this: what is in the queue is the rest.
        self.spans.close();
        loop {
            while batch.len() < BATCH
                && let Ok(span) = self.spans.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                return;
            }
            self.send(&mut batch).await;
        }
    }

    async fn send(&mut self, batch: &mut Vec<Span>) {
        let sent = timeout(SEND_LIMIT, self.post(otlp::body(batch).to_string())).await;
        let sent = sent.unwrap_or_else(|_| Err("it did not answer in time".to_owned()));
        match sent {
            Ok(()) => {
                Counts::add(&self.counts.sent, batch.len());
                self.is_failing = false;
            }
            Err(reason) => {
                Counts::add(&self.counts.dropped, batch.len());
                // Once is enough until it works again; the counter has the number.
                if !self.is_failing {
                    tracing::warn!(collector = self.endpoint.authority, reason, "traces are not taken and dropped");
                }
                self.is_failing = true;
            }
        }
        batch.clear();
    }

    async fn post(&self, body: String) -> Result<(), String> {
        let Endpoint { authority, host, port, path } = &self.endpoint;
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(|error| text(&error))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut client, connection) = handshake.map_err(|error| text(&error))?;
        let connection = tokio::spawn(connection);
        let request = Request::post(path)
            .header(header::HOST, authority)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("poncho/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| text(&error))?;
        let response = client.send_request(request).await.map_err(|error| text(&error))?;
        let status = response.status();
        // Read to the end, so that the collector sees an orderly client; what it says is not needed.
        let _ = response.into_body().collect().await;
        connection.abort();
        if status.is_success() { Ok(()) } else { Err(format!("it answered {status}")) }
    }
}

/// Waits for a span and takes along what comes soon after it. Nothing is lost if it is dropped half-way.
async fn gather(spans: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
    if batch.is_empty() && spans.recv_many(batch, BATCH).await == 0 {
        return;
    }
    let end = Instant::now() + GATHER;
    while batch.len() < BATCH
        && let Ok(more) = timeout_at(end, spans.recv_many(batch, BATCH - batch.len())).await
        && more > 0
    {}
}
