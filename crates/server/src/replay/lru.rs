//! A map that forgets what was not used for longest, bounded by count and by bytes.
//!
//! Used by the replay store for both kinds of turns. It must never hold more than it was told.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// See the module.
pub(super) struct Lru<K, V> {
    most: usize,
    most_bytes: usize,
    bytes: usize,
    clock: u64,
    entries: HashMap<K, Entry<V>>,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, K>,
}

struct Entry<V> {
    value: V,
    size: usize,
    used: u64,
}

impl<K: Clone + Eq + Hash, V: Clone> Lru<K, V> {
    pub(super) fn new(most: usize, most_bytes: usize) -> Self {
        Self { most, most_bytes, bytes: 0, clock: 0, entries: HashMap::new(), order: BTreeMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all values.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The value, which counts as used.
    pub(super) fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        let key = self.order.remove(&entry.used)?;
        entry.used = self.clock;
        self.order.insert(self.clock, key);
        Some(entry.value.clone())
    }

    /// Adds or replaces a value; others go if there is no room. One that is too large for all of it is not taken.
    pub(super) fn put(&mut self, key: K, value: V, size: usize) {
        if size > self.most_bytes {
            return;
        }
        self.remove(&key);
        while self.entries.len() >= self.most || self.bytes + size > self.most_bytes {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            self.remove(&oldest);
        }
        self.clock += 1;
        self.bytes += size;
        self.order.insert(self.clock, key.clone());
        self.entries.insert(key, Entry { value, size, used: self.clock });
    }

    /// All values, least recently used first.
    pub(super) fn values(&self) -> Vec<V> {
        self.order.values().filter_map(|key| self.entries.get(key)).map(|entry| entry.value.clone()).collect()
    }

    fn remove(&mut self, key: &K) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.used);
            self.bytes -= entry.size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut lru = Lru::new(2, 100);
        lru.put("a".to_owned(), 1, 10);
        lru.put("b".to_owned(), 2, 10);
        assert_eq!(lru.get("a"), Some(1));
        lru.put("c".to_owned(), 3, 10);
        assert_eq!((lru.get("a"), lru.get("b"), lru.get("c")), (Some(1), None, Some(3)));
        assert_eq!((lru.values(), lru.bytes()), (vec![1, 3], 20));
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut lru = Lru::new(10, 100);
        lru.put("a".to_owned(), 1, 60);
        lru.put("a".to_owned(), 2, 40);
        lru.put("b".to_owned(), 3, 60);
        assert_eq!((lru.values(), lru.bytes()), (vec![2, 3], 100));
        lru.put("c".to_owned(), 4, 61);
        assert_eq!(lru.values(), [4], "as many go as it takes");
        lru.put("d".to_owned(), 5, 101);
        assert_eq!(lru.values(), [4], "what never fits changes nothing");
    }
}
