//! Prompts that nodes computed lately, as far as this router sent them there.
//!
//! A node saves and announces a prompt some time after its reply. The next turn of an agent is often faster: without this
//! note it would go to a node with an older part of the conversation, and that part would be computed again. `lookout`
//! notes a prompt with the first token of its reply, and asks for each request. These are hints: a node may have given its
//! sequence away. It must never grow without a bound.

use std::collections::HashMap;

use crate::index::Slot;

/// Seconds after which a prompt is announced, or will not be.
const LASTS: f64 = 60.0;
/// Prompts in one generation. There are two: the older one is dropped when the younger one is full.
const MOST: usize = 8192;

/// Where a prompt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptEnd {
    /// The hash of its last complete block.
    pub block: u64,
    /// Its length.
    pub tokens: u32,
}

#[derive(Debug, Clone, Copy)]
struct Computed {
    node: Slot,
    tokens: u32,
    until: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Live {
    young: HashMap<u64, Vec<Computed>>,
    old: HashMap<u64, Vec<Computed>>,
}

impl Live {
    /// A node has computed a prompt.
    pub fn note(&mut self, node: Slot, end: PromptEnd, now: f64) {
        if self.young.len() >= MOST {
            self.old = std::mem::take(&mut self.young);
        }
        let known = self.young.entry(end.block).or_default();
        known.retain(|one| one.node != node && one.until > now);
        known.push(Computed { node, tokens: end.tokens, until: now + LASTS });
    }

    /// The nodes that have computed a part of a prompt, each with the number of tokens. `blocks` are its complete blocks, and
    /// `tokens` is its length.
    #[must_use]
    pub fn find(&self, blocks: &[u64], block_tokens: u32, tokens: u32, now: f64) -> Vec<(Slot, u32)> {
        let mut found: Vec<(Slot, u32)> = Vec::new();
        if self.young.is_empty() && self.old.is_empty() {
            return found;
        }
        // The longest part first.
        for (place, block) in blocks.iter().enumerate().rev() {
            let both = [&self.young, &self.old].into_iter().filter_map(|all| all.get(block)).flatten();
            // What follows the last complete block is believed: another text costs less than a block.
            let next = u32::try_from(place + 2).unwrap_or(u32::MAX).saturating_mul(block_tokens);
            for one in both.filter(|one| one.until > now) {
                if !found.iter().any(|(node, _)| *node == one.node) {
                    found.push((one.node, one.tokens.min(next).min(tokens)));
                }
            }
        }
        found
    }

    /// A node is gone.
    pub fn remove_node(&mut self, node: Slot) {
        for all in [&mut self.young, &mut self.old] {
            all.retain(|_, known| {
                known.retain(|one| one.node != node);
                !known.is_empty()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: [u64; 4] = [11, 12, 13, 14];

    fn end(blocks: usize, tokens: u32) -> PromptEnd {
        PromptEnd { block: BLOCKS[blocks - 1], tokens }
    }

    #[test]
    fn the_longest_prompt_of_each_node_is_found_while_it_lasts() {
        let mut live = Live::default();
        live.note(Slot(1), end(2, 600), 0.0);
        live.note(Slot(1), end(3, 800), 1.0);
        live.note(Slot(2), end(2, 512), 1.0);
        assert_eq!(live.find(&BLOCKS, 256, 1100, 2.0), [(Slot(1), 800), (Slot(2), 512)]);
        assert_eq!(
            live.find(&BLOCKS[..2], 256, 530, 2.0),
            [(Slot(1), 530), (Slot(2), 512)],
            "never more than is asked"
        );
        assert_eq!(live.find(&[11, 99, 98], 256, 800, 2.0), [], "another text");
        assert_eq!(live.find(&BLOCKS, 256, 1100, 70.0), []);
        live.remove_node(Slot(1));
        assert_eq!(live.find(&BLOCKS, 256, 1100, 2.0), [(Slot(2), 512)]);
    }

    #[test]
    fn it_stays_within_its_bound_and_forgets_the_oldest() {
        let mut live = Live::default();
        for number in 0..100_000_u64 {
            live.note(Slot(0), PromptEnd { block: number, tokens: 256 }, 0.0);
            // The same prompt again takes no more room.
            live.note(Slot(0), PromptEnd { block: number, tokens: 256 }, 0.0);
        }
        assert!(live.young.len() + live.old.len() <= 2 * MOST);
        assert!(live.young.values().all(|known| known.len() == 1));
        assert_eq!(live.find(&[99_999], 256, 256, 1.0), [(Slot(0), 256)]);
        assert_eq!(live.find(&[0], 256, 256, 1.0), []);
    }
}
