//! Which stretches of a prompt a stored row has too: the common beginning, then runs that reappear further on or earlier.
//!
//! Called by `explain.rs` to choose the row that a prompt is compared with, and by the engine to name the cause. Pure:
//! two token lists in, positions out, in time linear in their length. A hash only suggests a run; tokens decide.

use std::collections::HashMap;
use std::ops::Range;

use super::sketch::{WINDOW, hashes};

/// Shorter runs are the marks between messages, which all conversations have.
const NOTABLE: usize = 16;
/// How many places of one window are tried: the next ones after the last run, and the first ones.
const TRIED: usize = 4;

/// Tokens that both lists have, in the order of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Where they begin in the stored row.
    pub stored: usize,
    /// Where they begin in the prompt.
    pub asked: usize,
    /// How many there are.
    pub length: usize,
}

/// Stretches that differ, between two that agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Tokens of the stored row; empty if something was inserted.
    pub stored: Range<usize>,
    /// Tokens of the prompt; empty if something was left out.
    pub asked: Range<usize>,
}

/// How a prompt and a stored row agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alignment {
    /// Leading tokens that agree.
    pub prefix: usize,
    /// What reappears after them, in the order of the prompt. A run may come from anywhere in the row.
    pub runs: Vec<Run>,
    /// Runs of this length and above are not a coincidence.
    notable: usize,
}

impl Alignment {
    /// Compares a stored row with a prompt.
    #[must_use]
    pub fn of(stored: &[u32], asked: &[u32]) -> Self {
        let prefix = common(stored, asked);
        let rest = asked.len() - prefix;
        let notable = NOTABLE.min(rest.div_ceil(2)).max(WINDOW);
        Self { prefix, runs: runs(stored, asked, prefix), notable }
    }

    /// How many tokens of the prompt the row has, the marks between messages aside.
    #[must_use]
    pub fn shared(&self) -> usize {
        self.prefix + self.notable_runs().map(|run| run.length).sum::<usize>()
    }

    /// How many of the tokens from a position on the row has.
    #[must_use]
    pub fn shared_from(&self, position: usize) -> usize {
        let ends = self.notable_runs().map(|run| (run.asked, run.asked + run.length));
        let all = std::iter::once((0, self.prefix)).chain(ends);
        all.map(|(start, end)| end.saturating_sub(start.max(position))).sum()
    }

    /// The runs that are not a coincidence.
    pub fn notable_runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.length >= self.notable)
    }

    /// What differs right after the common beginning, up to the first notable run. `None` if nothing reappears.
    #[must_use]
    pub fn first_gap(&self) -> Option<Gap> {
        let run = self.notable_runs().next()?;
        let stored = self.prefix..run.stored.max(self.prefix);
        Some(Gap { stored, asked: self.prefix..run.asked })
    }

    /// All stretches that differ between runs in the same order. Moved runs are left out.
    #[must_use]
    pub fn gaps(&self) -> Vec<Gap> {
        let (mut stored, mut asked) = (self.prefix, self.prefix);
        let mut gaps = Vec::new();
        for run in self.runs.iter().filter(|run| run.length >= WINDOW) {
            if run.stored < stored {
                continue;
            }
            gaps.push(Gap { stored: stored..run.stored, asked: asked..run.asked });
            (stored, asked) = (run.stored + run.length, run.asked + run.length);
        }
        gaps
    }
}

/// How many leading tokens agree.
fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// How many tokens before two positions agree, at most `limit`.
fn common_before(stored: &[u32], asked: &[u32], limit: usize) -> usize {
    stored.iter().rev().zip(asked.iter().rev()).take(limit).take_while(|(one, other)| one == other).count()
}

/// Greedy: at each token of the prompt the longest stretch of the row, then what follows it.
fn runs(stored: &[u32], asked: &[u32], prefix: usize) -> Vec<Run> {
    let (Some(stored_rest), Some(asked_rest)) = (stored.get(prefix..), asked.get(prefix..)) else { return Vec::new() };
    let mut places: HashMap<u64, Vec<usize>> = HashMap::new();
    for (at, hash) in hashes(stored_rest).enumerate() {
        places.entry(hash).or_default().push(prefix + at);
    }
    if places.is_empty() {
        return Vec::new();
    }
    let windows: Vec<u64> = hashes(asked_rest).collect();
    let mut found: Vec<Run> = Vec::new();
    let (mut at, mut expected) = (prefix, prefix);
    while let Some(hash) = windows.get(at - prefix) {
        let tail = asked.get(at..).unwrap_or_default();
        let candidates = places.get(hash).map(Vec::as_slice).unwrap_or_default();
        let next = candidates.partition_point(|place| *place < expected);
        let tried = candidates.iter().skip(next).take(TRIED).chain(candidates.iter().take(TRIED));
        let length_at = |place: &usize| common(stored.get(*place..).unwrap_or_default(), tail);
        // The first of the longest: the next one in order, if it is as long as any.
        let best =
            tried.map(|place| (length_at(place), *place)).reduce(|one, two| if two.0 > one.0 { two } else { one });
        let Some((length, place)) = best.filter(|(length, _)| *length >= WINDOW) else {
            at += 1;
            continue;
        };
        let free = at - found.last().map_or(prefix, |run| run.asked + run.length);
        let heads = (stored.get(prefix..place).unwrap_or_default(), asked.get(..at).unwrap_or_default());
        let back = common_before(heads.0, heads.1, free);
        found.push(Run { stored: place - back, asked: at - back, length: length + back });
        at += length;
        expected = place + length;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens without a repetition.
    fn text(from: u32, length: u32) -> Vec<u32> {
        (0..length).map(|at| from * 10_000 + at).collect()
    }

    fn check(stored: &[Vec<u32>], asked: &[Vec<u32>]) -> Alignment {
        let (stored, asked) = (stored.concat(), asked.concat());
        let found = Alignment::of(&stored, &asked);
        assert_eq!(stored[..found.prefix], asked[..found.prefix]);
        let mut end = found.prefix;
        for run in &found.runs {
            assert!(run.asked >= end, "runs do not overlap: {found:?}");
            assert_eq!(stored[run.stored..run.stored + run.length], asked[run.asked..run.asked + run.length]);
            end = run.asked + run.length;
        }
        assert_eq!(found.shared_from(0), found.shared());
        assert!(found.shared() <= asked.len());
        found
    }

    #[test]
    fn every_planted_change_is_found_with_its_place() {
        let [a, b, c, d] = [1, 2, 3, 4].map(|name| text(name, 100));
        let new = text(9, 20);
        let gap = |alignment: &Alignment| alignment.first_gap().map(|gap| (gap.stored, gap.asked));
        type Case<'a> = (&'a str, Vec<Vec<u32>>, Vec<Vec<u32>>, usize, usize, Option<(Range<usize>, Range<usize>)>);
        let cases: Vec<Case<'_>> = vec![
            ("the same", vec![a.clone(), b.clone()], vec![a.clone(), b.clone()], 200, 200, None),
            ("grown", vec![a.clone()], vec![a.clone(), b.clone()], 100, 100, None),
            (
                "put in front",
                vec![a.clone(), b.clone()],
                vec![new.clone(), a.clone(), b.clone()],
                0,
                200,
                Some((0..0, 0..20)),
            ),
            (
                "left out",
                vec![a.clone(), b.clone(), c.clone()],
                vec![a.clone(), c.clone()],
                100,
                200,
                Some((100..200, 100..100)),
            ),
            ("left out in front", vec![a.clone(), b.clone()], vec![b.clone()], 0, 100, Some((0..100, 0..0))),
            (
                "replaced",
                vec![a.clone(), b.clone(), c.clone()],
                vec![a.clone(), new.clone(), c.clone()],
                100,
                200,
                Some((100..200, 100..120)),
            ),
            (
                "two in another order",
                vec![a.clone(), b.clone(), c.clone(), d.clone()],
                vec![a.clone(), c.clone(), b.clone(), d.clone()],
                100,
                400,
                Some((100..200, 100..100)),
            ),
            ("another text", vec![a.clone()], vec![b.clone()], 0, 0, None),
            ("nothing", vec![], vec![a.clone()], 0, 0, None),
        ];
        for (name, stored, asked, prefix, shared, expected) in cases {
            let found = check(&stored, &asked);
            assert_eq!((found.prefix, found.shared(), gap(&found)), (prefix, shared, expected), "{name}: {found:?}");
        }
    }

    #[test]
    fn one_changed_token_costs_one_token() {
        let stored = text(1, 500);
        let mut asked = stored.clone();
        asked[3] = 77;
        let found = check(std::slice::from_ref(&stored), &[asked]);
        assert_eq!((found.prefix, found.shared(), found.shared_from(10)), (3, 499, 490));
        assert_eq!(found.first_gap(), Some(Gap { stored: 3..4, asked: 3..4 }));
    }

    #[test]
    fn marks_between_messages_are_not_taken_for_the_conversation() {
        let mark = text(7, 9);
        let stored = [text(1, 50), mark.clone(), text(2, 50)].concat();
        let asked = [text(1, 50), text(3, 50), mark, text(4, 50)].concat();
        let found = check(&[stored], &[asked]);
        assert_eq!((found.runs.len(), found.shared(), found.first_gap()), (1, 50, None));
    }

    #[test]
    fn repetitive_lists_take_linear_time() {
        let (stored, mut asked) = (vec![5; 60_000], vec![5; 60_000]);
        asked[0] = 6;
        assert_eq!(check(&[stored], &[asked]).shared(), 59_999);
    }
}
