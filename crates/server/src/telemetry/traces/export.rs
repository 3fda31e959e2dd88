//! The way of the spans to a collector: a bounded queue, and a task that sends what is in it.
//!
//! `serve` starts and stops it; `collector.rs` makes what sends. A caller with a span never waits: a full queue or a
//! collector that is down or refuses costs spans, which are counted, and nothing else. Nothing is sent twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry_sdk::trace::SpanData;
use reqwest::Url;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::collector::Collector;
use crate::config::ConfigError;

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
    queue: mpsc::Sender<SpanData>,
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
    /// Starts the task that sends to this address.
    pub(crate) fn start(url: &Url) -> Result<(Arc<Self>, Sending), ConfigError> {
        let collector = Collector::new(url).map_err(|reason| ConfigError::Exporter { reason })?;
        let (queue, spans) = mpsc::channel(QUEUE);
        let (stop, stopped) = oneshot::channel();
        let counts = Arc::<Counts>::default();
        let sender = Sender { collector, spans, counts: Arc::clone(&counts), is_failing: false };
        let task = tokio::spawn(sender.run(stopped));
        Ok((Arc::new(Self { queue, counts }), Sending { stop, task }))
    }

    /// Hands a span over, or counts it as dropped.
    pub(crate) fn send(&self, span: SpanData) {
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
    collector: Collector,
    spans: mpsc::Receiver<SpanData>,
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

    async fn send(&mut self, batch: &mut Vec<SpanData>) {
        let count = batch.len();
        let sent = timeout(SEND_LIMIT, self.collector.send(std::mem::take(batch))).await;
        match sent.unwrap_or_else(|_| Err("it did not answer in time".to_owned())) {
            Ok(()) => {
                Counts::add(&self.counts.sent, count);
                self.is_failing = false;
            }
            Err(reason) => {
                Counts::add(&self.counts.dropped, count);
                // Once is enough until it works again; the counter has the number.
                if !self.is_failing {
                    tracing::warn!(collector = self.collector.name(), reason, "traces are not taken and dropped");
                }
                self.is_failing = true;
            }
        }
    }
}

/// Waits for a span and takes along what comes soon after it. Nothing is lost if it is dropped half-way.
async fn gather(spans: &mut mpsc::Receiver<SpanData>, batch: &mut Vec<SpanData>) {
    if batch.is_empty() && spans.recv_many(batch, BATCH).await == 0 {
        return;
    }
    let end = Instant::now() + GATHER;
    while batch.len() < BATCH
        && let Ok(more) = timeout_at(end, spans.recv_many(batch, BATCH - batch.len())).await
        && more > 0
    {}
}
