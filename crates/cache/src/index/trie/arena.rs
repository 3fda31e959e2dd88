//! A vector of slots with recycled indices: the memory behind the nodes and the label buffers of a trie.
//!
//! Called by `node.rs` and `label.rs`. An index names its value until that value is removed and may name
//! another one afterwards. It must never move a value to another index: nodes keep each other's indices.

/// The slots shrink when no more than one in this many is in reach, so that no removal flips forth and back.
const SHRINK_FACTOR: usize = 4;

/// Values in numbered slots; freed slots are used again before the vector grows.
#[derive(Debug)]
pub(super) struct Arena<T> {
    /// The last slot is never vacant.
    slots: Vec<Option<T>>,
    /// All vacant slots, and perhaps some that have been cut off or filled since.
    vacant: Vec<u32>,
    used: usize,
}

impl<T> Arena<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new(), used: 0 }
    }

    /// Stores a value and returns its index. The trie refuses rows before the indices can run out, see
    /// [`Self::has_room`].
    #[expect(clippy::expect_used, reason = "an index that wraps would name another value")]
    pub(super) fn add(&mut self, value: T) -> u32 {
        self.used += 1;
        while let Some(index) = self.vacant.pop() {
            if let Some(slot @ None) = self.slot_mut(index) {
                *slot = Some(value);
                return index;
            }
        }
        let index = u32::try_from(self.slots.len()).expect("invariant: the trie asks for room before it adds");
        self.slots.push(Some(value));
        index
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.slot_mut(index)?.take()?;
        self.used -= 1;
        self.vacant.push(index);
        while let Some(None) = self.slots.last() {
            self.slots.pop();
        }
        let reach = self.slots.len();
        if reach * SHRINK_FACTOR <= self.slots.capacity() {
            self.slots.shrink_to(reach * 2);
            self.vacant.retain(|&index| (index as usize) < reach);
            self.vacant.shrink_to(reach);
        }
        Some(value)
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slot_mut(index)?.as_mut()
    }

    /// Whether `more` values can still be given an index.
    pub(super) fn has_room(&self, more: usize) -> bool {
        u32::try_from(self.used.saturating_add(more)).is_ok()
    }

    /// Bytes of the two vectors; what the values own themselves is not in it.
    pub(super) fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<T>>() + self.vacant.capacity() * size_of::<u32>()
    }

    /// The values with their indices, for the structural checks of the tests.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0_u32..).zip(&self.slots).filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Option<T>> {
        self.slots.get_mut(index as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_slots_are_used_again_and_other_indices_stay() {
        let mut arena = Arena::new();
        let [a, b, c] = ["a", "b", "c"].map(|value| arena.add(value));
        assert_eq!(arena.remove(b), Some("b"));
        assert_eq!(arena.remove(b), None, "a second removal finds nothing");
        assert_eq!(arena.add("d"), b);
        assert_eq!((arena.get(a), arena.get(b), arena.get(c)), (Some(&"a"), Some(&"d"), Some(&"c")));
    }

    #[test]
    fn memory_returns_when_the_last_slots_are_vacant() {
        let mut arena = Arena::new();
        let indices: Vec<u32> = (0..1000).map(|value| arena.add(value)).collect();
        for &index in &indices[10..] {
            arena.remove(index);
        }
        assert!(arena.heap_bytes() <= 40 * size_of::<Option<i32>>(), "{} bytes", arena.heap_bytes());
        for &index in &indices[..10] {
            assert!(arena.remove(index).is_some());
        }
        assert_eq!(arena.heap_bytes(), 0);
    }

    #[test]
    fn no_slot_is_given_out_twice_after_the_end_moved() {
        let mut arena = Arena::new();
        let mut model = std::collections::BTreeMap::new();
        for round in 0..3000_u32 {
            // Three waves of growth and decline, with the removed index jumping about.
            let growing = round % 1000 < 500;
            let victim = model.keys().nth(round as usize * 7 % model.len().max(1)).copied();
            if let Some(index) = victim.filter(|_| !growing || round % 3 == 0) {
                assert_eq!(arena.remove(index), model.remove(&index));
            } else {
                assert_eq!(model.insert(arena.add(round), round), None, "a slot in use was given out");
            }
            assert!(arena.iter().eq(model.iter().map(|(&index, value)| (index, value))));
        }
    }
}
