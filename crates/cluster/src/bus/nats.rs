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

/// Between two looks whether the server is connected.
const CONNECT_LOOK: Duration = Duration::from_millis(20);

/// An address as errors show it.
fn without_password(server: &str) -> String {
    match (server.split_once("://"), server.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => server.to_owned(),
    }
}

/// See the module.
pub struct NatsBus {
    client: Client,
    prefix: String,
    /// Opened by the first reader: what nobody reads would pile up.
    messages: Mutex<Option<Subscriber>>,
    registry: Mutex<Option<kv::Store>>,
}

impl std::fmt::Debug for NatsBus {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("NatsBus").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl NatsBus {
    /// Uses one of some servers. `cluster` separates clusters on one server. They need not be there yet.
    ///
    /// # Errors
    ///
    /// An address cannot be used.
    pub async fn connect<S: AsRef<str>>(servers: &[S], cluster: &str) -> Result<Self, BusError> {
        let names = || servers.iter().map(|server| without_password(server.as_ref())).collect::<Vec<_>>().join(", ");
        let failed = |reason: String| BusError::Bus { server: names(), reason };
        let options = ConnectOptions::new()
            .name("poncho")
            .retry_on_initial_connect()
            .connection_timeout(PATIENCE)
            .ping_interval(PATIENCE)
            .subscription_capacity(65_536);
        let client = options.connect(servers).await.map_err(|error| failed(error.to_string()))?;
        let prefix = format!("poncho.{cluster}");
        Ok(Self { client, prefix, messages: Mutex::new(None), registry: Mutex::new(None) })
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
        // A program that has just started connects at this moment.
        let connected = async {
            while !self.is_connected() {
                tokio::time::sleep(CONNECT_LOOK).await;
            }
        };
        if tokio::time::timeout(PATIENCE, connected).await.is_err() {
            return Vec::new();
        }
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
            let messages = match &mut *messages {
                Some(messages) => messages,
                none => match self.client.subscribe(format!("{}.>", self.prefix)).await {
                    Ok(subscribed) => none.insert(subscribed),
                    // Only a client that was closed refuses.
                    Err(_) => std::future::pending().await,
                },
            };
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
