//! A node as a member of a cluster: it announces its rows, its load and how fast it is.
//!
//! Run by `poncho node --cluster`, beside whatever serves its requests. It reads the node through the api alone, so the
//! engine may be in another process. Nothing here may hold up a request, and nothing leaves without the cluster key.

mod meter;
pub(crate) mod rows;

use std::sync::Arc;

use poncho_api::{ModelReport, Node, RowBatch, RowChange, StoredRow};
use poncho_cluster::blocks::BlockHasher;
use poncho_cluster::bus::{Bus, BusError, Place, Station};
use poncho_cluster::index::Row;
use poncho_cluster::seal::ClusterKey;
use tokio::task::JoinSet;

use self::meter::Meter;
use self::rows::{RowSink, follow};

/// What a node can pull from others: bytes in a second, 0 for none.
pub type PeerSpeed = Arc<dyn Fn() -> f64 + Send + Sync>;

/// How a node joins.
#[derive(Clone)]
pub struct MemberSettings {
    /// The key of the cluster.
    pub key: ClusterKey,
    /// The bus; without one, routers that know the socket of this node ask it.
    pub bus: Option<Arc<dyn Bus>>,
    /// Its name and its addresses.
    pub place: Place,
    /// How fast it pulls rows of other nodes, if it does.
    pub peers: Option<PeerSpeed>,
}

/// See the module. Ends when it is dropped.
pub struct Membership {
    station: Arc<Station>,
    _tasks: JoinSet<()>,
}

impl Membership {
    /// Announces a node from now on.
    ///
    /// # Errors
    /// The name or the socket for questions cannot be used.
    pub async fn join(node: Arc<dyn Node>, settings: MemberSettings) -> Result<Self, BusError> {
        let MemberSettings { key, bus, place, peers } = settings;
        let meter = Meter::new(Arc::clone(&node), peers);
        let station = Station::join(&key, bus, &place, Arc::new(move || meter.models())).await?;
        let station = Arc::new(station);
        let mut tasks = JoinSet::new();
        let sink = Announced { station: Arc::clone(&station), hasher: key.hasher() };
        tasks.spawn(announce_address(Arc::clone(&node), Arc::clone(&station)));
        tasks.spawn(follow(node, sink));
        Ok(Self { station, _tasks: tasks })
    }

    /// Announces at once that this node takes no more requests.
    pub fn drain(&self) {
        self.station.drain();
    }

    /// Where questions of routers are answered.
    #[must_use]
    pub fn hints(&self) -> std::net::SocketAddr {
        self.station.hints()
    }
}

/// Between two looks at the address at which rows are pulled: it changes with the process that has the cache.
const LOOK: std::time::Duration = std::time::Duration::from_secs(1);

async fn announce_address(node: Arc<dyn Node>, station: Arc<Station>) {
    let mut ticks = tokio::time::interval(LOOK);
    loop {
        ticks.tick().await;
        let peers = node.cache().peers;
        station.serves_rows(peers.map(|peers| peers.location).filter(|address| !address.is_empty()));
    }
}

/// Which models replies can move between: the same file with the same context settings.
pub(crate) fn identity(model: &ModelReport) -> [u8; 32] {
    let (mut both, context) = (model.fingerprint, model.context_hash);
    // Both are hashes already; one alone may be the same for two models.
    both.iter_mut().zip(context).for_each(|(byte, other)| *byte = byte.rotate_left(1) ^ other);
    both
}

/// Rows as routers learn about them: keyed hashes instead of tokens.
struct Announced {
    station: Arc<Station>,
    hasher: BlockHasher,
}

impl RowSink for Announced {
    fn take(&mut self, batch: RowBatch) {
        if batch.resets {
            self.station.reset();
        }
        for change in batch.changes {
            match change {
                RowChange::Stored(row) => self.station.stored(announced(&self.hasher, &row)),
                RowChange::Removed(key) => self.station.removed(&key),
            }
        }
    }
}

fn announced(hasher: &BlockHasher, row: &StoredRow) -> Row {
    let prefix = hasher.prefix(&row.namespace, &row.tokens);
    let before = row.start as usize / poncho_cluster::blocks::BLOCK_TOKENS;
    let blocks = prefix.blocks().get(before..).unwrap_or_default().to_vec();
    let boundaries = prefix.boundary(row.tokens.len()).filter(|_| row.resumable).into_iter().collect();
    Row { key: row.key, parent: row.parent, blocks, boundaries, tier: row.tier, bytes: row.bytes }
}

#[cfg(test)]
mod tests {
    use poncho_api::{Key, Tier};

    use super::*;

    #[test]
    fn a_row_is_announced_with_the_blocks_that_it_adds_and_its_end() {
        let hasher = BlockHasher::new(b"key");
        let row = |start, length: u32, resumable| StoredRow {
            key: Key::from_bytes([1; 32]),
            parent: None,
            namespace: [2; 32],
            start,
            tokens: (0..length).collect(),
            resumable,
            tier: Tier::Disk,
            bytes: 5,
        };
        let whole = announced(&hasher, &row(0, 700, true));
        let tokens: Vec<u32> = (0..700).collect();
        let prefix = hasher.prefix(&[2; 32], &tokens);
        assert_eq!((whole.blocks.as_slice(), whole.bytes), (prefix.blocks(), 5));
        assert_eq!(whole.boundaries, [prefix.boundary(700).unwrap()]);
        // The parent has one complete block and part of the second.
        let rest = announced(&hasher, &row(300, 700, false));
        assert_eq!((rest.blocks.as_slice(), rest.boundaries.len()), (&prefix.blocks()[1..], 0));
        assert!(announced(&hasher, &row(600, 650, true)).blocks.is_empty());
    }
}
