//! The nodes of a fleet as a cluster announces them: new ones are connected, those that are gone are let go.
//!
//! One task for each fleet. A node that is silent in the cluster, but still answers, is kept: the bus may be
//! away. It must never use a node that the cluster key does not vouch for.

use std::sync::{Arc, Weak};
use std::time::Duration;

use poncho_cluster::bus::Lookout;
use poncho_cluster::member::State;

use super::kept::Kept;
use super::peer;
use crate::link::NodeAddress;

/// Between two looks at who is there.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between two looks at the start.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// The longest time that a start waits for the first nodes.
const FIRST_WITHIN: Duration = Duration::from_secs(3);

/// Connects to the nodes that are known at the start, so that the first request finds them.
pub(super) async fn first(kept: &Arc<Kept>, lookout: &Lookout) {
    let known = async {
        lookout.settled().await;
        while lookout.nodes().is_empty() {
            tokio::time::sleep(FIRST_LOOK).await;
        }
        adopt(kept, lookout);
        kept.settled().await;
    };
    // A cluster without nodes is served too, and a machine that is gone without a word must not hold up the others.
    let _late = tokio::time::timeout(FIRST_WITHIN, known).await;
}

/// Follows the cluster as long as somebody has the fleet.
pub(super) async fn follow(kept: Weak<Kept>, lookout: Arc<Lookout>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(kept) = kept.upgrade() else { return };
        adopt(&kept, &lookout);
    }
}

/// Connects to nodes that are new.
fn adopt(kept: &Arc<Kept>, lookout: &Lookout) {
    for number in adopted(kept, lookout) {
        let Some(peer) = kept.peer(number) else { continue };
        let kept = Arc::downgrade(kept);
        tokio::spawn(async move {
            let node = peer::connect(&peer).await;
            peer::keep(kept, number, node).await;
        });
    }
}

/// The numbers of nodes that are new. Those that are gone are let go.
fn adopted(kept: &Kept, lookout: &Lookout) -> Vec<usize> {
    let beats = lookout.nodes();
    let addresses = beats.iter().filter_map(|(beat, _)| match beat.address.parse::<NodeAddress>() {
        // One that drains is used as long as it is connected, and not connected again.
        Ok(address) => Some((address, beat.state == State::Up)),
        Err(error) => {
            tracing::debug!(node = beat.node, error, "a node announces an address that cannot be used");
            None
        }
    });
    kept.adopt(&addresses.collect::<Vec<_>>())
}
