//! Changes to the shape of a trie: splitting an edge, hanging a leaf, pruning and merging.
//!
//! Called by the inserting and removing functions of `TokenTrie`, which have already decided that the change is
//! to happen. Between two calls it holds that a node without a row has at least two children (the root aside),
//! that each node knows its nearest row, and that no large buffer is mostly unused.
//! A node with a row must never be moved to another id here.

use super::label::Label;
use super::node::{Nearest, Node, NodeId, ROOT};
use super::token_trie::{InsertError, Place, TokenTrie};

/// An insertion adds at most the upper half of a split edge and a leaf.
const NODES_PER_INSERTION: usize = 2;

impl<R: Copy + Eq> TokenTrie<R> {
    /// Adds the row that `tokens` lead to from a place.
    pub(super) fn insert_from(&mut self, from: Place, tokens: &[u32], row: R) -> Result<NodeId, InsertError<R>> {
        let has_ids = self.nodes.has_room(NODES_PER_INSERTION) && self.labels.has_room(NODES_PER_INSERTION);
        let is_countable = u32::try_from(self.depth(from.node).saturating_add(tokens.len())).is_ok();
        if !has_ids || !is_countable {
            return Err(InsertError::TooLarge);
        }
        let descent = self.descend(from, tokens, |_| ());
        let (_, rest) = tokens.split_at(descent.found);
        let Place { node: reached, inside } = descent.place;
        let stem = if inside < self.nodes.get(reached).label.len() { self.split(reached, inside) } else { reached };
        let end = match (rest.first(), self.row_at(stem)) {
            (None, Some(existing)) => return Err(InsertError::AlreadyThere(existing)),
            (None, None) => stem,
            (Some(&first), _) => self.add_leaf(stem, first, rest),
        };
        self.nodes.update(end, |node| node.row = Some(row));
        self.rows += 1;
        self.remember(end);
        Ok(end)
    }

    /// Clears the row that ends at a node, and removes the node if nothing else needs it.
    pub(super) fn take_row(&mut self, end: NodeId) {
        self.nodes.update(end, |node| node.row = None);
        let Node { parent, label, depth, .. } = *self.nodes.get(end);
        if !self.nodes.get(end).children().is_empty() {
            self.forget(end, depth, end);
            self.merge_if_idle(end);
            return;
        }
        self.nodes.unlink(parent, self.labels.first(label));
        self.labels.release(label);
        self.nodes.remove(end);
        self.forget(end, depth, parent);
        self.merge_if_idle(parent);
    }

    /// Cuts the edge above a node after `at` tokens and returns the new node at the cut. The lower end keeps its id.
    fn split(&mut self, lower: NodeId, at: usize) -> NodeId {
        let Node { parent, label, nearest, .. } = *self.nodes.get(lower);
        let (upper_label, lower_label) = label.split(at);
        let lower_first = self.labels.first(lower_label);
        let mut middle = Node::new(parent, self.depth(parent) + upper_label.len(), upper_label);
        middle.nearest = nearest.map(|nearest| Nearest { toward: lower_first, ..nearest });
        let middle = self.nodes.add(middle);
        self.nodes.link(parent, self.labels.first(upper_label), middle);
        self.nodes.link(middle, lower_first, lower);
        self.nodes.update(lower, |node| (node.parent, node.label) = (middle, lower_label));
        middle
    }

    fn add_leaf(&mut self, parent: NodeId, first: u32, tokens: &[u32]) -> NodeId {
        let label = self.labels.add(tokens);
        let leaf = self.nodes.add(Node::new(parent, self.depth(parent) + tokens.len(), label));
        self.nodes.link(parent, first, leaf);
        leaf
    }

    /// Makes a new row known to the nodes above it, up to the first that has one at least as short.
    fn remember(&mut self, end: NodeId) {
        let depth = self.depth(end);
        let mut at = end;
        let mut toward = 0;
        loop {
            let Node { parent, label, nearest, .. } = *self.nodes.get(at);
            if nearest.is_some_and(|nearest| at != end && self.depth(nearest.end) <= depth) {
                return;
            }
            self.nodes.update(at, |node| node.nearest = Some(Nearest { end, toward }));
            if at == ROOT {
                return;
            }
            toward = self.labels.first(label);
            at = parent;
        }
    }

    /// Finds another nearest row for the nodes from `lowest` upwards that knew the removed one. The first that did
    /// not ends the climb: a node's nearest row is always that of one of its children, or its own.
    fn forget(&mut self, removed: NodeId, removed_depth: usize, lowest: NodeId) {
        let mut at = lowest;
        loop {
            let node = self.nodes.get(at);
            let parent = node.parent;
            if node.nearest.is_none_or(|nearest| nearest.end != removed) {
                return;
            }
            let renewed = self.nearest_of(at, removed_depth);
            self.nodes.update(at, |node| node.nearest = renewed);
            if at == ROOT {
                return;
            }
            at = parent;
        }
    }

    /// The nearest row by what the node and its children know. No row below is shorter than `shortest`, so the
    /// search ends at the first of that length.
    #[expect(clippy::expect_used, reason = "a child without rows is a defect of the trie")]
    pub(super) fn nearest_of(&self, id: NodeId, shortest: usize) -> Option<Nearest> {
        let node = self.nodes.get(id);
        if node.row.is_some() {
            return Some(Nearest { end: id, toward: 0 });
        }
        let mut best: Option<(usize, Nearest)> = None;
        for &(toward, child) in node.children() {
            let end = self.nodes.get(child).nearest.expect("invariant: a row lies at or below each child").end;
            let depth = self.depth(end);
            if best.is_none_or(|(shortest, _)| depth < shortest) {
                best = Some((depth, Nearest { end, toward }));
            }
            if depth <= shortest {
                break;
            }
        }
        best.map(|(_, nearest)| nearest)
    }

    /// Merges a node that has neither a row nor a fork into its only child; the id of the child survives.
    fn merge_if_idle(&mut self, upper: NodeId) {
        let node = self.nodes.get(upper);
        let mergeable = if upper == ROOT || node.row.is_some() { None } else { node.only_child() };
        let Some(lower) = mergeable else {
            self.leave_sparse_buffer(upper);
            return;
        };
        let Node { parent, label: upper_label, .. } = *node;
        let lower_label = self.nodes.get(lower).label;
        let continuation = self.next_in_buffer(lower, lower_label);
        let joined = self.labels.join(upper_label, lower_label);
        self.nodes.update(lower, |node| (node.parent, node.label) = (parent, joined));
        self.nodes.link(parent, self.labels.first(joined), lower);
        self.nodes.remove(upper);
        // Either label may have left a buffer that others still hold: above the upper one, below the lower one.
        self.leave_sparse_buffer(parent);
        if let Some(continuation) = continuation {
            self.leave_sparse_buffer(continuation);
        }
    }

    /// Moves the labels of a sparse buffer into one that fits, given one of the nodes that hold it.
    ///
    /// A buffer starts as one label and is only ever split, so its holders follow each other on one path. Each
    /// move frees three quarters of a buffer and visits fewer nodes than it frees tokens: the insertions paid it.
    fn leave_sparse_buffer(&mut self, holder: NodeId) {
        if !self.labels.is_sparse(self.nodes.get(holder).label) {
            return;
        }
        let mut top = holder;
        loop {
            let Node { parent, label, .. } = *self.nodes.get(top);
            if !label.shares_buffer(self.nodes.get(parent).label) || parent == top {
                break;
            }
            top = parent;
        }
        let mut holders = Vec::new();
        let mut labels = Vec::new();
        let mut next = Some(top);
        while let Some(id) = next {
            let label = self.nodes.get(id).label;
            holders.push(id);
            labels.push(label);
            next = self.next_in_buffer(id, label);
        }
        self.labels.move_out(&mut labels);
        for (id, label) in holders.into_iter().zip(labels) {
            self.nodes.update(id, |node| node.label = label);
        }
    }

    /// The child with a label that goes on in the same buffer.
    fn next_in_buffer(&self, id: NodeId, label: Label) -> Option<NodeId> {
        let child = self.nodes.get(id).child(self.labels.following(label)?)?;
        self.nodes.get(child).label.shares_buffer(label).then_some(child)
    }
}
