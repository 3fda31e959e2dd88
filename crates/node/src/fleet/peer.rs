//! One node of a fleet: connected, watched, and connected again.
//!
//! One task for each node. It is the only one that says that the node is there.

use std::sync::Weak;
use std::time::Duration;

use super::kept::{Kept, Peer};
use crate::link::{ConnectError, LinkError, Place};
use crate::remote::RemoteNode;

/// The pause before a node that is gone is tried again, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Connects once.
pub(super) async fn connect(peer: &Peer) -> Result<RemoteNode, ConnectError> {
    let place = Place::Network(peer.address.clone(), peer.credentials.clone());
    let connected = RemoteNode::connect(&place, Duration::ZERO).await;
    let mut error = match connected {
        Ok(node) => return Ok(node),
        Err(error) => error,
    };
    if let (LinkError::Lost(_), Some(credentials)) = (&error, &peer.credentials)
        && let Some(refusal) = credentials.refusal(peer.address.host(), peer.address.port()).await
    {
        error = LinkError::Untrusted(refusal.to_string());
    }
    Err(ConnectError::new(&peer.address, error))
}

/// Keeps a node connected as long as somebody has the fleet.
pub(super) async fn keep(fleet: Weak<Kept>, number: usize, first: Result<RemoteNode, ConnectError>) {
    let mut connected = first;
    let mut pause = FIRST_PAUSE;
    loop {
        let peer = {
            let Some(fleet) = fleet.upgrade() else { return };
            // One that left the cluster is not connected again.
            let Some(peer) = fleet.peer(number) else { return };
            match &connected {
                Ok(node) => {
                    tracing::info!(node = %peer.address, "a node is connected");
                    fleet.is_up(number, node.clone());
                    pause = FIRST_PAUSE;
                }
                Err(error) => fleet.is_down(number, error.to_string()),
            }
            peer
        };
        if let Ok(node) = &connected {
            node.closed().await;
            let Some(fleet) = fleet.upgrade() else { return };
            fleet.is_down(number, "the connection was lost".to_owned());
            tracing::warn!(node = %peer.address, "a node is gone; its replies continue elsewhere, or when it is back");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        connected = connect(&peer).await;
        if let Some(error) = connected.as_ref().err().filter(|error| !error.may_pass()) {
            tracing::error!(%error, "a node cannot be used; it is tried again");
        }
    }
}
