//! The longest stored prefix at token granularity: a radix tree over tokens, one per namespace.
//!
//! The store keeps one under its mutex, adds a row when it becomes visible, removes it when it is evicted and asks
//! for the rows that a prompt shares tokens with. Pure memory: no I/O, no locks, no recursion (a chain of rows may
//! be 100,000 nodes deep). It must never report a match without having compared the tokens.
//!
//! **Node ids.** A row keeps the [`NodeId`] of its end, and that id stays valid and keeps naming the same tokens
//! until this row is removed, whatever happens to others: when an edge is split, the new upper node gets the new
//! id; when a node without a row and with a single child is merged away, the lower node keeps its id; a node with a
//! row is never merged away. An id is used again after its row was removed, so a caller drops it then.
//!
//! **The soonest row below.** Each node remembers the row at or below it that ends first and the first token on
//! the way to it. Insertion updates this along the path upwards, as far as the new row is the shortest; removal
//! looks at the children of those nodes that remembered the removed row. A lookup then reads it in one step,
//! however many rows lie below. In exchange a removal may look at many siblings of the removed row.

use super::label::{Labels, common_prefix};
use super::node::{Node, NodeId, Nodes, ROOT};

/// A set of rows, each with the list of tokens that it stands for.
#[derive(Debug)]
pub(crate) struct TokenTrie<R> {
    pub(super) nodes: Nodes<R>,
    pub(super) labels: Labels,
    pub(super) rows: usize,
}

/// What the tree holds along a list of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Match<R> {
    /// How many tokens, from the first, agree with some stored row.
    pub(crate) common: usize,
    /// Rows with a token list that is a prefix of the tokens, as (token count, row), shallow to deep.
    pub(crate) boundaries: Vec<(usize, R)>,
    /// Of the rows that agree on the first `common` tokens, one that ends soonest. None if `common` is 0.
    pub(crate) below: Option<R>,
    /// The token of `below` at offset `common`, where the tokens looked up have another one. None if either of
    /// the two ends there.
    pub(crate) divergence: Option<u32>,
}

/// Why a row was not inserted. The tree is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InsertError<R> {
    /// A row has at least one token.
    #[error("a row needs at least one token and got none; save after the first token")]
    Empty,
    /// These very tokens already have a row, given here.
    #[error("these tokens already have a row; use that one")]
    AlreadyThere(R),
    /// Nodes and the tokens of a row are counted in 32 bits.
    #[error("the row or the tree is larger than 32 bits can count; save fewer tokens or evict rows first")]
    TooLarge,
}

/// A place in the tree: `inside` tokens down the label of a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) node: NodeId,
    pub(super) inside: usize,
}

/// Where a descent ended, and how many of its tokens were found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Descent {
    pub(super) place: Place,
    pub(super) found: usize,
}

impl<R: Copy + Eq> TokenTrie<R> {
    /// A tree without rows.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self { nodes: Nodes::new(), labels: Labels::new(), rows: 0 }
    }

    /// Adds a row and returns the node where it ends.
    ///
    /// # Errors
    /// [`InsertError::Empty`] without tokens (a row has at least one), [`InsertError::AlreadyThere`] if these tokens
    /// have a row, [`InsertError::TooLarge`] where 32 bits do not suffice.
    pub(crate) fn insert(&mut self, tokens: &[u32], row: R) -> Result<NodeId, InsertError<R>> {
        if tokens.is_empty() {
            return Err(InsertError::Empty);
        }
        self.insert_from(Place { node: ROOT, inside: 0 }, tokens, row)
    }

    /// Removes the row that ends at a node and gives back the memory that only it needed.
    /// None if no row ends there.
    ///
    /// Removing a leaf costs little. Removing a row that a single longer one extends joins their labels, which
    /// copies up to all tokens of the longer one unless both come from one insertion.
    pub(crate) fn remove(&mut self, node: NodeId) -> Option<R> {
        let row = self.row_at(node)?;
        if self.rows == 1 {
            *self = Self::new();
        } else {
            self.rows -= 1;
            self.take_row(node);
        }
        Some(row)
    }

    /// The row for exactly these tokens.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn get(&self, tokens: &[u32]) -> Option<R> {
        let descent = self.descend(Place { node: ROOT, inside: 0 }, tokens, |_| ());
        let end = self.nodes.get(descent.place.node);
        end.row.filter(|_| descent.found == tokens.len() && end.depth == tokens.len())
    }

    /// The row that ends at a node.
    #[must_use]
    pub(crate) fn row_at(&self, node: NodeId) -> Option<R> {
        self.nodes.get(node).row
    }

    /// All tokens from the root to a node.
    #[must_use]
    pub(crate) fn tokens_of(&self, node: NodeId) -> Vec<u32> {
        let mut path = Vec::new();
        let mut at = node;
        while at != ROOT {
            let node = self.nodes.get(at);
            path.push(node.label);
            at = node.parent;
        }
        let mut tokens = Vec::with_capacity(self.depth(node));
        for label in path.into_iter().rev() {
            tokens.extend_from_slice(self.labels.tokens(label));
        }
        tokens
    }

    /// How many tokens lie between the root and a node.
    #[must_use]
    pub(crate) fn depth(&self, node: NodeId) -> usize {
        self.nodes.get(node).depth
    }

    /// What the tree holds along these tokens.
    #[must_use]
    pub(crate) fn lookup(&self, tokens: &[u32]) -> Match<R> {
        let mut boundaries = Vec::new();
        let Descent { place, found: common } = self.descend(Place { node: ROOT, inside: 0 }, tokens, |node| {
            boundaries.extend(node.row.map(|row| (node.depth, row)));
        });
        let reached = self.nodes.get(place.node);
        let Some(nearest) = reached.nearest.filter(|_| common > 0) else {
            return Match { common, boundaries, below: None, divergence: None };
        };
        let divergence = if common == tokens.len() || common == self.depth(nearest.end) {
            None
        } else if place.inside < reached.label.len() {
            self.labels.tokens(reached.label).get(place.inside).copied()
        } else {
            Some(nearest.toward)
        };
        Match { common, boundaries, below: self.row_at(nearest.end), divergence }
    }

    /// Of the rows that `keep` names, one that shares the most leading tokens, and how many those are. Of several the
    /// one that ends soonest. Looks at every row in the worst case, so it is for questions that people ask.
    pub(crate) fn longest_where(&self, tokens: &[u32], keep: impl Fn(R) -> bool) -> Option<(usize, R)> {
        let Descent { place, found } = self.descend(Place { node: ROOT, inside: 0 }, tokens, |_| ());
        let (mut top, mut common, mut searched) = (place.node, found, None);
        while common > 0 {
            if let Some(row) = self.soonest_where(top, searched, &keep) {
                return Some((common, row));
            }
            searched = Some(top);
            top = self.nodes.get(top).parent;
            common = self.depth(top);
        }
        None
    }

    /// The row at or below a node that `keep` names and that ends soonest; what is below `searched` is known to have none.
    fn soonest_where(&self, top: NodeId, searched: Option<NodeId>, keep: &impl Fn(R) -> bool) -> Option<R> {
        let mut best: Option<(usize, R)> = None;
        let mut open = vec![top];
        while let Some(id) = open.pop() {
            let node = self.nodes.get(id);
            if best.is_some_and(|(depth, _)| depth <= node.depth) {
                continue;
            }
            if let Some(row) = node.row.filter(|row| keep(*row)) {
                best = Some((node.depth, row));
                continue;
            }
            open.extend(node.children().iter().map(|(_, child)| *child).filter(|child| Some(*child) != searched));
        }
        best.map(|(_, row)| row)
    }

    /// The rows that `keep` names and that no other of them extends. Looks at every node, so it is for questions that
    /// people ask.
    pub(crate) fn longest_rows(&self, keep: impl Fn(R) -> bool) -> Vec<R> {
        // Parents before children; then backwards, so that a node knows whether a row below it was named.
        let mut order = vec![(ROOT, 0)];
        let mut next = 0;
        while let Some((id, _)) = order.get(next).copied() {
            order.extend(self.nodes.get(id).children().iter().map(|(_, child)| (*child, next)));
            next += 1;
        }
        let mut has_longer = vec![false; order.len()];
        let mut longest = Vec::new();
        for (at, (id, above)) in order.iter().enumerate().rev() {
            let is_extended = has_longer.get(at).copied().unwrap_or(false);
            let row = self.nodes.get(*id).row.filter(|row| keep(*row));
            longest.extend(row.filter(|_| !is_extended));
            if let Some(has_longer) = has_longer.get_mut(*above).filter(|_| is_extended || row.is_some()) {
                *has_longer = true;
            }
        }
        longest
    }

    /// How many rows the tree holds.
    #[cfg(test)]
    #[must_use]
    pub(crate) const fn len(&self) -> usize {
        self.rows
    }

    /// Whether the tree holds no row.
    #[cfg(test)]
    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Roughly how much heap memory the tree uses; known without walking it.
    #[must_use]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.nodes.heap_bytes() + self.labels.heap_bytes()
    }

    /// Follows tokens down from a place and shows each node that it reaches the end of to `passed`.
    pub(super) fn descend(&self, from: Place, tokens: &[u32], mut passed: impl FnMut(&Node<R>)) -> Descent {
        let mut place = from;
        let mut rest = tokens;
        loop {
            let node = self.nodes.get(place.node);
            let (_, label) = self.labels.tokens(node.label).split_at(place.inside);
            let common = common_prefix(label, rest);
            place.inside += common;
            (_, rest) = rest.split_at(common);
            let found = tokens.len() - rest.len();
            if common < label.len() {
                return Descent { place, found };
            }
            passed(node);
            let Some(child) = rest.first().and_then(|&first| node.child(first)) else {
                return Descent { place, found };
            };
            place = Place { node: child, inside: 0 };
        }
    }
}

impl<R: Copy + Eq> Default for TokenTrie<R> {
    fn default() -> Self {
        Self::new()
    }
}
