//! Other nodes and the shared tier as one: the cheaper one first.
//!
//! Used by the engine of a node that has both. A node of the cluster is asked first, because its rows are in memory or on a
//! local disk there; the shared tier is asked for what no node has. A pull that fails is tried in the shared tier, if
//! there is time. Uploads go to the shared tier. It must never return a mixture of both.

use std::sync::Arc;
use std::time::Instant;

use poncho_cache::{
    Chain, HitTier, Offer, Patience, RemoteError, RemoteQuery, RemoteRates, RemoteRow, RemoteStatus, RemoteTier,
};

/// See the module.
#[derive(Debug)]
pub struct Nearest {
    peers: Arc<dyn RemoteTier>,
    shared: Arc<dyn RemoteTier>,
}

impl Nearest {
    /// Both tiers as one.
    #[must_use]
    pub fn new(peers: Arc<dyn RemoteTier>, shared: Arc<dyn RemoteTier>) -> Self {
        Self { peers, shared }
    }

    fn of(&self, row: &RemoteRow) -> &Arc<dyn RemoteTier> {
        if row.tier == HitTier::Peer { &self.peers } else { &self.shared }
    }

    fn find_shared(&self, query: RemoteQuery<'_>, patience: &Patience) -> Result<Option<RemoteRow>, RemoteError> {
        match self.shared.rates() {
            Some(_) if !query.keys.is_empty() => self.shared.find(query, patience),
            Some(_) | None => Ok(None),
        }
    }
}

impl RemoteTier for Nearest {
    fn find(&self, query: RemoteQuery<'_>, patience: &Patience) -> Result<Option<RemoteRow>, RemoteError> {
        let near = match self.peers.rates() {
            Some(_) => self.peers.find(query, patience),
            None => Ok(None),
        };
        let row = match near {
            Ok(Some(row)) => row,
            Ok(None) => return self.find_shared(query, patience),
            Err(RemoteError::Cancelled) => return Err(RemoteError::Cancelled),
            Err(error) => {
                tracing::debug!(%error, "no node answers; the shared tier is asked");
                return self.find_shared(query, patience);
            }
        };
        // Only a longer row is worth another question.
        let place = query.keys.iter().position(|key| *key == row.key).unwrap_or(0);
        let longer = query.keys.get(..place).unwrap_or_default();
        match self.find_shared(RemoteQuery { keys: longer, ..query }, patience) {
            Ok(Some(longer)) => Ok(Some(longer)),
            Ok(None) | Err(_) => Ok(Some(row)),
        }
    }

    fn fetch(&self, row: &RemoteRow, patience: &Patience) -> Result<Chain, RemoteError> {
        let fetched = self.of(row).fetch(row, patience);
        let Err(error) = fetched else { return fetched };
        if row.tier != HitTier::Peer || patience.is_over(Instant::now()) {
            return Err(error);
        }
        tracing::debug!(key = %row.key, %error, "a pull failed; the shared tier is asked");
        let query = RemoteQuery { owner: row.owner, namespace: &row.namespace, keys: &[row.key] };
        match self.find_shared(query, patience)? {
            Some(row) => self.shared.fetch(&row, patience),
            None => Err(error),
        }
    }

    fn distrust(&self, row: &RemoteRow) {
        self.of(row).distrust(row);
    }

    fn offer(&self, offer: Offer) {
        self.shared.offer(offer);
    }

    fn flush(&self, deadline: Instant) -> bool {
        self.shared.flush(deadline)
    }

    fn rates(&self) -> Option<RemoteRates> {
        match (self.peers.rates(), self.shared.rates()) {
            (Some(near), Some(far)) => {
                // The better of both: each row is judged again by the place that has it.
                let faster = |a: f64, b: f64| if a > b { a } else { b };
                let rate = near.bytes_per_second.zip(far.bytes_per_second).map(|(near, far)| faster(near, far));
                let round_trip = near.round_trip.zip(far.round_trip).map(|(near, far)| near.min(far));
                Some(RemoteRates { bytes_per_second: rate, round_trip })
            }
            (near, far) => near.or(far),
        }
    }

    fn rates_of(&self, row: &RemoteRow) -> Option<RemoteRates> {
        self.of(row).rates_of(row)
    }

    fn status(&self) -> RemoteStatus {
        self.shared.status()
    }

    fn reports(&self) -> Vec<(HitTier, RemoteStatus, Option<RemoteRates>)> {
        [self.peers.reports(), self.shared.reports()].concat()
    }
}
