//! The idle sessions as status answers see them.
//!
//! Called by the worker before each tick, and before the last event of a request or the answer to a command, so that a
//! caller finds its own session in the list. Only a session that came to rest since the last time is hashed.

use poncho_api::SessionInfo;

use crate::sequence::slots::Slots;
use crate::shared::Shared;
use crate::shared::session_list::Resting;

impl Slots {
    /// Publishes the idle sessions if they may have changed.
    pub(crate) fn publish_sessions(&mut self, shared: &Shared) {
        if !std::mem::take(&mut self.sessions_changed) {
            return;
        }
        let known = shared.sessions.get();
        let resting = self.idle_sessions().filter_map(|(seq, name)| {
            let (stamp, held) = self.held.stamped(seq)?;
            if let Some(known) = known.iter().find(|known| known.stamp == stamp && known.info.name == name) {
                return Some(known.clone());
            }
            let key = held.namespace.key(held.committed());
            Some(Resting { stamp, info: SessionInfo { name: name.to_owned(), tokens: held.n_past, key } })
        });
        let resting = resting.collect();
        shared.sessions.set(resting);
    }
}
