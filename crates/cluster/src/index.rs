//! Which node holds which prefix: the trait, what is announced of a row, and what a lookup finds.
//!
//! Routers fill an index from announcements and ask it about prompts. `compact` is the one implementation. An index
//! holds hints: it must stay within its bound, and it must never report a node that did not announce the prefix.

mod compact;
mod holders;

use poncho_kinds::{Key, Tier};
use serde::{Deserialize, Serialize};

pub use compact::CompactIndex;

use crate::blocks::{Boundary, Lookup};

/// A node's place in the tables of this process. Slots of nodes that are gone are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// A row as its node announces it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name in the cache of the node.
    pub key: Key,
    /// The row that it continues.
    pub parent: Option<Key>,
    /// Hashes of the complete blocks that the chain up to this row adds to its parent's.
    pub blocks: Vec<u64>,
    /// Lengths at which its state is usable.
    pub boundaries: Vec<Boundary>,
    /// Where its bytes are.
    pub tier: Tier,
    /// Its size.
    pub bytes: u64,
}

/// What one node has of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// The node.
    pub node: Slot,
    /// Complete blocks that it holds without a gap, from the first one.
    pub blocks: u32,
    /// Tokens up to its last saved boundary inside the prompt, as blocks and the rest.
    pub boundary: (u32, u16),
    /// The slowest tier among the blocks.
    pub tier: Tier,
}

impl Match {
    /// Tokens that the node need not compute, for a model that may be cut at any token or at boundaries only.
    #[must_use]
    pub fn tokens(&self, block_tokens: u32, can_cut: bool) -> u32 {
        let (blocks, tail) = self.boundary;
        let boundary = blocks.saturating_mul(block_tokens).saturating_add(u32::from(tail));
        if can_cut { boundary.max(self.blocks.saturating_mul(block_tokens)) } else { boundary }
    }
}

/// The size of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexSize {
    /// Different blocks.
    pub blocks: usize,
    /// Rows of all nodes.
    pub rows: usize,
    /// Blocks counted once for each row that brought them; the bound applies to this.
    pub entries: usize,
    /// Rows that were dropped to stay within the bound.
    pub forgotten: u64,
}

/// Which node holds which prefix.
pub trait PrefixIndex {
    /// Notes a row of a node. A row of the same key replaces the earlier one.
    fn insert(&mut self, node: Slot, row: &Row);

    /// Forgets a row of a node. Says whether it was known.
    fn remove(&mut self, node: Slot, key: &Key) -> bool;

    /// Forgets everything that a node holds.
    fn remove_node(&mut self, node: Slot);

    /// Replaces `found` by the nodes that hold most of a prompt, the longest prefixes first: at most `most` by blocks, and
    /// as many by boundaries. Among equal ones the prompt decides which are found.
    fn find(&self, prompt: &dyn Lookup, most: usize, found: &mut Vec<Match>);

    /// Adds what these nodes hold of a prompt, those that hold any of it and are not in `found` yet.
    fn held(&self, prompt: &dyn Lookup, nodes: &mut dyn Iterator<Item = Slot>, found: &mut Vec<Match>);

    /// Whether a node announced a row.
    fn holds(&self, node: Slot, key: &Key) -> bool;

    /// Its size.
    fn size(&self) -> IndexSize;
}
