//! The children of a node, sorted by the first token of their labels.
//!
//! Most nodes fork in two, so up to two children live inside the node: a step down a long path then reads one
//! place in memory instead of two. Called by `node.rs` only. Two children must never start with the same token.

use super::node::NodeId;

/// A longer list shrinks when it uses no more than one slot in this many, so that no removal flips forth and back.
const SHRINK_FACTOR: usize = 4;

type Entry = (u32, NodeId);

/// Bytes of one entry on the heap.
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>();

#[derive(Debug, Default)]
pub(super) enum Children {
    #[default]
    None,
    One(Entry),
    Two([Entry; 2]),
    /// Three or more.
    Many(Vec<Entry>),
}

impl Children {
    pub(super) fn as_slice(&self) -> &[Entry] {
        match self {
            Self::None => &[],
            Self::One(entry) => std::slice::from_ref(entry),
            Self::Two(entries) => entries,
            Self::Many(entries) => entries,
        }
    }

    pub(super) fn find(&self, first: u32) -> Option<NodeId> {
        let entries = self.as_slice();
        let place = place_of(entries, first).ok()?;
        entries.get(place).map(|&(_, child)| child)
    }

    /// Makes `child` the one that starts with `first`, in place of another one if there is one.
    pub(super) fn put(&mut self, first: u32, child: NodeId) {
        let new = (first, child);
        *self = match std::mem::take(self) {
            Self::None => Self::One(new),
            Self::One(old) if old.0 == first => Self::One(new),
            Self::One(old) if old.0 < first => Self::Two([old, new]),
            Self::One(old) => Self::Two([new, old]),
            Self::Two([left, right]) if left.0 == first => Self::Two([new, right]),
            Self::Two([left, right]) if right.0 == first => Self::Two([left, new]),
            Self::Two(old) => Self::Many(with(Vec::from(old), new)),
            Self::Many(old) => Self::Many(with(old, new)),
        };
    }

    pub(super) fn remove(&mut self, first: u32) {
        *self = match std::mem::take(self) {
            Self::One(old) if old.0 == first => Self::None,
            Self::Two([left, right]) if left.0 == first => Self::One(right),
            Self::Two([left, right]) if right.0 == first => Self::One(left),
            Self::Many(old) => {
                let entries = without(old, first);
                match *entries {
                    [left, right] => Self::Two([left, right]),
                    _ => Self::Many(entries),
                }
            }
            unchanged => unchanged,
        };
    }

    /// How many entries have room on the heap.
    pub(super) const fn heap_slots(&self) -> usize {
        match self {
            Self::Many(entries) => entries.capacity(),
            _ => 0,
        }
    }
}

fn place_of(entries: &[Entry], first: u32) -> Result<usize, usize> {
    entries.binary_search_by_key(&first, |&(token, _)| token)
}

fn with(mut entries: Vec<Entry>, new: Entry) -> Vec<Entry> {
    match place_of(&entries, new.0) {
        Ok(place) => {
            if let Some(old) = entries.get_mut(place) {
                *old = new;
            }
        }
        Err(place) => entries.insert(place, new),
    }
    entries
}

fn without(mut entries: Vec<Entry>, first: u32) -> Vec<Entry> {
    if let Ok(place) = place_of(&entries, first) {
        entries.remove(place);
    }
    if entries.len() * SHRINK_FACTOR <= entries.capacity() {
        entries.shrink_to(entries.len() * 2);
    }
    entries
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn children_agree_with_a_sorted_map_at_every_size() {
        let mut children = Children::default();
        let mut model = BTreeMap::new();
        for size in [1, 2, 3, 40] {
            let puts = (0..2 * size).map(|at| (at % size * 7 % 41, Some(NodeId::from_index(at))));
            let removals = (0..=size).map(|at| (at * 21 % 41, None)).chain((0..41).map(|at| (at, None)));
            for (first, put) in puts.chain(removals) {
                if let Some(child) = put {
                    children.put(first, child);
                    model.insert(first, child);
                } else {
                    children.remove(first);
                    model.remove(&first);
                }
                assert!(children.as_slice().iter().copied().eq(model.iter().map(|(&token, &child)| (token, child))));
                for token in 0..41 {
                    assert_eq!(children.find(token), model.get(&token).copied());
                }
                assert!(children.heap_slots() <= 4 * model.len(), "the list does not shrink");
            }
            assert!(model.is_empty());
        }
    }
}
