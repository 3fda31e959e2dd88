//! KV events in vLLM's format, so that routers which already follow vLLM can follow a Poncho node.
//!
//! `wire` has the bytes (MessagePack arrays, as msgspec writes array-like tagged structs), `publisher` the ZeroMQ sockets,
//! and [`BlockLog`] turns rows, which share blocks, into blocks that are stored and removed once. A node feeds it with the
//! changes of its cache. The format carries token ids in plain: a node publishes them only where `--kv-events` asks for it.

mod publisher;
mod wire;

use std::collections::HashMap;

use poncho_kinds::{Key, Tier};
use ring::digest::{Context, SHA256};

pub use publisher::{KvEvents, KvEventsError};
pub use wire::{Batch, Event};

/// Which blocks exist, counted over rows.
#[derive(Debug)]
pub struct BlockLog {
    block_size: usize,
    rows: HashMap<Key, (Vec<u64>, Tier)>,
    /// Rows that contain a block.
    blocks: HashMap<u64, u32>,
}

impl BlockLog {
    /// Blocks of that many tokens, at least one. Routers must be configured with the same size.
    #[must_use]
    pub fn new(block_size: usize) -> Self {
        Self { block_size: block_size.max(1), rows: HashMap::new(), blocks: HashMap::new() }
    }

    /// A row was stored: the blocks that no earlier row had. A row that moved to another tier is stored again there.
    pub fn stored(&mut self, key: Key, tokens: &[u32], tier: Tier) -> Vec<Event> {
        let mut events = match self.rows.get(&key) {
            Some((_, before)) if *before == tier => return Vec::new(),
            Some(_) => self.removed(&key),
            None => Vec::new(),
        };
        let mut hashes: Vec<u64> = Vec::with_capacity(tokens.len() / self.block_size);
        let mut fresh: Option<Event> = None;
        let mut before = None;
        for block in tokens.chunks_exact(self.block_size) {
            let hash = chained(before, block);
            let rows = self.blocks.entry(hash).or_insert(0);
            *rows += 1;
            if *rows == 1 {
                // New blocks are the end of a chain: one event holds all of them.
                let event = fresh.get_or_insert_with(|| Event::BlockStored {
                    block_hashes: Vec::new(),
                    parent: before,
                    token_ids: Vec::new(),
                    block_size: self.block_size,
                    medium: medium(tier),
                });
                if let Event::BlockStored { block_hashes, token_ids, .. } = event {
                    block_hashes.push(hash);
                    token_ids.extend_from_slice(block);
                }
            }
            hashes.push(hash);
            before = Some(hash);
        }
        self.rows.insert(key, (hashes, tier));
        events.extend(fresh);
        events
    }

    /// A row is gone: the blocks that no other row has.
    pub fn removed(&mut self, key: &Key) -> Vec<Event> {
        let Some((hashes, tier)) = self.rows.remove(key) else { return Vec::new() };
        let mut gone = Vec::new();
        for hash in hashes {
            let Some(rows) = self.blocks.get_mut(&hash) else { continue };
            *rows -= 1;
            if *rows == 0 {
                self.blocks.remove(&hash);
                gone.push(hash);
            }
        }
        if gone.is_empty() {
            Vec::new()
        } else {
            vec![Event::BlockRemoved { block_hashes: gone, medium: medium(tier) }]
        }
    }

    /// Everything is gone.
    pub fn cleared(&mut self) -> Vec<Event> {
        self.rows.clear();
        self.blocks.clear();
        vec![Event::AllBlocksCleared]
    }
}

/// The name of a tier that routers know.
fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Ram | Tier::RamFile => "CPU",
        Tier::Disk => "DISK",
    }
}

/// The hash of a block and of everything before it. Its value means nothing to a reader; equal chains have equal values.
fn chained(before: Option<u64>, tokens: &[u32]) -> u64 {
    let mut context = Context::new(&SHA256);
    context.update(&before.unwrap_or(0).to_le_bytes());
    for token in tokens {
        context.update(&token.to_le_bytes());
    }
    let digest = context.finish();
    // The sign bit stays clear: some readers take signed numbers.
    digest.as_ref().iter().take(8).fold(0_u64, |number, byte| (number << 8) | u64::from(*byte)) >> 1
}
