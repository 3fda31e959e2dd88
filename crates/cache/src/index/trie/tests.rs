//! The trie against a naive model: lists of tokens, scanned one by one.
//!
//! Random edits over a tiny alphabet split and merge edges all the time; after each one every live row is read back
//! by its node and the whole structure is checked. Nothing here measures time.

use proptest::collection::vec;
use proptest::prelude::*;

use super::node::{Nearest, NodeId, ROOT};
use super::token_trie::{InsertError, Match, TokenTrie};

#[derive(Debug, Clone)]
struct ModelRow {
    tokens: Vec<u32>,
    row: u32,
    node: NodeId,
}

/// A trie and its model, driven by the same edits.
struct Pair {
    trie: TokenTrie<u32>,
    rows: Vec<ModelRow>,
    next_row: u32,
}

impl Pair {
    fn new() -> Self {
        Self { trie: TokenTrie::new(), rows: Vec::new(), next_row: 0 }
    }

    fn insert(&mut self, tokens: &[u32]) {
        let outcome = self.trie.insert(tokens, self.next_row);
        self.expect_inserted(tokens.to_vec(), outcome);
    }

    fn insert_below(&mut self, pick: usize, start: usize, suffix: &[u32]) {
        if self.rows.is_empty() {
            return;
        }
        let parent = &self.rows[pick % self.rows.len()].tokens;
        let start = start % (parent.len() + 1);
        self.insert(&[&parent[..start], suffix].concat());
    }

    fn expect_inserted(&mut self, tokens: Vec<u32>, outcome: Result<NodeId, InsertError<u32>>) {
        match self.rows.iter().find(|row| row.tokens == tokens) {
            _ if tokens.is_empty() => assert_eq!(outcome, Err(InsertError::Empty)),
            Some(existing) => assert_eq!(outcome, Err(InsertError::AlreadyThere(existing.row))),
            None => self.rows.push(ModelRow { tokens, row: self.next_row, node: outcome.unwrap() }),
        }
        self.next_row += 1;
    }

    fn remove(&mut self, pick: usize) {
        if !self.rows.is_empty() {
            let row = self.rows.swap_remove(pick % self.rows.len());
            assert_eq!(self.trie.remove(row.node), Some(row.row));
        }
    }

    fn check_rows(&self) {
        assert_eq!((self.trie.len(), self.trie.is_empty()), (self.rows.len(), self.rows.is_empty()));
        for row in &self.rows {
            assert_eq!(self.trie.tokens_of(row.node), row.tokens, "the id of a row's end names other tokens");
            assert_eq!(self.trie.row_at(row.node), Some(row.row));
            assert_eq!(self.trie.depth(row.node), row.tokens.len());
        }
        for divisor in [1, 2] {
            let kept: Vec<&ModelRow> = self.rows.iter().filter(|row| row.row % divisor == 0).collect();
            let is_extended =
                |row: &ModelRow| kept.iter().any(|other| other.row != row.row && other.tokens.starts_with(&row.tokens));
            let mut longest: Vec<u32> = kept.iter().filter(|row| !is_extended(row)).map(|row| row.row).collect();
            let mut found = self.trie.longest_rows(|row| row % divisor == 0);
            longest.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, longest, "rows that no other one extends");
        }
    }

    fn check_lookup(&self, tokens: &[u32]) {
        let exact = self.rows.iter().find(|row| row.tokens == tokens).map(|row| row.row);
        assert_eq!(self.trie.get(tokens), exact);

        let found = self.trie.lookup(tokens);
        let agreeing = |row: &ModelRow| row.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let common = self.rows.iter().map(agreeing).max().unwrap_or(0);
        assert_eq!(found.common, common);

        let ends_on_path = self.rows.iter().filter(|row| tokens.starts_with(&row.tokens));
        let mut boundaries: Vec<(usize, u32)> = ends_on_path.map(|row| (row.tokens.len(), row.row)).collect();
        boundaries.sort_unstable();
        assert_eq!(found.boundaries, boundaries);

        if common == 0 {
            assert_eq!((found.below, found.divergence), (None, None));
            return;
        }
        let soonest = self.rows.iter().filter(|row| agreeing(row) == common).map(|row| row.tokens.len()).min();
        let below = self.rows.iter().find(|row| Some(row.row) == found.below).unwrap();
        assert_eq!(agreeing(below), common);
        assert_eq!(Some(below.tokens.len()), soonest);
        let stored = below.tokens.get(common).filter(|_| common < tokens.len());
        assert_eq!(found.divergence, stored.copied());
    }

    /// Everything that must hold between two edits, see `edit.rs`.
    fn check_structure(&self) {
        let trie = &self.trie;
        let mut labels = Vec::new();
        for (id, node) in trie.nodes.iter() {
            let soonest = |nearest: Option<Nearest>| nearest.map(|nearest| trie.depth(nearest.end));
            assert_eq!(soonest(node.nearest), soonest(trie.nearest_of(id, 0)));
            if let Some(nearest) = node.nearest.filter(|nearest| nearest.end != id) {
                let via = trie.nodes.get(node.child(nearest.toward).unwrap());
                assert_eq!(via.nearest.unwrap().end, nearest.end, "the way to the nearest row leads elsewhere");
            }
            for &(first, child) in node.children() {
                assert_eq!(trie.nodes.get(child).parent, id);
                assert_eq!(trie.labels.first(trie.nodes.get(child).label), first);
            }
            assert!(node.children().is_sorted_by(|left, right| left.0 < right.0));
            if id != ROOT {
                assert!(node.row.is_some() || node.children().len() > 1, "an idle node was kept");
                assert_eq!(node.depth, trie.depth(node.parent) + node.label.len());
                assert!(node.label.len() > 0);
                labels.push(node.label);
            }
        }
        trie.labels.check(&labels);
        trie.nodes.check();
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert(Vec<u32>),
    InsertBelow {
        pick: usize,
        start: usize,
        suffix: Vec<u32>,
    },
    Remove {
        pick: usize,
    },
    Lookup(Vec<u32>),
    /// A stored row cut at some token and continued otherwise: parts from the tree deep inside.
    LookupNear {
        pick: usize,
        cut: usize,
        tail: Vec<u32>,
    },
}

/// Lists with long runs of one token, so that many share long prefixes.
fn tokens() -> impl Strategy<Value = Vec<u32>> {
    vec(prop_oneof![6 => Just(0_u32), 2 => Just(1), 1 => Just(u32::MAX)], 0..40)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pick = || 0..1000_usize;
    let step = prop_oneof![
        3 => tokens().prop_map(Step::Insert),
        3 => (pick(), pick(), tokens()).prop_map(|(pick, start, suffix)| Step::InsertBelow { pick, start, suffix }),
        3 => pick().prop_map(|pick| Step::Remove { pick }),
        1 => tokens().prop_map(Step::Lookup),
        2 => (pick(), pick(), tokens()).prop_map(|(pick, cut, tail)| Step::LookupNear { pick, cut, tail }),
    ];
    vec(step, 1..120)
}

/// Each token `factor` times, to reach the sizes where buffers are left.
fn stretch(tokens: &[u32], factor: usize) -> Vec<u32> {
    tokens.iter().flat_map(|&token| std::iter::repeat_n(token, factor)).collect()
}

fn run(steps: Vec<Step>, factor: usize) {
    let mut pair = Pair::new();
    for step in steps {
        match step {
            Step::Insert(tokens) => pair.insert(&stretch(&tokens, factor)),
            Step::InsertBelow { pick, start, suffix } => {
                pair.insert_below(pick, start * factor, &stretch(&suffix, factor));
            }
            Step::Remove { pick } => pair.remove(pick),
            Step::Lookup(tokens) => pair.check_lookup(&stretch(&tokens, factor)),
            Step::LookupNear { pick, cut, tail } => {
                let near = pair.rows.get(pick % pair.rows.len().max(1)).map_or(&[][..], |row| &row.tokens);
                let cut = (cut * factor) % (near.len() + 1);
                pair.check_lookup(&[&near[..cut], &stretch(&tail, factor)].concat());
                pair.check_lookup(near);
            }
        }
        pair.check_rows();
        pair.check_structure();
    }
    while !pair.rows.is_empty() {
        pair.remove(pair.rows.len() / 2);
        pair.check_structure();
    }
    assert_eq!(pair.trie.memory_bytes(), TokenTrie::<u32>::new().memory_bytes());
}

proptest! {
    #[test]
    fn any_edits_agree_with_the_model(steps in steps()) {
        run(steps, 1);
    }

    #[test]
    fn any_edits_of_long_rows_agree_and_keep_no_sparse_buffer(steps in steps()) {
        run(steps, 101);
    }
}

/// A reproducible scatter of numbers, good enough to pick rows and places.
fn scatter(seed: usize) -> usize {
    (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20).wrapping_mul(0x2545_F491) >> 7
}

fn small_token(number: usize, alphabet: usize) -> u32 {
    u32::try_from(number % alphabet).unwrap()
}

#[test]
fn ten_thousand_rows_agree_with_the_model() {
    let mut pair = Pair::new();
    for seed in 0..10_000 {
        let suffix: Vec<u32> = (0..1 + scatter(seed) % 20).map(|at| small_token(scatter(seed * 31 + at), 5)).collect();
        if seed % 10 == 0 {
            pair.insert(&suffix);
        } else {
            let pick = scatter(seed + 7);
            pair.insert_below(pick, scatter(seed + 13), &suffix);
        }
    }
    assert!(pair.rows.len() > 9000, "the generator repeats itself: {} rows", pair.rows.len());
    pair.check_rows();
    pair.check_structure();
    let sample = |pair: &Pair, seeds: std::ops::Range<usize>| {
        for seed in seeds {
            let near = &pair.rows[scatter(seed) % pair.rows.len()].tokens;
            let cut = scatter(seed + 3) % (near.len() + 1);
            let tail = [6, 5, 3].map(|alphabet| small_token(seed, alphabet));
            pair.check_lookup(&[&near[..cut], &tail[..seed % 4]].concat());
        }
    };
    sample(&pair, 0..200);
    for seed in 0..7000 {
        pair.remove(scatter(seed));
    }
    pair.check_rows();
    pair.check_structure();
    sample(&pair, 200..400);
}

#[test]
fn ids_of_other_rows_survive_splits_and_merges() {
    let mut trie = TokenTrie::new();
    let long = trie.insert(&[1, 2, 3, 4], 'l').unwrap();
    let middle = trie.insert(&[1, 2], 'm').unwrap();
    assert_ne!(long, middle, "the upper node of a split edge is the new one");
    assert_eq!(trie.tokens_of(long), [1, 2, 3, 4]);
    let fork = trie.insert(&[1, 2, 3, 9], 'f').unwrap();
    assert_eq!(trie.remove(middle), Some('m'));
    assert_eq!((trie.row_at(long), trie.tokens_of(long)), (Some('l'), vec![1, 2, 3, 4]));
    assert_eq!(trie.remove(fork), Some('f'));
    assert_eq!((trie.row_at(long), trie.tokens_of(long)), (Some('l'), vec![1, 2, 3, 4]));
}

#[test]
fn a_row_below_is_the_one_that_ends_soonest() {
    let mut trie = TokenTrie::new();
    trie.insert(&[1, 2, 3, 4, 5, 6], "longest").unwrap();
    trie.insert(&[1, 2, 7, 8, 9], "longer").unwrap();
    let short = trie.insert(&[1, 2, 8, 8], "short").unwrap();
    let expected = |below, divergence| Match { common: 2, boundaries: vec![], below: Some(below), divergence };
    assert_eq!(trie.lookup(&[1, 2, 5]), expected("short", Some(8)));
    assert_eq!(trie.lookup(&[1, 2]), expected("short", None));
    trie.remove(short);
    assert_eq!(trie.lookup(&[1, 2, 5]), expected("longer", Some(7)));
    trie.insert(&[1, 2], "here").unwrap();
    let ends_here = Match { common: 2, boundaries: vec![(2, "here")], below: Some("here"), divergence: None };
    assert_eq!(trie.lookup(&[1, 2, 5]), ends_here);
    assert_eq!(trie.lookup(&[2]), Match { common: 0, boundaries: vec![], below: None, divergence: None });
}

#[test]
fn wrong_insertions_are_refused_and_change_nothing() {
    let mut trie = TokenTrie::new();
    assert_eq!(trie.insert(&[], 0), Err(InsertError::Empty));
    trie.insert(&[1, 2, 3], 1).unwrap();
    let before = trie.memory_bytes();
    assert_eq!(trie.insert(&[1, 2, 3], 2), Err(InsertError::AlreadyThere(1)));
    assert_eq!((trie.len(), trie.memory_bytes()), (1, before));
}

#[test]
fn a_chain_of_100_000_nodes_is_walked_without_recursion() {
    let mut trie = TokenTrie::new();
    let tokens: Vec<u32> = (0..100_000).map(|token| token % 7).collect();
    // Longest first: each one is on the edge below the root, which is found in one step.
    let mut ends: Vec<NodeId> =
        (0..100_000_u32).rev().map(|row| trie.insert(&tokens[..=row as usize], row).unwrap()).collect();
    ends.reverse();
    assert_eq!(trie.tokens_of(ends[ends.len() - 1]), tokens);
    let found = trie.lookup(&tokens);
    assert_eq!((found.common, found.boundaries.len(), found.below), (100_000, 100_000, Some(99_999)));
    // Deepest first: each is a leaf when its turn comes.
    for &end in ends[1000..].iter().rev() {
        assert!(trie.remove(end).is_some());
    }
    // Shallowest first: each is merged into the next.
    for &end in &ends[..999] {
        assert!(trie.remove(end).is_some());
    }
    assert_eq!(trie.tokens_of(ends[999]), tokens[..1000]);
    assert_eq!((trie.len(), trie.lookup(&tokens).boundaries), (1, vec![(1000, 999)]));
}

/// Models that cannot be cut save a row of all tokens for each turn; the index keeps each token once.
#[test]
fn rows_of_one_conversation_share_their_tokens() {
    let (turns, turn) = (200, 100);
    let tokens: Vec<u32> = (0..turns * turn).map(|place| u32::try_from(scatter(place) % 50_000).unwrap()).collect();
    let mut trie = TokenTrie::new();
    for row in 1..=turns {
        trie.insert(&tokens[..row * turn], row).unwrap();
    }
    let once = size_of_val(&tokens[..]);
    let bytes = trie.memory_bytes();
    assert!(bytes < 2 * once, "{bytes} bytes for {once} bytes of tokens");
    assert_eq!(trie.lookup(&tokens).common, tokens.len());
}

#[test]
fn a_short_rest_does_not_keep_a_long_buffer() {
    let mut trie = TokenTrie::new();
    let long: Vec<u32> = (0..100_000).collect();
    let whole = trie.insert(&long, 0).unwrap();
    let rests = [10, 20, 30].map(|length| trie.insert(&long[..length], 1).unwrap());
    assert!(trie.memory_bytes() > 400_000);
    trie.remove(whole);
    assert!(trie.memory_bytes() < 4000, "{} bytes for 30 tokens", trie.memory_bytes());
    assert_eq!(rests.map(|rest| trie.tokens_of(rest).len()), [10, 20, 30]);
}
