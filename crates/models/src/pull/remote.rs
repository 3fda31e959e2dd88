//! A file on the network: its address and the facts that its source states.
//!
//! Made from a reference or from the hub's listing, used by downloads. The token must never be sent to another host.

use crate::digest::Sha256;

/// A file on the network. Fields that its source does not state are `None`.
pub(super) struct Remote {
    pub(super) url: String,
    pub(super) token: Option<String>,
    pub(super) sha256: Option<Sha256>,
    pub(super) bytes: Option<u64>,
}
