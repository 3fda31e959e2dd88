//! A bounded map in which every owner has a share: the owner that holds most loses its oldest entry first.
//!
//! Used for stored responses and for replayed turns, where one client must not push out what another one keeps. Bounded
//! by count and by bytes. What it drops depends on the order of calls alone, so that the same calls after a restart leave
//! the same entries. It must never hold more than it was told.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// See the module.
pub struct FairLru<O, K, V> {
    most: usize,
    most_bytes: usize,
    bytes: usize,
    clock: u64,
    /// Bytes of everything that was ever put, which is a clock too.
    put_bytes: u64,
    entries: HashMap<K, Entry<O, V>>,
    shares: BTreeMap<O, Share<K>>,
}

struct Entry<O, V> {
    owner: O,
    value: V,
    size: usize,
    used: u64,
    used_bytes: u64,
}

/// What one owner holds.
struct Share<K> {
    bytes: usize,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, K>,
}

impl<K> Default for Share<K> {
    fn default() -> Self {
        Self { bytes: 0, order: BTreeMap::new() }
    }
}

impl<O: Copy + Ord, K: Clone + Eq + Hash, V> FairLru<O, K, V> {
    /// An empty map that holds at most `most` values and `most_bytes` bytes of them.
    #[must_use]
    pub fn new(most: usize, most_bytes: usize) -> Self {
        let (entries, shares) = (HashMap::new(), BTreeMap::new());
        Self { most, most_bytes, bytes: 0, clock: 0, put_bytes: 0, entries, shares }
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The value, which does not count as used.
    pub fn peek<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// Whether a value was last used so long ago that it may go before long: half of the room was written since.
    pub fn is_old<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let half = |room: usize| (room / 2) as u64;
        self.entries.get(key).is_some_and(|entry| {
            self.clock - entry.used > half(self.most) || self.put_bytes - entry.used_bytes > half(self.most_bytes)
        })
    }

    /// A value counts as used now.
    pub fn touch<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(share) = self.shares.get_mut(&entry.owner) else { return };
        let Some(key) = share.order.remove(&entry.used) else { return };
        self.clock += 1;
        self.put_bytes += entry.size as u64;
        (entry.used, entry.used_bytes) = (self.clock, self.put_bytes);
        share.order.insert(self.clock, key);
    }

    /// Adds or replaces a value. While there is no room, the owner that holds most loses its oldest entry; the owner of
    /// the new value counts with it. A value for which its owner would have to hold most is not taken; says whether it was.
    pub fn put(&mut self, owner: O, key: K, value: V, size: usize) -> bool {
        if size > self.most_bytes || self.most == 0 {
            return false;
        }
        self.remove(&key);
        while self.entries.len() >= self.most || self.bytes + size > self.most_bytes {
            let by_count = self.entries.len() >= self.most;
            let Some(oldest) = self.next_to_go(owner, by_count, size) else { return false };
            self.remove(&oldest);
        }
        self.clock += 1;
        self.bytes += size;
        self.put_bytes += size as u64;
        let share = self.shares.entry(owner).or_default();
        share.bytes += size;
        share.order.insert(self.clock, key.clone());
        let (used, used_bytes) = (self.clock, self.put_bytes);
        self.entries.insert(key, Entry { owner, value, size, used, used_bytes });
        true
    }

    /// The oldest entry of the owner that holds most; `None` if that is the newcomer with what it brings alone.
    fn next_to_go(&self, newcomer: O, by_count: bool, size: usize) -> Option<K> {
        let held = |owner: O, share: Option<&Share<K>>| {
            let (count, bytes) = share.map_or((0, 0), |share| (share.order.len(), share.bytes));
            let (more, more_bytes) = if owner == newcomer { (1, size) } else { (0, 0) };
            if by_count { count + more } else { bytes + more_bytes }
        };
        let others = self.shares.iter().filter(|(owner, _)| **owner != newcomer);
        let largest = others.map(|(owner, share)| (held(*owner, Some(share)), share)).max_by_key(|(held, _)| *held);
        let own = self.shares.get(&newcomer);
        let loser = match largest {
            Some((held_by_other, share)) if held_by_other > held(newcomer, own) => Some(share),
            _ => own,
        };
        loser?.order.first_key_value().map(|(_, key)| key.clone())
    }

    /// Forgets a value; gives it back if it was there.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let entry = self.entries.remove(key)?;
        self.bytes -= entry.size;
        if let Some(share) = self.shares.get_mut(&entry.owner) {
            share.bytes -= entry.size;
            share.order.remove(&entry.used);
            if share.order.is_empty() {
                self.shares.remove(&entry.owner);
            }
        }
        Some(entry.value)
    }

    /// All values, those that were used longest ago first.
    pub fn values(&self) -> Vec<&V> {
        let mut all: Vec<(u64, &V)> = self.entries.values().map(|entry| (entry.used, &entry.value)).collect();
        all.sort_unstable_by_key(|(used, _)| *used);
        all.into_iter().map(|(_, value)| value).collect()
    }

    /// The values of one owner, the latest used ones first.
    pub fn newest_of(&self, owner: O) -> impl Iterator<Item = &V> {
        let keys = self.shares.get(&owner).into_iter().flat_map(|share| share.order.values().rev());
        keys.filter_map(|key| self.peek(key))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lru(most: usize, most_bytes: usize) -> FairLru<u8, String, u32> {
        FairLru::new(most, most_bytes)
    }

    fn values(lru: &FairLru<u8, String, u32>) -> Vec<u32> {
        lru.values().into_iter().copied().collect()
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut lru = lru(2, 100);
        lru.put(0, "a".to_owned(), 1, 10);
        lru.put(0, "b".to_owned(), 2, 10);
        lru.touch("a");
        lru.put(0, "c".to_owned(), 3, 10);
        assert_eq!((values(&lru), lru.bytes(), lru.peek("b")), (vec![1, 3], 20, None));
        assert_eq!(lru.newest_of(0).copied().collect::<Vec<_>>(), [3, 1]);
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut lru = lru(10, 100);
        lru.put(0, "a".to_owned(), 1, 60);
        lru.put(0, "a".to_owned(), 2, 40);
        lru.put(0, "b".to_owned(), 3, 60);
        assert_eq!((values(&lru), lru.bytes()), (vec![2, 3], 100));
        lru.put(0, "c".to_owned(), 4, 61);
        assert_eq!(values(&lru), [4], "as many go as it takes");
        assert!(!lru.put(0, "d".to_owned(), 5, 101));
        assert_eq!(values(&lru), [4], "what never fits changes nothing");
    }

    #[test]
    fn nobody_is_pushed_out_of_an_equal_share() {
        let mut lru = lru(4, 1000);
        for (number, key) in ["a", "b", "c", "d"].into_iter().enumerate() {
            lru.put(1, key.to_owned(), u32::try_from(number).unwrap(), 1);
        }
        for number in 10..30 {
            lru.put(2, format!("other {number}"), number, 1);
        }
        assert_eq!(values(&lru), [2, 3, 28, 29], "half for each, the latest of both");
        lru.put(3, "third".to_owned(), 40, 1);
        assert_eq!(lru.newest_of(3).count(), 1, "a third one gets in");
        assert!(lru.newest_of(1).count() >= 1 && lru.newest_of(2).count() >= 1);
    }

    #[test]
    fn a_giant_takes_no_more_than_its_share() {
        let mut lru = lru(100, 100);
        for number in 0..10 {
            lru.put(1, number.to_string(), number, 10);
        }
        assert!(!lru.put(2, "giant".to_owned(), 99, 90));
        assert!(lru.newest_of(1).count() >= 9, "{:?}", values(&lru));
        assert!(lru.put(2, "half".to_owned(), 50, 45));
        assert_eq!(lru.newest_of(1).count(), 5);
    }

    #[test]
    fn old_is_what_half_of_the_room_was_written_after() {
        let mut lru = lru(8, 1000);
        lru.put(0, "a".to_owned(), 0, 1);
        for number in 1..5 {
            assert!(!lru.is_old("a"));
            lru.put(0, number.to_string(), number, 1);
        }
        assert!(!lru.is_old("a"));
        lru.put(0, "5".to_owned(), 5, 1);
        assert!(lru.is_old("a") && !lru.is_old("5"));
        lru.put(0, "large".to_owned(), 6, 600);
        assert!(lru.is_old("5"), "by bytes");
        lru.touch("a");
        assert!(!lru.is_old("a"));
    }

    proptest! {
        #[test]
        fn the_numbers_always_agree_with_what_is_there(
            steps in prop::collection::vec((0_u8..3, 0_u8..3, 0_u8..6, 0_usize..200), 0..80),
        ) {
            let mut lru: FairLru<u8, String, usize> = FairLru::new(4, 500);
            for (step, owner, name, bytes) in steps {
                let key = name.to_string();
                match step {
                    0 => assert!(lru.put(owner, key, bytes, bytes) || !lru.is_empty()),
                    1 => lru.touch(&key),
                    _ => {
                        lru.remove(&key);
                    }
                }
                prop_assert!(lru.bytes <= 500 && lru.entries.len() <= 4);
                prop_assert_eq!(lru.bytes, lru.entries.values().map(|entry| entry.size).sum::<usize>());
                prop_assert_eq!(lru.bytes, lru.shares.values().map(|share| share.bytes).sum::<usize>());
                let ordered = lru.shares.iter().flat_map(|(owner, share)| {
                    share.order.iter().map(|(used, key)| (*owner, *used, key.clone()))
                });
                let mut ordered: Vec<_> = ordered.collect();
                let mut held: Vec<_> =
                    lru.entries.iter().map(|(key, entry)| (entry.owner, entry.used, key.clone())).collect();
                ordered.sort();
                held.sort();
                prop_assert_eq!(ordered, held);
            }
        }
    }
}
