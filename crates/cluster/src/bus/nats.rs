//! The bus over a NATS server: subjects for messages, a key-value bucket with a time to live as registry.
//!
//! The client connects in the background and again whenever the connection breaks; until then messages are dropped, which
//! the sequence numbers show later. A server without JetStream has no registry: beats make nodes known a moment later.

use std::time::Duration;

use async_nats::jetstream::kv;
use async_nats::jetstream::stream::StorageType;
use async_nats::{Client, ConnectOptions, Subscriber, connection};
use async_trait::async_trait;
use futures_util::StreamExt;
use tokio::sync::Mutex;

use super::{Bus, BusError, Heard, Topic};

/// Entries of the registry live this long; nodes write theirs every second.
const TIME_TO_LIVE: Duration = Duration::from_secs(10);

/// For calls that wait for the server.
const PATIENCE: Duration = Duration::from_secs(2);

/// See the module.
pub struct NatsBus {
    client: Client,
    prefix: String,
    messages: Mutex<Subscriber>,
    registry: Mutex<Option<kv::Store>>,
}

impl std::fmt::Debug for NatsBus {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("NatsBus").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl NatsBus {
    /// Uses a server. `cluster` separates clusters on one server. It need not be there yet.
    ///
    /// # Errors
    ///
    /// The address cannot be used.
    pub async fn connect(server: &str, cluster: &str) -> Result<Self, BusError> {
        let failed = |reason: String| BusError::Bus { server: server.to_owned(), reason };
        let options = ConnectOptions::new()
            .name("poncho")
            .retry_on_initial_connect()
            .connection_timeout(PATIENCE)
            .ping_interval(PATIENCE)
            .subscription_capacity(65_536);
        let client = options.connect(server).await.map_err(|error| failed(error.to_string()))?;
        let prefix = format!("poncho.{cluster}");
        let subscribed = client.subscribe(format!("{prefix}.>")).await;
        let messages = Mutex::new(subscribed.map_err(|error| failed(error.to_string()))?);
        Ok(Self { client, prefix, messages, registry: Mutex::new(None) })
    }

    /// Whether the server is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == connection::State::Connected
    }

    /// The registry, opened when the server is there.
    async fn registry(&self) -> Option<kv::Store> {
        if !self.is_connected() {
            return None;
        }
        let mut registry = self.registry.lock().await;
        if registry.is_none() {
            let config = kv::Config {
                bucket: self.prefix.replace('.', "-"),
                history: 1,
                max_age: TIME_TO_LIVE,
                storage: StorageType::Memory,
                ..kv::Config::default()
            };
            let jetstream = async_nats::jetstream::new(self.client.clone());
            match tokio::time::timeout(PATIENCE, jetstream.create_key_value(config)).await {
                Ok(Ok(store)) => *registry = Some(store),
                Ok(Err(error)) => tracing::debug!(%error, "NATS has no registry for us"),
                Err(_) => tracing::debug!("NATS has no registry for us: no answer"),
            }
        }
        registry.clone()
    }
}

#[async_trait]
impl Bus for NatsBus {
    async fn publish(&self, topic: Topic, node: &str, sealed: Vec<u8>) {
        if !self.is_connected() {
            // The client would keep it and send it much later.
            return;
        }
        let subject = format!("{}.{}.{node}", self.prefix, topic.as_str());
        if let Err(error) = self.client.publish(subject, sealed.into()).await {
            tracing::debug!(%error, "an announcement was not sent");
        }
    }

    async fn register(&self, node: &str, sealed: Vec<u8>) {
        let Some(registry) = self.registry().await else { return };
        if !matches!(tokio::time::timeout(PATIENCE, registry.put(node, sealed.into())).await, Ok(Ok(_))) {
            // The bucket may be gone with a server that kept it in memory.
            *self.registry.lock().await = None;
        }
    }

    async fn registered(&self) -> Vec<Heard> {
        let Some(registry) = self.registry().await else { return Vec::new() };
        let read = async {
            let mut found = Vec::new();
            let Ok(mut keys) = registry.keys().await else { return found };
            while let Some(Ok(node)) = keys.next().await {
                if let Ok(Some(sealed)) = registry.get(node.as_str()).await {
                    found.push(Heard { topic: Topic::Beat, node, sealed: sealed.into() });
                }
            }
            found
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap_or_default()
    }

    async fn next(&self) -> Heard {
        let mut messages = self.messages.lock().await;
        loop {
            let Some(message) = messages.next().await else { std::future::pending().await };
            let rest = message.subject.as_str().strip_prefix(self.prefix.as_str());
            let Some((topic, node)) =
                rest.and_then(|rest| rest.strip_prefix('.')).and_then(|rest| rest.split_once('.'))
            else {
                continue;
            };
            let topic = match topic {
                "beat" => Topic::Beat,
                "rows" => Topic::Rows,
                _ => continue,
            };
            return Heard { topic, node: node.to_owned(), sealed: message.payload.to_vec() };
        }
    }
}
