//! Nodes on other machines as one: a model is found on any of them, and its replies outlive each of them.
//!
//! Made by `poncho serve --node` and `poncho route`. Each node has a task that connects again when the connection ends. In
//! a cluster, nodes come and go as they announce themselves, and requests go where their prefix is. While no node has a
//! model, reads answer from what is last known and calls wait. Models are loaded on the machines of the nodes: the paths
//! of this one mean nothing there. It must never block.

mod choice;
mod cluster;
mod kept;
mod peer;
mod route;
mod settings;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream;
use poncho_api::{
    CacheReport, CopyCheck, EngineError, EvictionSum, Footprint, Generate, HygieneRule, Key, LoadEvent, LoadModel,
    Loading, ModelFile, Node, NodeModel, OwnerId, PeerReport, PinOutcome, RowPage, RowStream, RowTokens,
    SharedTierReport, Tier,
};

use self::kept::Kept;
pub use self::kept::Routed;
pub use self::settings::FleetSettings;
use crate::link::{ConnectError, NodeAddress};
use crate::remote::RemoteNode;

/// See the module.
#[derive(Clone)]
pub struct Fleet(Arc<Kept>);

impl Fleet {
    /// Connects to all nodes. Those that do not answer are tried again from then on.
    ///
    /// # Errors
    /// A node is on another machine and certificates are missing, or a node refuses this end for good.
    pub async fn connect(settings: FleetSettings) -> Result<Self, ConnectError> {
        let exposed = settings.nodes.iter().find(|node| settings.credentials.is_none() && !node.is_this_machine());
        if let Some(address) = exposed {
            return Err(ConnectError::NeedsTls { address: address.clone() });
        }
        let cluster = settings.cluster.clone();
        let kept = Arc::new(Kept::new(settings));
        let connected = join_all(kept.peers().iter().map(peer::connect)).await;
        let mut nodes = Vec::new();
        for node in connected {
            nodes.push(match node {
                Err(error) if !error.may_pass() => return Err(error),
                node => node,
            });
        }
        for (number, node) in nodes.into_iter().enumerate() {
            tokio::spawn(peer::keep(Arc::downgrade(&kept), number, node));
        }
        kept.settled().await;
        if let Some(cluster) = cluster {
            cluster::first(&kept, &cluster).await;
            tokio::spawn(cluster::follow(Arc::downgrade(&kept), cluster));
        }
        Ok(Self(kept))
    }

    /// Which node would compute a reply, and why; nothing is computed. Without a name, the first model.
    ///
    /// # Errors
    /// No node has the model, the prompt cannot be rendered, or the fleet is not that of a cluster.
    pub async fn explain_route(&self, model: Option<&str>, generate: &Generate) -> Result<Routed, EngineError> {
        Kept::explain_route(&self.0, model, generate).await
    }

    /// How many nodes are connected now.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.0.nodes().len()
    }

    /// Those that do not answer now, each with the reason.
    #[must_use]
    pub fn absent(&self) -> Vec<(NodeAddress, String)> {
        self.0.absent()
    }

    async fn sum<F>(&self, call: impl Fn(RemoteNode) -> F + Send + Sync) -> u64
    where
        F: Future<Output = u64> + Send,
    {
        join_all(self.0.nodes().into_iter().map(call)).await.into_iter().fold(0, u64::saturating_add)
    }
}

#[async_trait]
impl Node for Fleet {
    fn models(&self) -> Vec<Arc<dyn NodeModel>> {
        Kept::models(&self.0)
    }

    fn model(&self, id: &str) -> Option<Arc<dyn NodeModel>> {
        Kept::model(&self.0, id)
    }

    async fn await_models(&self) -> bool {
        Kept::gathered(&self.0).await
    }

    fn hygiene(&self) -> Vec<HygieneRule> {
        self.0.nodes().first().map(Node::hygiene).unwrap_or_default()
    }

    fn load(&self, model: LoadModel) -> Loading {
        let error = EngineError::Config {
            setting: "model".to_owned(),
            reason: format!("{} can only be loaded by a node itself; name it with --model there", model.config.id),
        };
        Box::pin(stream::iter([LoadEvent::Failed(error)]))
    }

    async fn unload(&self, id: &str) -> Result<(), EngineError> {
        let having: Vec<_> = self.0.nodes().into_iter().filter(|node| node.remote_model(id).is_some()).collect();
        if having.is_empty() {
            return Err(EngineError::UnknownModel { model: id.to_owned() });
        }
        for node in having {
            node.unload(id).await?;
        }
        Ok(())
    }

    async fn footprint(&self, _: &LoadModel) -> Footprint {
        // Nothing is loaded here.
        Footprint::default()
    }

    async fn model_file(&self, path: &Path, longest_array: usize) -> ModelFile {
        let has_file = |node: &&RemoteNode| node.remote_models().iter().any(|model| model.report().path == path);
        match self.0.nodes().iter().find(has_file) {
            Some(node) => node.model_file(path, longest_array).await,
            None => ModelFile::default(),
        }
    }

    fn cache(&self) -> CacheReport {
        self.0.nodes().iter().map(Node::cache).reduce(together).unwrap_or_default()
    }

    async fn cache_rows(&self, owner: Option<OwnerId>, offset: usize, limit: usize) -> RowPage {
        let (mut page, mut skip) = (RowPage { total: 0, rows: Vec::new() }, offset);
        for node in self.0.nodes() {
            let wanted = limit.saturating_sub(page.rows.len());
            let RowPage { total, rows } = node.cache_rows(owner, skip, wanted).await;
            page.total += total;
            skip = skip.saturating_sub(total);
            page.rows.extend(rows);
        }
        page
    }

    fn follow_rows(&self) -> RowStream {
        // Each node announces its own.
        Box::pin(stream::empty())
    }

    async fn evict_bytes(&self, owner: Option<OwnerId>, bytes: u64, tiers: &[Tier]) -> u64 {
        self.sum(|node| async move { node.evict_bytes(owner, bytes, tiers).await }).await
    }

    async fn remove_row(&self, owner: Option<OwnerId>, key: Key) -> bool {
        // A row may be on several nodes.
        let removed = join_all(self.0.nodes().into_iter().map(|node| async move { node.remove_row(owner, key).await }));
        removed.await.contains(&true)
    }

    async fn pin_row(&self, owner: Option<OwnerId>, key: Key) -> PinOutcome {
        // A row may be on several nodes. One that could pin it is enough.
        let pinned = join_all(self.0.nodes().into_iter().map(|node| async move { node.pin_row(owner, key).await }));
        let worth = |outcome: &PinOutcome| match outcome {
            PinOutcome::Pinned => 2,
            PinOutcome::TooLarge { .. } | PinOutcome::TooMany { .. } => 1,
            PinOutcome::NoRow => 0,
        };
        pinned.await.into_iter().max_by_key(worth).unwrap_or(PinOutcome::NoRow)
    }

    async fn unpin_row(&self, owner: Option<OwnerId>, key: Key) -> bool {
        let removed = join_all(self.0.nodes().into_iter().map(|node| async move { node.unpin_row(owner, key).await }));
        removed.await.contains(&true)
    }

    async fn verify_row(&self, owner: Option<OwnerId>, key: Key) -> Option<Vec<CopyCheck>> {
        let checked = join_all(self.0.nodes().into_iter().map(|node| async move { node.verify_row(owner, key).await }));
        checked.await.into_iter().flatten().reduce(|one, two| [one, two].concat())
    }

    async fn row_tokens(&self, owner: Option<OwnerId>, key: Key) -> Option<RowTokens> {
        for node in self.0.nodes() {
            if let Some(tokens) = node.row_tokens(owner, key).await {
                return Some(tokens);
            }
        }
        None
    }

    async fn evictions(&self) -> Vec<EvictionSum> {
        let all = join_all(self.0.nodes().into_iter().map(|node| async move { node.evictions().await })).await;
        summed(all.into_iter().flatten())
    }

    fn peers(&self) -> Vec<PeerReport> {
        self.0.reports()
    }

    async fn clear_cache(&self) -> u64 {
        self.sum(|node| async move { node.clear_cache().await }).await
    }

    async fn collect_garbage(&self) -> u64 {
        self.sum(|node| async move { node.collect_garbage().await }).await
    }
}

/// The evictions of several caches, the oldest first.
fn summed(all: impl Iterator<Item = EvictionSum>) -> Vec<EvictionSum> {
    let mut sums: BTreeMap<_, EvictionSum> = BTreeMap::new();
    for one in all {
        let sum = sums.entry((one.hour, one.tier, one.cause)).or_insert(EvictionSum { rows: 0, bytes: 0, ..one });
        sum.rows = sum.rows.saturating_add(one.rows);
        sum.bytes = sum.bytes.saturating_add(one.bytes);
    }
    sums.into_values().collect()
}

/// Two caches as one report.
fn together(mut one: CacheReport, two: CacheReport) -> CacheReport {
    for counter in two.counters {
        match one.counters.iter_mut().find(|known| known.name == counter.name) {
            Some(known) => known.value += counter.value,
            None => one.counters.push(counter),
        }
    }
    for tier in two.tiers {
        match one.tiers.iter_mut().find(|known| known.tier == tier.tier) {
            Some(known) => {
                known.bytes += tier.bytes;
                known.quota += tier.quota;
                known.rows += tier.rows;
                known.health = known.health.take().or(tier.health);
            }
            None => one.tiers.push(tier),
        }
    }
    one.shared = either(one.shared, two.shared);
    one.peers = either(one.peers, two.peers);
    one.rows += two.rows;
    one.pinned_rows += two.pinned_rows;
    one.write_queue += two.write_queue;
    one.index_bytes += two.index_bytes;
    one
}

/// What two nodes say of a tier of other machines, as one report: counts are added, times are those of the slower one.
fn either(one: Option<SharedTierReport>, two: Option<SharedTierReport>) -> Option<SharedTierReport> {
    let (mut one, two) = match (one, two) {
        (Some(one), Some(two)) => (one, two),
        (one, two) => return one.or(two),
    };
    if one.location != two.location {
        // Each node has its own address, and none stands for all.
        one.location.clear();
    }
    one.on |= two.on;
    one.last_error = one.last_error.or(two.last_error);
    one.counts = one.counts.and(two.counts);
    one.megabyte = one.megabyte.max(two.megabyte);
    one.round_trip = one.round_trip.max(two.round_trip);
    Some(one)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use futures_util::future::{Ready, ready};
    use poncho_api::RemoteCounts;
    use tonic::Status;
    use tonic::body::Body;
    use tonic::server::NamedService;
    use tonic::transport::Server;
    use tonic::transport::server::TcpIncoming;
    use tower::Service;

    use super::*;

    /// A node of another release: it refuses whatever it is asked.
    #[derive(Clone)]
    struct Old;

    impl NamedService for Old {
        const NAME: &'static str = crate::methods::SERVICE;
    }

    impl Service<http::Request<Body>> for Old {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: http::Request<Body>) -> Self::Future {
            ready(Ok(Status::failed_precondition("the node speaks version 1 and the caller version 2").into_http()))
        }
    }

    async fn connect(address: &str) -> Result<Fleet, ConnectError> {
        let nodes = vec![address.parse().unwrap()];
        let call_wait = Duration::from_secs(1);
        Fleet::connect(FleetSettings { nodes, credentials: None, call_wait, cluster: None }).await
    }

    #[test]
    fn pulls_and_shared_rows_of_all_nodes_are_summed() {
        let tier = |location: &str, bytes, on, last_error: Option<&str>| SharedTierReport {
            location: location.to_owned(),
            on,
            last_error: last_error.map(str::to_owned),
            counts: RemoteCounts { found: 1, fetched_bytes: bytes, ..RemoteCounts::default() },
            megabyte: Some(Duration::from_millis(bytes)),
            ..SharedTierReport::default()
        };
        let report = |peers, shared| CacheReport { peers, shared, ..CacheReport::default() };
        let one = report(Some(tier("10.0.0.1:1", 5, false, Some("late"))), None);
        let two = report(Some(tier("10.0.0.2:1", 7, true, None)), Some(tier("s3://kv", 2, true, None)));
        let three = report(None, Some(tier("s3://kv", 3, true, None)));
        let all = together(together(one, two), three);
        let (peers, shared) = (all.peers.unwrap(), all.shared.unwrap());
        assert_eq!((peers.counts.found, peers.counts.fetched_bytes, peers.on), (2, 12, true));
        assert_eq!((peers.location.as_str(), peers.last_error.as_deref()), ("", Some("late")));
        assert_eq!(peers.megabyte, Some(Duration::from_millis(7)));
        assert_eq!((shared.location.as_str(), shared.counts.fetched_bytes), ("s3://kv", 5));
    }

    #[tokio::test]
    async fn a_node_of_another_version_is_an_error_with_both_numbers() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = Server::builder().add_service(Old).serve_with_incoming(TcpIncoming::from(listener));
        let serving = tokio::spawn(serving);
        let error = connect(&address).await.err().unwrap();
        assert!(
            matches!(error, ConnectError::Version { .. }) && error.to_string().contains("version 1 and"),
            "{error}"
        );
        serving.abort();
    }

    #[tokio::test]
    async fn a_node_on_another_machine_needs_certificates() {
        let error = connect("192.0.2.1:7070").await.err().unwrap();
        assert!(error.to_string().contains("--node-cert"), "{error}");
    }

    /// A front that starts before its nodes serves what there is.
    #[tokio::test]
    async fn a_node_that_does_not_answer_is_no_error() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let fleet = connect(&address).await.unwrap();
        assert!(fleet.models().is_empty());
        assert_eq!(fleet.absent().first().unwrap().0.to_string(), address);
    }
}
