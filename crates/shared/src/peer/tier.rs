//! The rows of other nodes as the engine uses them: the trait of the cache over the nodes of a cluster.
//!
//! Opened by the process that has the cache, if the node belongs to a cluster. A lookup asks the nodes that are said to
//! have a row, a fetch pulls it from the one that answered, with the checks of the shared tier. Nothing is uploaded: other
//! nodes pull. It must never make a caller wait past its patience, and never hand out bytes that were not checked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use poncho_cache::{
    Chain, HitTier, Key, Offer, Patience, RemoteCounts, RemoteError, RemoteQuery, RemoteRates, RemoteRow, RemoteStatus,
    RemoteTier,
};

use super::client::{PeerClient, PeerStore, Refusal};
use super::edges::Edges;
use super::protocol::{Found, Question};
use super::server::{RowServer, ServedCounters};
use super::{Holder, PullError, PullLimits, PullSecret, PullTls, Whereabouts};
use crate::content::manifest::Damage;
use crate::objects::access::{Objects, Trouble};
use crate::objects::location::Location;
use crate::settings::{Sizes, Timing};
use crate::transfer::read::{NotFetched, Reader};
use crate::transfer::spare::Spare;
use crate::transfer::vitals::{Vitals, add, load};
use crate::transfer::waiter::Waiter;

/// Nodes that are asked about one prompt.
const MOST_ASKED: usize = 3;
/// The share of a caller's patience that one question may take.
const SHARE_OF_QUESTION: u32 = 2;

/// See the module.
#[derive(Debug)]
pub struct PeerTier {
    inner: Arc<Inner>,
    /// What this node serves itself, and where.
    served: OnceLock<(Arc<RowServer>, String)>,
    waiter: Waiter,
}

#[derive(Debug)]
struct Inner {
    peers: Arc<dyn Whereabouts>,
    client: PeerClient,
    edges: Edges,
    limits: PullLimits,
    vitals: Arc<Vitals>,
    spare: Spare,
}

/// A row that a node has.
struct Answered {
    address: String,
    /// Its place in the question: the first is the longest.
    place: usize,
    found: Found,
}

impl PeerTier {
    /// A tier over the nodes that `peers` knows.
    ///
    /// # Errors
    /// The certificates cannot be used, or no threads can be started.
    pub fn open(
        peers: Arc<dyn Whereabouts>,
        secret: PullSecret,
        tls: Option<&PullTls>,
        limits: PullLimits,
    ) -> Result<Self, PullError> {
        let client = PeerClient::new(secret, tls, limits.parallel_parts)?;
        let vitals = Arc::new(Vitals::new("peers".to_owned(), &timing(&limits)));
        let (edges, spare) = (Edges::new(limits), Spare::default());
        let inner = Inner { peers, client, edges, limits, vitals, spare };
        let waiter = Waiter::start("poncho-pull")?;
        Ok(Self { inner: Arc::new(inner), served: OnceLock::new(), waiter })
    }

    /// Keeps the server of this node's own rows, and reports what it serves and under which address other nodes find it.
    /// The first one counts.
    pub fn serves(&self, server: Arc<RowServer>, address: String) {
        let _ = self.served.set((server, address));
    }
}

fn timing(limits: &PullLimits) -> Timing {
    let PullLimits { first_pause, longest_pause, .. } = *limits;
    // The clocks of the client and the caller's patience come first; nothing is refreshed in a node.
    Timing { first_pause, longest_pause, refresh_after: Duration::MAX, ..Timing::default() }
}

/// A name of a row of one node, for the list of those that are not used again.
fn name_of(row: &RemoteRow) -> object_store::path::Path {
    object_store::path::Path::from(format!("{}/{}", String::from_utf8_lossy(&row.manifest), row.key))
}

impl Inner {
    /// The nodes to ask, the best one first.
    fn candidates(&self, keys: &[Key]) -> Vec<Holder> {
        let place = |holder: &Holder| keys.iter().position(|key| *key == holder.key).unwrap_or(usize::MAX);
        let mut holders = self.peers.holders(keys);
        holders.retain(|holder| self.client.may_ask(&holder.address) && self.edges.may_ask(&holder.address));
        holders.sort_by_cached_key(|holder| (place(holder), self.edges.expected(&holder.address)));
        holders.truncate(MOST_ASKED);
        holders
    }

    async fn find(&self, question: &Question, holders: Vec<Holder>, limit: Duration) -> Result<Option<Answered>, ()> {
        let ask = |holder: Holder| async move {
            let started = Instant::now();
            let answer = tokio::time::timeout(limit, self.client.find(&holder.address, question)).await;
            let late = || Err(Refusal::Failed(format!("no answer within {} ms", limit.as_millis())));
            (holder, started.elapsed(), answer.unwrap_or_else(|_| late()))
        };
        let hinted = holders.iter().filter_map(|holder| question.keys.iter().position(|key| *key == holder.key)).min();
        let mut asked: FuturesUnordered<_> = holders.into_iter().map(ask).collect();
        let (mut best, mut failed): (Option<Answered>, bool) = (None, false);
        while let Some((holder, took, answer)) = asked.next().await {
            let Holder { address, .. } = holder;
            match answer {
                Ok(found) => {
                    self.edges.answered(&address, took);
                    let place = question.keys.iter().position(|key| *key == found.key).unwrap_or(usize::MAX);
                    if best.as_ref().is_none_or(|best| place < best.place) {
                        best = Some(Answered { address, place, found });
                    }
                    // Nobody is said to have more.
                    if best.as_ref().is_some_and(|best| Some(best.place) <= hinted) {
                        break;
                    }
                }
                Err(Refusal::Missing | Refusal::Busy) => self.edges.answered(&address, took),
                Err(Refusal::Failed(reason)) => {
                    failed = true;
                    self.failed(&address, &reason);
                }
            }
        }
        if best.is_none() && failed { Err(()) } else { Ok(best) }
    }

    fn failed(&self, address: &str, reason: &str) {
        add(&self.vitals.counters.failures, 1);
        self.edges.failed(address, reason);
    }

    /// The chain of a row of a node. `progress` counts the bytes that came.
    async fn fetch(&self, row: &RemoteRow, address: &str, progress: &Arc<AtomicU64>) -> Result<Chain, NotFetched> {
        let question = Question::new(row.owner, &row.namespace, &[row.key]);
        let manifest = self.client.open(address, &question).await.map_err(|refusal| match refusal {
            Refusal::Missing | Refusal::Busy => NotFetched::Damaged(Damage::MissingSegment),
            Refusal::Failed(reason) => NotFetched::Trouble(Trouble::Failed(reason)),
        })?;
        let store = PeerStore { client: self.client.clone(), address: address.to_owned() };
        let location = Location { store: Arc::new(store), name: address.to_owned(), folder: None };
        let PullLimits { part, parallel_parts, .. } = self.limits;
        let reader = Reader {
            objects: Objects::new(location, timing(&self.limits)),
            secret: self.client.secret().clone(),
            sizes: Sizes { part, parallel_parts, ..Sizes::default() },
            vitals: Arc::clone(&self.vitals),
            spare: self.spare.clone(),
        };
        let row = RemoteRow { manifest: Reader::ticket_of(&manifest), ..row.clone() };
        reader.fetch(&row, progress).await
    }
}

impl RemoteTier for PeerTier {
    fn find(&self, query: RemoteQuery<'_>, patience: &Patience) -> Result<Option<RemoteRow>, RemoteError> {
        let counters = &self.inner.vitals.counters;
        let holders = self.inner.candidates(query.keys);
        if holders.is_empty() {
            add(&counters.missed, 1);
            return Ok(None);
        }
        let is_trusted = |address: &str, key: &Key| {
            let manifest = Bytes::copy_from_slice(address.as_bytes());
            let row = RemoteRow {
                owner: query.owner,
                namespace: *query.namespace,
                key: *key,
                tokens: 0,
                bytes: 0,
                tier: HitTier::Peer,
                manifest,
            };
            !self.inner.vitals.is_distrusted(&name_of(&row))
        };
        // A row that was damaged is not asked for again: its node would return it.
        let keys: Vec<Key> = query
            .keys
            .iter()
            .filter(|key| holders.iter().all(|holder| is_trusted(&holder.address, key)))
            .copied()
            .collect();
        if keys.is_empty() {
            add(&counters.missed, 1);
            return Ok(None);
        }
        let question = Question::new(query.owner, query.namespace, &keys);
        let limit = patience.deadline.saturating_duration_since(Instant::now()) / SHARE_OF_QUESTION;
        let inner = Arc::clone(&self.inner);
        let asked = async move { inner.find(&question, holders, limit).await };
        match self.waiter.wait(patience, asked)? {
            Ok(Some(Answered { address, found, .. })) => {
                add(&counters.found, 1);
                Ok(Some(RemoteRow {
                    owner: query.owner,
                    namespace: *query.namespace,
                    key: found.key,
                    tokens: found.tokens,
                    bytes: found.bytes,
                    tier: HitTier::Peer,
                    manifest: address.into(),
                }))
            }
            Ok(None) => {
                add(&counters.missed, 1);
                Ok(None)
            }
            Err(()) => Err(RemoteError::Failed { detail: "no node that has the row answers".to_owned() }),
        }
    }

    fn fetch(&self, row: &RemoteRow, patience: &Patience) -> Result<Chain, RemoteError> {
        let address = String::from_utf8_lossy(&row.manifest).into_owned();
        let retry_in = self.inner.edges.retry_in(&address);
        if !retry_in.is_zero() || !self.inner.client.may_ask(&address) {
            return Err(RemoteError::Unavailable { retry_in });
        }
        let started = Instant::now();
        let progress = Arc::new(AtomicU64::new(0));
        let (inner, wanted, counted) = (Arc::clone(&self.inner), row.clone(), Arc::clone(&progress));
        let from = address.clone();
        let fetched = self.waiter.wait_for_transfer(patience, (row.bytes, &progress), async move {
            inner.fetch(&wanted, &from, &counted).await
        });
        let bytes = progress.load(Ordering::Relaxed);
        match fetched {
            Ok(Ok(chain)) => {
                add(&self.inner.vitals.counters.fetched_bytes, bytes);
                self.inner.edges.pulled(&address, bytes, started.elapsed());
                Ok(chain)
            }
            // It left the node meanwhile.
            Ok(Err(NotFetched::Damaged(Damage::MissingSegment))) => Err(RemoteError::Gone { key: row.key }),
            Ok(Err(NotFetched::Damaged(damage))) => {
                self.inner.vitals.damaged(&name_of(row), damage);
                self.inner.edges.failed(&address, damage.as_str());
                Err(RemoteError::Damaged { key: row.key, detail: damage.as_str().to_owned() })
            }
            Ok(Err(NotFetched::Trouble(trouble))) => {
                self.inner.failed(&address, &trouble.to_string());
                Err(RemoteError::Failed { detail: trouble.to_string() })
            }
            Err(RemoteError::Late) => {
                self.inner.failed(&address, &format!("only {bytes} bytes within {:?}", started.elapsed()));
                Err(RemoteError::Late)
            }
            Err(error) => Err(error),
        }
    }

    fn distrust(&self, row: &RemoteRow) {
        self.inner.vitals.damaged(&name_of(row), Damage::Content);
    }

    fn offer(&self, _: Offer) {
        // Other nodes pull what they need.
    }

    fn flush(&self, _: Instant) -> bool {
        true
    }

    fn rates(&self) -> Option<RemoteRates> {
        self.inner.peers.has_peers().then(|| self.inner.edges.best())
    }

    fn rates_of(&self, row: &RemoteRow) -> Option<RemoteRates> {
        let address = String::from_utf8_lossy(&row.manifest);
        self.inner.edges.may_ask(&address).then(|| self.inner.edges.rates(&address))
    }

    fn status(&self) -> RemoteStatus {
        let counters = &self.inner.vitals.counters;
        let own = self.served.get();
        let served =
            |read: fn(&ServedCounters) -> &AtomicU64| own.map_or(0, |(server, _)| load(read(server.counters())));
        RemoteStatus {
            location: own.map(|(_, address)| address.clone()).unwrap_or_default(),
            available: self.inner.peers.has_peers(),
            last_error: self.inner.edges.last_error().or_else(|| self.inner.vitals.last_damage()),
            counts: RemoteCounts {
                found: load(&counters.found),
                missed: load(&counters.missed),
                fetched_bytes: load(&counters.fetched_bytes),
                failures: load(&counters.failures) + counters.damaged.iter().map(load).sum::<u64>(),
                uploaded_rows: served(|all| &all.rows),
                uploaded_bytes: served(|all| &all.bytes),
                dropped_offers: served(|all| &all.refused),
                queued_offers: 0,
            },
        }
    }

    fn reports(&self) -> Vec<(HitTier, RemoteStatus, Option<RemoteRates>)> {
        vec![(HitTier::Peer, self.status(), self.rates())]
    }
}
