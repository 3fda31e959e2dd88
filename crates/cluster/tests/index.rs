//! The prefix index: what it finds, what it forgets, and how large it gets.

use std::collections::{BTreeMap, BTreeSet};

use poncho_cluster::blocks::{BLOCK_TOKENS, BlockHasher, Lookup};
use poncho_cluster::index::{CompactIndex, Match, PrefixIndex, Row, Slot};
use poncho_kinds::{Key, Tier};
use proptest::prelude::*;

const NAMESPACE: [u8; 32] = [3; 32];

fn hasher() -> BlockHasher {
    BlockHasher::new(b"a key of the tests")
}

fn key(number: u8) -> Key {
    Key::from_bytes([number; 32])
}

fn tokens(count: usize) -> Vec<u32> {
    (0..u32::try_from(count).unwrap()).collect()
}

/// A row of all blocks of these tokens, with a boundary at their end.
fn row(number: u8, tokens: &[u32]) -> Row {
    let hasher = hasher();
    let prefix = hasher.prefix(&NAMESPACE, tokens);
    let boundaries = prefix.boundary(tokens.len()).into_iter().collect();
    Row { key: key(number), parent: None, blocks: prefix.blocks().to_vec(), boundaries, tier: Tier::Disk, bytes: 1 }
}

fn find(index: &CompactIndex, tokens: &[u32]) -> Vec<Match> {
    let hasher = hasher();
    let mut found = Vec::new();
    index.find(&hasher.prefix(&NAMESPACE, tokens) as &dyn Lookup, 100, &mut found);
    found
}

fn block_tokens() -> u32 {
    u32::try_from(BLOCK_TOKENS).unwrap()
}

#[test]
fn the_node_with_the_longest_prefix_comes_first() {
    let mut index = CompactIndex::new(1000);
    let all = tokens(1000);
    index.insert(Slot(1), &row(1, &all[..300]));
    index.insert(Slot(2), &row(2, &all[..900]));
    let found = find(&index, &all);
    let lengths: Vec<(u32, u32, u32)> = found
        .iter()
        .map(|one| (one.node.0, one.tokens(block_tokens(), true), one.tokens(block_tokens(), false)))
        .collect();
    assert_eq!(lengths, [(2, 900, 900), (1, 300, 300)]);
}

#[test]
fn a_model_that_cannot_be_cut_counts_saved_boundaries_only() {
    let mut index = CompactIndex::new(1000);
    index.insert(Slot(1), &row(1, &tokens(900)));
    let mut other = tokens(900);
    other[800] = 7;
    let found = find(&index, &other);
    assert_eq!(found[0].tokens(block_tokens(), true), 768, "three blocks are equal");
    assert_eq!(found[0].tokens(block_tokens(), false), 0, "its only state is after the difference");
}

#[test]
fn a_prefix_with_a_hole_ends_at_the_hole() {
    let mut index = CompactIndex::new(1000);
    let all = tokens(1024);
    let whole = row(1, &all);
    let mut child = whole.clone();
    (child.key, child.parent, child.blocks) = (key(2), Some(key(1)), whole.blocks[2..].to_vec());
    child.boundaries.clear();
    index.insert(Slot(5), &child);
    assert_eq!(find(&index, &all), []);
    let mut parent = whole;
    parent.blocks.truncate(1);
    parent.boundaries.clear();
    index.insert(Slot(5), &parent);
    assert_eq!(find(&index, &all)[0].blocks, 1);
}

#[test]
fn a_block_of_two_rows_stays_until_both_are_gone() {
    let mut index = CompactIndex::new(1000);
    let all = tokens(600);
    index.insert(Slot(1), &row(1, &all));
    index.insert(Slot(1), &row(2, &all[..512]));
    assert!(index.remove(Slot(1), &key(1)));
    assert_eq!(find(&index, &all)[0].blocks, 2);
    assert!(index.remove(Slot(1), &key(2)));
    assert!(!index.remove(Slot(1), &key(2)), "it is gone");
    assert_eq!(find(&index, &all), []);
    assert_eq!((index.size().blocks, index.size().entries), (0, 0));
}

#[test]
fn the_bound_holds_and_the_largest_node_pays_for_it() {
    let mut index = CompactIndex::new(100);
    index.insert(Slot(1), &row(200, &tokens(256 * 4)));
    for number in 0..100 {
        let others: Vec<u32> = (0..256 * 5).map(|token| token + 10_000 * (u32::from(number) + 1)).collect();
        index.insert(Slot(2), &row(number, &others));
        assert!(index.size().entries <= 100, "{:?}", index.size());
    }
    assert!(index.size().forgotten > 80, "{:?}", index.size());
    assert_eq!(find(&index, &tokens(256 * 4))[0].node, Slot(1), "the small node lost nothing");
}

#[test]
fn a_row_that_is_announced_again_and_again_leaves_nothing_behind() {
    let mut index = CompactIndex::new(100);
    for _ in 0..500 {
        index.insert(Slot(0), &row(1, &tokens(512)));
        index.insert(Slot(0), &row(2, &tokens(256)));
    }
    assert_eq!((index.size().rows, index.size().entries, index.size().forgotten), (2, 5, 0));
}

/// The same as a list of rows for each node, searched in full.
#[derive(Default)]
struct Plain(BTreeMap<u32, BTreeMap<u8, Row>>);

impl Plain {
    fn blocks(&self, node: u32, prompt: &[u64]) -> u32 {
        let held: BTreeSet<u64> =
            self.0.get(&node).into_iter().flat_map(|rows| rows.values()).flat_map(|row| row.blocks.clone()).collect();
        u32::try_from(prompt.iter().take_while(|block| held.contains(block)).count()).unwrap()
    }
}

/// Tokens of a family; all families share the first block.
fn family_tokens(family: u32, blocks: usize) -> Vec<u32> {
    tokens(256 * blocks).iter().map(|token| if *token < 256 { *token } else { token + 10_000 * family }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn it_agrees_with_a_list_of_rows(
        steps in prop::collection::vec((0_u8..4, 0_u32..4, 0_u8..6, 1_usize..6, 0_u32..3), 1..60),
    ) {
        let mut index = CompactIndex::new(100_000);
        let mut plain = Plain::default();
        let families: Vec<Vec<u32>> = (0..3).map(|family| family_tokens(family, 6)).collect();
        let hasher = hasher();
        let prompts: Vec<_> = families.iter().map(|tokens| hasher.prefix(&NAMESPACE, tokens)).collect();
        for (what, node, name, blocks, family) in steps {
            match what {
                0 | 1 => {
                    let row = row(name, &family_tokens(family, blocks));
                    index.insert(Slot(node), &row);
                    plain.0.entry(node).or_default().insert(name, row);
                }
                2 => {
                    let known = plain.0.get_mut(&node).is_some_and(|rows| rows.remove(&name).is_some());
                    prop_assert_eq!(index.remove(Slot(node), &key(name)), known);
                }
                _ => {
                    index.remove_node(Slot(node));
                    plain.0.remove(&node);
                }
            }
            for prefix in &prompts {
                let mut found = Vec::new();
                index.find(prefix, 100, &mut found);
                for node in 0..4 {
                    let expected = plain.blocks(node, prefix.blocks());
                    let got = found.iter().find(|one| one.node == Slot(node)).map_or(0, |one| one.blocks);
                    prop_assert_eq!(got, expected);
                }
            }
        }
        for node in 0..4 {
            index.remove_node(Slot(node));
        }
        prop_assert_eq!((index.size().blocks, index.size().entries, index.size().rows), (0, 0, 0));
    }
}
