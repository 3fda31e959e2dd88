//! The nodes of a trie and the links between them.
//!
//! `Nodes` is the only place that changes the children of a node, so that their bytes are counted in one place.
//! Called by the trie only. It knows nothing of tokens beyond the first one of each child's label. An id that
//! names no node is a defect and panics.

use std::num::NonZeroU32;

use super::arena::Arena;
use super::children::{Children, ENTRY_BYTES};
use super::label::Label;

/// Names a node of one trie. It is valid while the node exists; a row's end node exists as long as its row.
// One more than the index in the arena, so that an optional id takes no extra room in each node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(NonZeroU32);

/// The node of the empty token list; always there, never a row.
pub(super) const ROOT: NodeId = NodeId(NonZeroU32::MIN);

impl NodeId {
    pub(super) const fn from_index(index: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    const fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// The soonest-ending row at or below a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nearest {
    /// Where the row ends.
    pub(super) end: NodeId,
    /// First token on the way down to it; without meaning if the row ends at this very node.
    pub(super) toward: u32,
}

/// With 4-byte rows a node is exactly one cache line, and aligned to it: a lookup down thousands of nodes waits for
/// memory and little else, and took twice as long when nodes straddled lines. Wider rows take two lines.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Node<R> {
    pub(super) parent: NodeId,
    /// The tokens between the parent and this node; empty for the root only.
    pub(super) label: Label,
    /// Tokens from the root to the end of the label.
    pub(super) depth: usize,
    pub(super) row: Option<R>,
    /// None only in a root without rows.
    pub(super) nearest: Option<Nearest>,
    children: Children,
}

impl<R> Node<R> {
    pub(super) const fn new(parent: NodeId, depth: usize, label: Label) -> Self {
        Self { parent, label, depth, row: None, nearest: None, children: Children::None }
    }

    pub(super) fn child(&self, first: u32) -> Option<NodeId> {
        self.children.find(first)
    }

    /// The children with the first tokens of their labels, sorted by these.
    pub(super) fn children(&self) -> &[(u32, NodeId)] {
        self.children.as_slice()
    }

    /// The child of a node that has exactly one.
    pub(super) const fn only_child(&self) -> Option<NodeId> {
        match self.children {
            Children::One((_, child)) => Some(child),
            _ => None,
        }
    }
}

/// All nodes of one trie; the root is there from the start.
#[derive(Debug)]
pub(super) struct Nodes<R> {
    arena: Arena<Node<R>>,
    /// Heap entries of all lists of children together.
    child_slots: usize,
}

impl<R> Nodes<R> {
    pub(super) fn new() -> Self {
        let mut arena = Arena::new();
        arena.add(Node::new(ROOT, 0, Label::default()));
        Self { arena, child_slots: 0 }
    }

    #[expect(clippy::expect_used, reason = "an id that names no node is a defect of the trie")]
    pub(super) fn get(&self, id: NodeId) -> &Node<R> {
        self.arena.get(id.index()).expect("invariant: a node id names a node")
    }

    #[expect(clippy::expect_used, reason = "an id that names no node is a defect of the trie")]
    fn get_mut(&mut self, id: NodeId) -> &mut Node<R> {
        self.arena.get_mut(id.index()).expect("invariant: a node id names a node")
    }

    /// Changes a node in place. Children are changed by [`Self::link`] and [`Self::unlink`] instead.
    pub(super) fn update(&mut self, id: NodeId, change: impl FnOnce(&mut Node<R>)) {
        change(self.get_mut(id));
    }

    /// Adds a node without children.
    pub(super) fn add(&mut self, node: Node<R>) -> NodeId {
        NodeId::from_index(self.arena.add(node))
    }

    pub(super) fn remove(&mut self, id: NodeId) {
        self.child_slots -= self.get(id).children.heap_slots();
        self.arena.remove(id.index());
    }

    /// Makes `child` the child that starts with `first`, in place of another one if there is one.
    pub(super) fn link(&mut self, parent: NodeId, first: u32, child: NodeId) {
        self.change_children(parent, |children| children.put(first, child));
    }

    pub(super) fn unlink(&mut self, parent: NodeId, first: u32) {
        self.change_children(parent, |children| children.remove(first));
    }

    pub(super) fn has_room(&self, more: usize) -> bool {
        self.arena.has_room(more)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.arena.heap_bytes() + self.child_slots * ENTRY_BYTES
    }

    /// All nodes, for the structural checks of the tests.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node<R>)> {
        self.arena.iter().map(|(index, node)| (NodeId::from_index(index), node))
    }

    /// Panics unless the counted capacity is the real one.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.iter().map(|(_, node)| node.children.heap_slots()).sum::<usize>(), self.child_slots);
    }

    fn change_children(&mut self, parent: NodeId, change: impl FnOnce(&mut Children)) {
        let node = self.get_mut(parent);
        let before = node.children.heap_slots();
        change(&mut node.children);
        let after = node.children.heap_slots();
        self.child_slots = self.child_slots - before + after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_fits_into_64_bytes() {
        assert!(size_of::<Option<Node<u32>>>() <= 64, "{} bytes", size_of::<Option<Node<u32>>>());
    }

    #[test]
    fn the_memory_of_children_is_counted_and_returns() {
        let mut nodes: Nodes<u32> = Nodes::new();
        let before = nodes.heap_bytes();
        for first in 0..100 {
            nodes.link(ROOT, first, ROOT);
        }
        nodes.check();
        assert!(nodes.heap_bytes() >= before + 100 * ENTRY_BYTES);
        for first in 0..100 {
            nodes.unlink(ROOT, first);
            nodes.check();
        }
        assert_eq!(nodes.heap_bytes(), before);
    }

    #[test]
    fn an_id_that_names_no_node_is_loud() {
        use crate::testing::broken_invariant;
        let nowhere = NodeId::from_index(5);
        let complaint = "invariant: a node id names a node";
        assert_eq!(broken_invariant(|| assert_eq!(Nodes::<u32>::new().get(nowhere).row, None)), complaint);
        assert_eq!(broken_invariant(|| Nodes::<u32>::new().update(nowhere, |node| node.row = Some(1))), complaint);
        assert_eq!(broken_invariant(|| Nodes::<u32>::new().link(nowhere, 0, ROOT)), complaint);
        assert_eq!(broken_invariant(|| Nodes::<u32>::new().remove(nowhere)), complaint);
    }
}
