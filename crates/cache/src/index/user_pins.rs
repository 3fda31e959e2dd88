//! Rows that people pinned: they stay while others are evicted.
//!
//! Changed by `Cache::pin_row` and `Cache::unpin_row` under the store's lock, asked by eviction. A pin is a name and not a
//! row: it also holds for a row that is saved again later. It is not a lease (`Row::pins`), which lasts for one read. It
//! must never let pins fill a tier: half of it stays for other rows.

use std::collections::{BTreeMap, HashSet};

use super::rows::RowId;
use super::table::Index;
use crate::identity::key::Key;
use crate::identity::owner::OwnerId;
use crate::kinds::Tier;

/// Pins of all owners together.
const MOST_PINS: usize = 4096;

/// Who pinned what. `None` stands for a caller that sees all rows.
#[derive(Debug, Default)]
pub(crate) struct UserPins(BTreeMap<Key, Vec<Option<OwnerId>>>);

/// The outcome of pinning a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pinned {
    /// It is pinned.
    Yes,
    /// The owner has no row with this key.
    NoRow,
    /// Pinned rows would take more than half of a tier.
    TooLarge {
        /// Bytes that all pinned rows would take there, with the rows that they build on.
        bytes: u64,
        /// Bytes that they may take.
        limit: u64,
    },
    /// There are too many pins.
    TooMany {
        /// Pins that there may be.
        limit: usize,
    },
}

impl UserPins {
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// Whether this owner pinned the row. Without an owner, whether anybody did.
    pub(crate) fn is_pinned_by(&self, key: &Key, owner: Option<OwnerId>) -> bool {
        self.0.get(key).is_some_and(|owners| owner.is_none() || owners.contains(&owner))
    }

    /// Adds a pin that was checked before.
    pub(crate) fn add(&mut self, key: Key, owner: Option<OwnerId>) {
        let owners = self.0.entry(key).or_default();
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }

    /// Removes the pin of an owner, or all pins of a row. Returns whether there was one.
    pub(crate) fn remove(&mut self, key: &Key, owner: Option<OwnerId>) -> bool {
        let Some(owners) = self.0.get_mut(key) else { return false };
        let before = owners.len();
        owners.retain(|known| owner.is_some() && *known != owner);
        let is_removed = owners.len() < before;
        if owners.is_empty() {
            self.0.remove(key);
        }
        is_removed
    }

    /// All pins as lines of text: a key, then its owner or `-`.
    pub(crate) fn to_text(&self) -> String {
        let lines = self.0.iter().flat_map(|(key, owners)| owners.iter().map(move |owner| (key, owner)));
        let owner = |owner: &Option<OwnerId>| owner.map_or_else(|| "-".to_owned(), |owner| owner.to_string());
        lines.map(|(key, by)| format!("{key} {}\n", owner(by))).collect()
    }

    /// The pins of a text. Lines that cannot be parsed are skipped.
    pub(crate) fn from_text(text: &str) -> Self {
        let mut pins = Self::default();
        for line in text.lines() {
            let Some((key, owner)) = line.split_once(' ') else { continue };
            let owner = if owner == "-" { Some(None) } else { OwnerId::from_hex(owner).map(Some) };
            if let (Some(key), Some(owner)) = (Key::from_hex(key), owner)
                && pins.0.len() < MOST_PINS
            {
                pins.add(key, owner);
            }
        }
        pins
    }
}

impl Index {
    /// Pins a row of an owner, or any row.
    pub(crate) fn pin_for(&mut self, key: &Key, owner: Option<OwnerId>) -> Pinned {
        let is_own = |id: &RowId| owner.is_none_or(|owner| self.row(*id).is_owned_by(owner));
        let Some(id) = self.by_key(key).filter(is_own) else { return Pinned::NoRow };
        if !self.user_pins.contains(key) {
            if self.user_pins.0.len() >= MOST_PINS {
                return Pinned::TooMany { limit: MOST_PINS };
            }
            for (tier, bytes) in Tier::ALL.into_iter().zip(self.pinned_bytes(id)) {
                let limit = self.quota(tier) / 2;
                if bytes > limit {
                    return Pinned::TooLarge { bytes, limit };
                }
            }
        }
        self.user_pins.add(*key, owner);
        Pinned::Yes
    }

    /// Removes pins that take more than half of a tier, because the tier has become smaller. Returns how many.
    pub(crate) fn drop_excess_pins(&mut self) -> usize {
        let pins = std::mem::take(&mut self.user_pins).0;
        let before = pins.len();
        for (key, owners) in pins {
            // A pin of a row that is not there takes nothing.
            if self.by_key(&key).is_none() || self.pin_for(&key, None) == Pinned::Yes {
                self.user_pins.0.insert(key, owners);
            }
        }
        before - self.user_pins.0.len()
    }

    /// Bytes of all pinned rows and one more, with the rows that they build on, by the most durable tier of each.
    fn pinned_bytes(&self, more: RowId) -> [u64; 3] {
        let mut sums = [0_u64; 3];
        let mut seen = HashSet::new();
        for id in self.user_pins.0.keys().filter_map(|key| self.by_key(key)).chain([more]) {
            let mut next = Some(id);
            while let Some(id) = next.filter(|id| seen.insert(*id)) {
                let row = self.row(id);
                next = row.parent;
                for (tier, sum) in Tier::ALL.into_iter().zip(&mut sums) {
                    if row.durable_tier() == Some(tier) {
                        *sum = sum.saturating_add(row.bytes_in(tier));
                    }
                }
            }
        }
        sums
    }

    /// Whether a pin keeps a row in a tier. A copy leaves all the same if a more durable one stays.
    pub(super) fn is_kept_in(&self, id: RowId, tier: Tier) -> bool {
        let row = self.row(id);
        self.user_pins.contains(&row.key) && row.durable_tier().is_none_or(|durable| durable <= tier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_survive_as_text_and_nonsense_is_skipped() {
        let (one, two) = (OwnerId::from_bytes([1; 16]), OwnerId::from_bytes([2; 16]));
        let [a, b] = [7, 8].map(|byte| Key::from_bytes([byte; 32]));
        let mut pins = UserPins::default();
        for (key, owner) in [(a, Some(one)), (a, Some(two)), (b, None), (b, None)] {
            pins.add(key, owner);
        }
        let text = pins.to_text();
        assert_eq!(text.lines().count(), 3);
        let mut again = UserPins::from_text(&format!("x\nx -\n{a} y\n\u{fffd}\n{text}"));
        assert_eq!(again.to_text(), text);
        assert!(
            again.is_pinned_by(&a, Some(one)) && again.is_pinned_by(&a, None) && !again.is_pinned_by(&b, Some(one))
        );
        assert!(again.remove(&a, Some(one)) && !again.remove(&a, Some(one)), "a pin is removed once");
        assert!(again.contains(&a), "the pin of the other owner stays");
        assert!(again.remove(&a, None) && !again.contains(&a), "a caller that sees all rows removes all pins");
    }
}
