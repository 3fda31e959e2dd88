//! The ZeroMQ sockets: PUB for batches as they come, ROUTER for subscribers that missed some.
//!
//! Frames of a batch are topic, sequence number (8 bytes, big-endian) and payload, as vLLM sends them. A subscriber that
//! sees a gap asks the replay socket for everything from a number on; the answer ends with the number -1. Publishing must
//! never hold up a node: events that do not fit into the queue are dropped, and their number shows the gap.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::mpsc;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::wire::{Batch, Event};

/// Batches that can be asked for again.
const REPLAYED: usize = 10_000;
/// Batches that wait to be sent.
const QUEUED: usize = 10_000;

/// Why events cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum KvEventsError {
    /// An address cannot be used.
    #[error("cannot publish KV events on {endpoint}: {reason}; choose a free port with --kv-events tcp://HOST:PORT")]
    Bind {
        /// The address.
        endpoint: String,
        /// What ZeroMQ reports.
        reason: String,
    },
}

/// Publishes batches until it is dropped.
#[derive(Debug)]
pub struct KvEvents {
    queue: mpsc::Sender<(u64, Batch)>,
    /// The number of the next batch. One that finds no room has a number too.
    next: AtomicU64,
    endpoint: String,
    replay: Option<String>,
}

impl KvEvents {
    /// Opens the sockets. `*` as a host listens on all interfaces.
    ///
    /// # Errors
    ///
    /// An address cannot be used.
    pub async fn bind(endpoint: &str, replay: Option<&str>, topic: &str) -> Result<Self, KvEventsError> {
        let mut socket = PubSocket::new();
        let bound = bind(&mut socket, endpoint).await?;
        let (replay_socket, replay) = match replay {
            Some(endpoint) => {
                let mut socket = RouterSocket::new();
                let bound = bind(&mut socket, endpoint).await?;
                (Some(socket), Some(bound))
            }
            None => (None, None),
        };
        let (queue, batches) = mpsc::channel(QUEUED);
        tokio::spawn(publish(socket, replay_socket, Bytes::copy_from_slice(topic.as_bytes()), batches));
        Ok(Self { queue, next: AtomicU64::new(0), endpoint: bound, replay })
    }

    /// Where batches are published; the port is the real one.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Where they can be asked for again.
    #[must_use]
    pub fn replay(&self) -> Option<&str> {
        self.replay.as_deref()
    }

    /// Publishes events. Says whether there was room for them.
    pub fn publish(&self, events: Vec<Event>) -> bool {
        if events.is_empty() {
            return true;
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.queue.try_send((number, Batch { time, events })).is_ok()
    }
}

async fn bind<S: Socket>(socket: &mut S, endpoint: &str) -> Result<String, KvEventsError> {
    let wanted = endpoint.replace("://*:", "://0.0.0.0:");
    let bound = socket.bind(&wanted).await;
    let failed = |error: zeromq::ZmqError| KvEventsError::Bind { endpoint: wanted.clone(), reason: error.to_string() };
    bound.map(|endpoint| endpoint.to_string()).map_err(failed)
}

async fn publish(
    mut socket: PubSocket,
    mut replay: Option<RouterSocket>,
    topic: Bytes,
    mut batches: mpsc::Receiver<(u64, Batch)>,
) {
    let mut sent: VecDeque<(u64, Bytes)> = VecDeque::new();
    loop {
        let asked = async {
            match &mut replay {
                Some(socket) => socket.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            batch = batches.recv() => {
                let Some((number, batch)) = batch else { return };
                let payload = Bytes::from(batch.encode());
                let mut message = ZmqMessage::from(topic.clone());
                message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
                message.push_back(payload.clone());
                if let Err(error) = socket.send(message).await {
                    tracing::warn!(%error, "a batch of KV events could not be sent");
                }
                sent.push_back((number, payload));
                if sent.len() > REPLAYED {
                    sent.pop_front();
                }
            }
            question = asked => {
                if let (Ok(question), Some(socket)) = (question, &mut replay) {
                    answer(socket, &question, &sent).await;
                }
            }
        }
    }
}

/// Sends what a subscriber missed: one message for each batch, and the end.
async fn answer(socket: &mut RouterSocket, question: &ZmqMessage, sent: &VecDeque<(u64, Bytes)>) {
    let (Some(client), Some(start)) = (question.get(0), question.get(question.len().saturating_sub(1))) else { return };
    let Ok(start) = <[u8; 8]>::try_from(start.as_ref()) else { return };
    let start = u64::from_be_bytes(start);
    let missed = sent.iter().filter(|(number, _)| *number >= start).cloned();
    let end = (u64::MAX, Bytes::new());
    for (number, payload) in missed.chain([end]) {
        let mut message = ZmqMessage::from(client.clone());
        message.push_back(Bytes::new());
        message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
        message.push_back(payload);
        if socket.send(message).await.is_err() {
            return;
        }
    }
}
