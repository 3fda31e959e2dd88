//! The nodes that hold one block, in 16 bytes while there is a single one.
//!
//! Used by the compact index alone. A node appears once, with the number of its rows that brought the block.

use poncho_kinds::Tier;

use super::Slot;

/// One node that holds a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) node: Slot,
    /// Rows of the node that contain the block.
    pub(super) rows: u16,
    pub(super) tier: Tier,
}

/// All nodes that hold a block. Never empty while it is in the index.
#[derive(Debug, Clone)]
pub(super) enum Holders {
    /// Most blocks have one holder.
    One(Holder),
    /// Replicas, by node. The extra box keeps the common case small.
    #[expect(clippy::box_collection, reason = "a vector in place would double the size of every entry")]
    Many(Box<Vec<Holder>>),
}

impl Holders {
    pub(super) fn new(node: Slot, tier: Tier) -> Self {
        Self::One(Holder { node, rows: 1, tier })
    }

    pub(super) fn as_slice(&self) -> &[Holder] {
        match self {
            Self::One(holder) => std::slice::from_ref(holder),
            Self::Many(all) => all,
        }
    }

    /// The node's entry.
    pub(super) fn of(&self, node: Slot) -> Option<&Holder> {
        match self {
            Self::One(holder) => (holder.node == node).then_some(holder),
            Self::Many(all) => all.binary_search_by_key(&node, |holder| holder.node).ok().and_then(|at| all.get(at)),
        }
    }

    /// All entries, beginning at a place that the number decides: a prefix that every node holds must not always be found
    /// at the same ones.
    pub(super) fn rotated(&self, number: u64) -> impl Iterator<Item = &Holder> {
        let all = self.as_slice();
        let start = number.checked_rem(all.len() as u64).and_then(|start| usize::try_from(start).ok()).unwrap_or(0);
        let (before, from) = all.split_at_checked(start).unwrap_or((&[], all));
        from.iter().chain(before)
    }

    /// Another row of a node contains the block. The latest tier counts.
    pub(super) fn add(&mut self, node: Slot, tier: Tier) {
        let new = Holder { node, rows: 1, tier };
        match self {
            Self::One(holder) if holder.node == node => {
                (holder.rows, holder.tier) = (holder.rows.saturating_add(1), tier);
            }
            Self::One(holder) => {
                let mut both = vec![*holder, new];
                both.sort_unstable_by_key(|holder| holder.node);
                *self = Self::Many(Box::new(both));
            }
            Self::Many(all) => match all.binary_search_by_key(&node, |holder| holder.node) {
                Ok(place) => {
                    if let Some(holder) = all.get_mut(place) {
                        (holder.rows, holder.tier) = (holder.rows.saturating_add(1), tier);
                    }
                }
                Err(place) => all.insert(place, new),
            },
        }
    }

    /// A row of a node is gone. Returns whether no holder is left.
    pub(super) fn subtract(&mut self, node: Slot) -> bool {
        match self {
            Self::One(holder) => {
                if holder.node == node {
                    holder.rows = holder.rows.saturating_sub(1);
                }
                holder.rows == 0
            }
            Self::Many(all) => {
                let place = all.binary_search_by_key(&node, |holder| holder.node);
                if let Some((place, holder)) = place.ok().and_then(|place| Some((place, all.get_mut(place)?))) {
                    holder.rows = holder.rows.saturating_sub(1);
                    if holder.rows == 0 {
                        all.remove(place);
                    }
                }
                match all.as_slice() {
                    [] => true,
                    [last] => {
                        *self = Self::One(*last);
                        false
                    }
                    _ => false,
                }
            }
        }
    }
}
