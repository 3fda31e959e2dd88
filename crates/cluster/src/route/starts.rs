//! Prefixes that nodes are computing at the moment, as far as this router sent them there.
//!
//! A hot prefix arrives many times before the first node has announced it. `choice` asks here and sends the others to a
//! node that computes it, or lets a further node pull it when it is there. An entry ends when its node announces the
//! prefix, fails or goes, and after a time at the latest.

use std::collections::{BTreeMap, HashMap};

use super::cost::Expected;
use crate::index::Slot;

/// Names a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StartId(u64);

#[derive(Debug)]
struct Start {
    node: Slot,
    blocks: Vec<u64>,
    ready_at: f64,
    ends_at: f64,
}

/// Seconds after which a start is forgotten, beyond the time at which it should be ready.
const GRACE: f64 = 30.0;

/// See the module.
#[derive(Debug, Default)]
pub struct Starts {
    next: u64,
    by_id: BTreeMap<StartId, Start>,
    by_block: HashMap<u64, Vec<StartId>>,
}

impl Starts {
    /// Notes that a node computes these blocks, of which the last one is there at `ready_at`.
    pub fn begin(&mut self, node: Slot, blocks: &[u64], now: f64, ready_at: f64) -> StartId {
        self.expire(now);
        let id = StartId(self.next);
        self.next += 1;
        for block in blocks {
            self.by_block.entry(*block).or_default().push(id);
        }
        let ready_at = if ready_at.is_finite() { ready_at } else { now };
        self.by_id.insert(id, Start { node, blocks: blocks.to_vec(), ready_at, ends_at: ready_at + GRACE });
        id
    }

    /// A start has ended: its prefix was announced, or it failed.
    pub fn end(&mut self, id: StartId) {
        let Some(start) = self.by_id.remove(&id) else { return };
        for block in &start.blocks {
            if let Some(ids) = self.by_block.get_mut(block) {
                ids.retain(|known| *known != id);
                if ids.is_empty() {
                    self.by_block.remove(block);
                }
            }
        }
    }

    /// A node announced blocks: those starts of it that end with one of them are done.
    pub fn announced(&mut self, node: Slot, blocks: &[u64]) {
        if self.by_id.is_empty() {
            return;
        }
        let ids = blocks.iter().filter_map(|block| self.by_block.get(block)).flatten();
        let is_done = |id: &&StartId| {
            self.by_id.get(id).is_some_and(|start| {
                start.node == node && start.blocks.last().is_some_and(|last| blocks.contains(last))
            })
        };
        let done: Vec<StartId> = ids.filter(is_done).copied().collect();
        for id in done {
            self.end(id);
        }
    }

    /// A node is gone, and with it what it computed.
    pub fn remove_node(&mut self, node: Slot) {
        let gone: Vec<StartId> = self.by_id.iter().filter(|(_, start)| start.node == node).map(|(id, _)| *id).collect();
        for id in gone {
            self.end(id);
        }
    }

    /// What is under way of a prompt, one entry for each node, in the order in which they started.
    pub fn find(&self, blocks: &[u64], block_tokens: u32, now: f64, found: &mut Vec<Expected>) {
        found.clear();
        if self.by_id.is_empty() {
            return;
        }
        for (depth, block) in blocks.iter().enumerate() {
            let Some(ids) = self.by_block.get(block) else { continue };
            let Ok(depth) = u32::try_from(depth + 1) else { return };
            for start in ids.iter().filter_map(|id| self.by_id.get(id)).filter(|start| start.ends_at > now) {
                let tokens = depth.saturating_mul(block_tokens);
                let ready_in = (start.ready_at - now).max(0.0);
                match found.iter_mut().find(|known| known.node == start.node) {
                    Some(known) => (known.tokens, known.ready_in) = (tokens, ready_in),
                    None => found.push(Expected { node: start.node, tokens, ready_in }),
                }
            }
        }
    }

    /// Forgets starts that should have ended long ago.
    pub fn expire(&mut self, now: f64) {
        while let Some((id, start)) = self.by_id.first_key_value() {
            if start.ends_at > now {
                return;
            }
            let id = *id;
            self.end(id);
        }
    }

    /// Starts that have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}
