//! The prefix index: one hash table of blocks, one of boundaries, and each node's rows.
//!
//! Filled from announcements, asked by the choice of a node. A lookup walks the prompt's blocks and stops at the first
//! one that nobody holds. When the bound is reached, the node with most entries loses its oldest row: one node must not
//! push out what others announced.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use poncho_kinds::Key;

use super::holders::Holders;
use super::{Boundary, IndexSize, Match, PrefixIndex, Row, Slot};
use crate::blocks::Lookup;

/// Boundaries behind one block that a lookup tries. A prompt hashes up to 255 tokens for each.
const MOST_TAILS: usize = 64;

/// Places in a node's order that may be leftovers of rows that were announced again.
const MOST_LEFTOVERS: usize = 64;

/// The keys are parts of a keyed SHA-256 already: hashing them again would only take time.
#[derive(Default)]
struct Taken(u64);

impl Hasher for Taken {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

type Table<V> = HashMap<u64, V, BuildHasherDefault<Taken>>;

/// A saved boundary and the nodes that have it.
#[derive(Debug)]
struct Tail {
    length: u16,
    hash: u64,
    holders: Holders,
}

#[derive(Debug)]
struct Stored {
    blocks: Box<[u64]>,
    boundaries: Box<[Boundary]>,
    /// The insertion that brought it; an older place in the order is a leftover.
    number: u64,
}

impl Stored {
    fn entries(&self) -> usize {
        self.blocks.len() + self.boundaries.len()
    }
}

#[derive(Debug, Default)]
struct Held {
    rows: Table<Stored>,
    order: VecDeque<(u64, u64)>,
    entries: usize,
}

/// See the module.
#[derive(Debug)]
pub struct CompactIndex {
    most_entries: usize,
    entries: usize,
    inserted: u64,
    forgotten: u64,
    blocks: Table<Holders>,
    /// Boundaries by the last complete block before them.
    tails: Table<Vec<Tail>>,
    nodes: Vec<Held>,
}

/// The first eight bytes of a key name a row of a node.
fn short(key: &Key) -> u64 {
    key.as_bytes().iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

impl CompactIndex {
    /// An empty index of at most that many entries: blocks and boundaries, counted once for each row. An entry takes 40
    /// to 70 bytes.
    #[must_use]
    pub fn new(most_entries: usize) -> Self {
        let (blocks, tails, nodes) = (Table::default(), Table::default(), Vec::new());
        Self { most_entries, entries: 0, inserted: 0, forgotten: 0, blocks, tails, nodes }
    }

    /// Drops the oldest row of the node that holds most. Says whether there was one.
    fn forget_one(&mut self) -> bool {
        let largest = self.nodes.iter().enumerate().max_by_key(|(_, held)| held.entries);
        let Some((place, held)) = largest.filter(|(_, held)| held.entries > 0) else { return false };
        let node = Slot(u32::try_from(place).unwrap_or(u32::MAX));
        let oldest = held.order.iter().find(|(row, number)| is_current(held, *row, *number)).map(|(row, _)| *row);
        let Some(row) = oldest else { return false };
        self.forgotten += 1;
        self.take_out(node, row)
    }

    fn take_out(&mut self, node: Slot, row: u64) -> bool {
        let Some(held) = self.nodes.get_mut(node.0 as usize) else { return false };
        let Some(stored) = held.rows.remove(&row) else { return false };
        held.entries -= stored.entries();
        self.entries -= stored.entries();
        while held.order.front().is_some_and(|(row, number)| !is_current(held, *row, *number)) {
            held.order.pop_front();
        }
        self.unlink(node, &stored);
        true
    }

    fn unlink(&mut self, node: Slot, stored: &Stored) {
        for hash in &stored.blocks {
            if let Entry::Occupied(mut holders) = self.blocks.entry(*hash)
                && holders.get_mut().subtract(node)
            {
                holders.remove();
            }
        }
        for boundary in &stored.boundaries {
            let Entry::Occupied(mut tails) = self.tails.entry(boundary.after) else { continue };
            tails.get_mut().retain_mut(|tail| {
                !(tail.length == boundary.tail && tail.hash == boundary.hash && tail.holders.subtract(node))
            });
            if tails.get().is_empty() {
                tails.remove();
            }
        }
    }

    fn link(&mut self, node: Slot, row: &Row) {
        for hash in &row.blocks {
            match self.blocks.entry(*hash) {
                Entry::Occupied(mut holders) => holders.get_mut().add(node, row.tier),
                Entry::Vacant(place) => _ = place.insert(Holders::new(node, row.tier)),
            }
        }
        for boundary in &row.boundaries {
            let tails = self.tails.entry(boundary.after).or_default();
            let known = tails.iter_mut().find(|tail| tail.length == boundary.tail && tail.hash == boundary.hash);
            match known {
                Some(tail) => tail.holders.add(node, row.tier),
                None => tails.push(Tail {
                    length: boundary.tail,
                    hash: boundary.hash,
                    holders: Holders::new(node, row.tier),
                }),
            }
        }
    }

    /// The blocks of the prompt that anybody holds, and the boundaries inside it, each with its depth.
    fn walk(&self, prompt: &dyn Lookup) -> Walk<'_> {
        let mut walk = Walk { blocks: Vec::with_capacity(prompt.blocks().len()), tails: Vec::new() };
        self.walk_tails(prompt, 0, prompt.root(), &mut walk);
        for (depth, hash) in (1_u32..).zip(prompt.blocks()) {
            let Some(holders) = self.blocks.get(hash) else { break };
            walk.blocks.push(holders);
            self.walk_tails(prompt, depth, *hash, &mut walk);
        }
        walk
    }

    fn walk_tails<'a>(&'a self, prompt: &dyn Lookup, depth: u32, after: u64, walk: &mut Walk<'a>) {
        let tails = self.tails.get(&after).into_iter().flatten().take(MOST_TAILS);
        let right = tails.filter(|tail| prompt.tail_hash(depth as usize, tail.length) == Some(tail.hash));
        walk.tails.extend(right.map(|tail| ((depth, tail.length), &tail.holders)));
    }
}

/// What a lookup went over.
struct Walk<'a> {
    /// Holders of the prompt's blocks, without a gap.
    blocks: Vec<&'a Holders>,
    /// Boundaries with their place and holders, the shortest first.
    tails: Vec<((u32, u16), &'a Holders)>,
}

impl Walk<'_> {
    /// What one node holds.
    fn of(&self, node: Slot) -> Option<Match> {
        let held = self.blocks.iter().map_while(|holders| holders.of(node));
        let (blocks, tier) = held.fold((0, None), |(count, tier), holder| (count + 1, tier.max(Some(holder.tier))));
        let tail = self.tails.iter().filter_map(|(place, holders)| Some((*place, holders.of(node)?.tier)));
        let tail = tail.max_by_key(|(place, _)| *place);
        let tier = tier.or(tail.map(|(_, tier)| tier))?;
        Some(Match { node, blocks, boundary: tail.map_or((0, 0), |(place, _)| place), tier })
    }

    /// Adds nodes, from the deepest block backwards, until enough of them cannot be surpassed by the rest.
    fn gather(&self, most: usize, number: u64, found: &mut Vec<Match>) {
        let mut add = |holders: &Holders, is_enough: &dyn Fn(&[Match]) -> bool| {
            for holder in holders.rotated(number) {
                if is_enough(found) {
                    return;
                }
                if !found.iter().any(|known| known.node == holder.node) {
                    found.extend(self.of(holder.node));
                }
            }
        };
        for (place, holders) in self.tails.iter().rev() {
            add(holders, &|found| found.iter().filter(|one| one.boundary >= *place).count() >= most);
        }
        for (depth, holders) in (1_u32..).zip(&self.blocks).collect::<Vec<_>>().into_iter().rev() {
            add(holders, &|found| found.iter().filter(|one| one.blocks >= depth).count() >= most);
        }
    }
}

fn is_current(held: &Held, row: u64, number: u64) -> bool {
    held.rows.get(&row).is_some_and(|stored| stored.number == number)
}

impl PrefixIndex for CompactIndex {
    fn insert(&mut self, node: Slot, row: &Row) {
        let (place, name) = (node.0 as usize, short(&row.key));
        self.take_out(node, name);
        let wanted = row.blocks.len() + row.boundaries.len();
        if wanted == 0 || wanted > self.most_entries {
            return;
        }
        while self.entries + wanted > self.most_entries {
            if !self.forget_one() {
                return;
            }
        }
        if self.nodes.len() <= place {
            self.nodes.resize_with(place + 1, Held::default);
        }
        let Some(held) = self.nodes.get_mut(place) else { return };
        self.inserted += 1;
        let (blocks, boundaries) = (row.blocks.as_slice().into(), row.boundaries.as_slice().into());
        held.rows.insert(name, Stored { blocks, boundaries, number: self.inserted });
        held.order.push_back((name, self.inserted));
        held.entries += wanted;
        if held.order.len() > 2 * held.rows.len() + MOST_LEFTOVERS {
            let rows = &held.rows;
            held.order.retain(|(row, number)| rows.get(row).is_some_and(|stored| stored.number == *number));
        }
        self.entries += wanted;
        self.link(node, row);
    }

    fn remove(&mut self, node: Slot, key: &Key) -> bool {
        self.take_out(node, short(key))
    }

    fn holds(&self, node: Slot, key: &Key) -> bool {
        self.nodes.get(node.0 as usize).is_some_and(|held| held.rows.contains_key(&short(key)))
    }

    fn remove_node(&mut self, node: Slot) {
        let Some(held) = self.nodes.get_mut(node.0 as usize) else { return };
        let held = std::mem::take(held);
        self.entries -= held.entries;
        for stored in held.rows.values() {
            self.unlink(node, stored);
        }
    }

    fn find(&self, prompt: &dyn Lookup, most: usize, found: &mut Vec<Match>) {
        found.clear();
        let number = prompt.blocks().last().copied().unwrap_or_default();
        self.walk(prompt).gather(most, number, found);
        found.sort_unstable_by_key(|one| (Reverse((one.blocks, one.boundary)), one.node));
        found.truncate(most.saturating_mul(2));
    }

    fn held(&self, prompt: &dyn Lookup, nodes: &mut dyn Iterator<Item = Slot>, found: &mut Vec<Match>) {
        let walk = self.walk(prompt);
        for node in nodes {
            if !found.iter().any(|known| known.node == node) {
                found.extend(walk.of(node));
            }
        }
    }

    fn size(&self) -> IndexSize {
        let rows = self.nodes.iter().map(|held| held.rows.len()).sum();
        IndexSize { blocks: self.blocks.len(), rows, entries: self.entries, forgotten: self.forgotten }
    }
}
