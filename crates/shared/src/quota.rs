//! How much the store holds, and what leaves it.
//!
//! The ledger counts, collection removes, the lease keeps two machines from collecting at once. Used by uploads and by
//! `poncho cache gc`.

pub(crate) mod collect;
pub(crate) mod condemned;
pub(crate) mod lease;
pub(crate) mod ledger;

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A name that no other machine chooses.
fn random_name() -> String {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        let (short, _) = bytes.split_at_mut(8);
        short.copy_from_slice(&(now_ms() ^ u64::from(std::process::id())).to_le_bytes());
    }
    poncho_cache::to_hex(&bytes)
}
