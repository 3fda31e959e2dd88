//! A node that serves its rows, without an engine: a cache, a server, and tiers that pull from it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use poncho_cache::{Cache, CacheConfig, Key, OwnerId, PartKind, PayloadPart, SaveRequest};
use poncho_shared::{Holder, PeerTier, PullLimits, PullSecret, PullTls, RowServer, Whereabouts};
use tokio::runtime::Runtime;

use crate::fixture::NAMESPACE;

pub(crate) const SECRET: PullSecret = PullSecret::from_bytes([1; 32]);

/// Small ranges, and short pauses.
pub(crate) fn limits() -> PullLimits {
    PullLimits {
        part: 1000,
        parallel_parts: 4,
        first_pause: Duration::from_millis(20),
        longest_pause: Duration::from_millis(100),
        ..PullLimits::default()
    }
}

/// Nodes that are said to have every row.
#[derive(Debug)]
pub(crate) struct Known(Vec<SocketAddr>);

impl Known {
    pub(crate) fn at(addresses: &[SocketAddr]) -> Arc<Self> {
        Arc::new(Self(addresses.to_vec()))
    }
}

impl Whereabouts for Known {
    fn holders(&self, keys: &[Key]) -> Vec<Holder> {
        let Some(key) = keys.first() else { return Vec::new() };
        self.0.iter().map(|address| Holder { address: address.to_string(), key: *key }).collect()
    }

    fn has_peers(&self) -> bool {
        true
    }
}

pub(crate) struct Node {
    pub(crate) cache: Arc<Cache>,
    pub(crate) server: Arc<RowServer>,
    _runtime: Runtime,
}

impl Node {
    pub(crate) fn start(limits: PullLimits) -> Self {
        Self::with_tls(limits, None)
    }

    pub(crate) fn with_tls(limits: PullLimits, tls: Option<&PullTls>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(8 << 20)).unwrap());
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let inside = runtime.enter();
        let server = Arc::new(RowServer::start(listener, &cache, SECRET, tls, limits).unwrap());
        drop(inside);
        Self { cache, server, _runtime: runtime }
    }

    /// A tier of another node that pulls from this one.
    pub(crate) fn tier(&self, secret: PullSecret) -> PeerTier {
        self.tier_at(self.server.address(), secret, limits())
    }

    /// The same, where this node is reached at another address.
    pub(crate) fn tier_at(&self, address: SocketAddr, secret: PullSecret, limits: PullLimits) -> PeerTier {
        let tier = PeerTier::open(Known::at(&[address]), secret, None, limits).unwrap();
        tier.serves(Arc::clone(&self.server), self.server.address().to_string());
        tier
    }
}

/// The tokens of a conversation.
pub(crate) fn tokens(conversation: u32, count: u32) -> Vec<u32> {
    (0..count).map(|token| conversation * 1000 + token).collect()
}

/// Saves rows up to these ends with states of these lengths, one row on the other.
pub(crate) fn save_chain(
    cache: &Cache,
    conversation: u32,
    ends: &[u32],
    lengths: &[usize],
    owner: Option<OwnerId>,
) -> Vec<Key> {
    let rows = ends.iter().zip(lengths);
    rows.map(|(end, length)| save_row(cache, &tokens(conversation, *end), *length, owner)).collect()
}

/// Saves a row on top of what the cache has of its tokens.
pub(crate) fn save_row(cache: &Cache, tokens: &[u32], length: usize, owner: Option<OwnerId>) -> Key {
    let base = cache.base_for(&NAMESPACE, tokens, None);
    let seed = tokens.len() as u32 + tokens.first().copied().unwrap_or_default();
    let state: Vec<u8> = (0..length).map(|place| (place as u32 * 31 + seed) as u8).collect();
    let parts = vec![PayloadPart { kind: PartKind::Attention, bytes: state.into() }];
    let request = SaveRequest { base: base.as_ref(), owner, ..SaveRequest::new(NAMESPACE, tokens, parts) };
    cache.save(request).unwrap().key
}
