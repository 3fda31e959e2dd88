//! Rows of resting sequences that let the requests on both sides of them share a pass over the weights.
//!
//! Called by the ticker before each decode call; pure. Where each sequence has cells of its own, llama.cpp computes only
//! sequences that follow each other in one pass: two requests with a resting sequence between them take twice as long as two
//! neighbours. A row of the resting sequence closes the gap, and is taken back after the call. It must never name a sequence
//! that a request runs on.

use crate::backend::SeqId;

/// A row more takes this part of a pass over the weights.
const ROW: u64 = 12;

/// What a pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassBytes {
    /// Bytes of the weights, once for each pass.
    pub weights: u64,
    /// Bytes of a token in the cells. Every row passes over as many as the longest sequence of the pass holds.
    pub token: u64,
}

/// A sequence in a pass, and the tokens that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bridge {
    /// The sequence.
    pub seq: SeqId,
    /// Tokens before the row.
    pub held: usize,
}

/// Sequences that follow each other.
#[derive(Clone, Copy)]
struct Pass {
    last: SeqId,
    rows: u64,
    longest: u64,
    bytes: PassBytes,
}

impl Pass {
    fn of(one: Bridge, bytes: PassBytes) -> Self {
        Self { last: one.seq, rows: 1, longest: one.held as u64, bytes }
    }

    fn with(self, next: Bridge) -> Self {
        Self { last: next.seq, rows: self.rows + 1, longest: self.longest.max(next.held as u64), ..self }
    }

    /// The pass with the next request and with all sequences between them, which are added to `bridges`; `None` if it is not
    /// possible or does not pay.
    fn join(self, next: Bridge, resting: impl Fn(SeqId) -> Option<usize>, bridges: &mut Vec<Bridge>) -> Option<Self> {
        let mut joined = self;
        for seq in self.last.saturating_add(1)..next.seq {
            let bridge = Bridge { seq, held: resting(seq)? };
            joined = joined.with(bridge);
            bridges.push(bridge);
        }
        // Neighbours share a pass in any case.
        let is_neighbour = joined.rows == self.rows;
        let joined = joined.with(next);
        let apart = self.cost().saturating_add(Self::of(next, self.bytes).cost());
        (is_neighbour || joined.cost() < apart).then_some(joined)
    }

    /// What it takes, as bytes that are read.
    fn cost(self) -> u64 {
        let PassBytes { weights, token } = self.bytes;
        let cells = self.rows.saturating_mul(self.longest).saturating_mul(token);
        weights.saturating_add(self.rows.saturating_mul(weights / ROW)).saturating_add(cells)
    }
}

/// Finds the resting sequences that get a row. `running` are the sequences with a decode row, ascending; `resting` is what a
/// sequence at rest holds, and `None` for one that a request uses or that has no room.
pub fn find(
    running: impl Iterator<Item = Bridge>,
    resting: impl Fn(SeqId) -> Option<usize>,
    bytes: PassBytes,
    bridges: &mut Vec<Bridge>,
) {
    bridges.clear();
    let mut pass: Option<Pass> = None;
    for next in running {
        let before = bridges.len();
        let joined = pass.and_then(|pass| pass.join(next, &resting, bridges));
        if joined.is_none() {
            bridges.truncate(before);
        }
        pass = Some(joined.unwrap_or_else(|| Pass::of(next, bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight billion parameters with four bits, and 128 KiB of cells a token.
    const BYTES: PassBytes = PassBytes { weights: 4_700_000_000, token: 131_072 };

    fn found(running: &[(SeqId, usize)], resting: &[(SeqId, usize)], bytes: PassBytes) -> Vec<SeqId> {
        let mut bridges = vec![Bridge { seq: 99, held: 0 }];
        let running = running.iter().map(|(seq, held)| Bridge { seq: *seq, held: *held });
        let held = |seq| resting.iter().find(|(other, _)| *other == seq).map(|(_, held)| *held);
        find(running, held, bytes, &mut bridges);
        bridges.into_iter().map(|bridge| bridge.seq).collect()
    }

    #[test]
    fn a_gap_of_resting_sequences_is_closed() {
        assert_eq!(found(&[(0, 500), (2, 900)], &[(1, 700)], BYTES), [1]);
        assert_eq!(found(&[(0, 500), (3, 900)], &[(1, 700), (2, 0)], BYTES), [1, 2], "an empty one has its first row");
        assert_eq!(found(&[(1, 500), (3, 9), (5, 9)], &[(0, 1), (2, 1), (4, 1), (6, 1)], BYTES), [2, 4]);
        assert_eq!(found(&[(0, 500), (1, 900)], &[(2, 700), (3, 0)], BYTES), [0; 0], "neighbours need none");
        assert_eq!(found(&[(2, 500)], &[(0, 0), (1, 0), (3, 0)], BYTES), [0; 0], "one request needs none");
        assert_eq!(found(&[], &[(0, 0)], BYTES), [0; 0]);
    }

    #[test]
    fn a_sequence_that_is_in_use_keeps_the_gap_open() {
        assert_eq!(found(&[(0, 500), (3, 900)], &[(1, 700)], BYTES), [0; 0]);
        assert_eq!(
            found(&[(0, 500), (3, 900), (5, 1)], &[(1, 700), (4, 3)], BYTES),
            [4],
            "the next gap is another one"
        );
    }

    #[test]
    fn a_row_that_costs_more_than_a_pass_is_not_added() {
        let long = [(1, 16_384)];
        assert_eq!(found(&[(0, 500), (2, 900)], &long, BYTES), [0; 0], "all three would pass over the longest");
        assert_eq!(found(&[(0, 16_000), (2, 16_000)], &long, BYTES), [1], "two of them do so anyway");
        let many: Vec<(SeqId, usize)> = (1..15).map(|seq| (seq, 0)).collect();
        assert_eq!(found(&[(0, 500), (15, 900)], &many, BYTES), [0; 0], "fourteen rows for one pass");
        let small = PassBytes { weights: 1000, token: 131_072 };
        assert_eq!(found(&[(0, 500), (2, 900)], &[(1, 700)], small), [0; 0], "passes that cost nothing");
    }

    #[test]
    fn numbers_of_any_size_are_compared() {
        let all = PassBytes { weights: u64::MAX, token: u64::MAX };
        assert_eq!(found(&[(0, usize::MAX), (2, 1)], &[(1, usize::MAX)], all), [0; 0]);
        assert_eq!(found(&[(0, 1), (SeqId::MAX, 1)], &[], BYTES), [0; 0]);
    }
}
