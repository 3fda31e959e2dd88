//! Requests in flight that begin alike: one computes the shared prefix, the others wait for it and copy it.
//!
//! Pure decisions about two requests; `sequence/followers.rs` looks for a leader at admission and acts on the verdicts after
//! each tick. A request only ever follows one that was admitted before it, so waits cannot form a cycle. A follower must be
//! released in the same tick in which its leader ends or passes the shared prefix.

use crate::calls::request::RequestId;
use crate::schedule::grid::Grid;
use crate::schedule::pace::SHORT;

/// Computing fewer tokens than this takes hardly longer than waiting for them.
const WORTH_WAITING_FOR: usize = 64;

/// The leader of a request and the prefix that it waits for.
///
/// The leader is named by its request, because request numbers are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitsFor {
    pub(crate) leader: RequestId,
    /// Leading tokens to copy.
    pub(crate) upto: usize,
}

/// What to do with a request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Go on waiting.
    Wait,
    /// Copy this many tokens from the leader.
    Copy { upto: usize },
    /// The leader is gone or cannot reach the end of the prefix: compute alone.
    Release,
}

/// How far a request is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress<'a> {
    /// The prompt and the tokens drawn so far.
    pub(crate) tokens: &'a [u32],
    pub(crate) prompt_len: usize,
    /// How many of `tokens` its sequence holds.
    pub(crate) n_past: usize,
}

/// How a leader stands when its followers look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaderState {
    Running,
    /// It finished or was cancelled; its sequence holds what it computed.
    Finished,
    /// It failed; its sequence is about to be cleared.
    Failed,
}

/// How many leading tokens of `task` can be copied from `leader`, now or once it has computed its prompt.
pub(crate) fn shared_tokens(
    task: Progress<'_>,
    leader: Progress<'_>,
    grid: Option<Grid>,
    can_cut: bool,
) -> Option<usize> {
    let computed = leader.n_past.max(leader.prompt_len).min(leader.tokens.len());
    let mut common = common_prefix(task.tokens.get(..task.prompt_len)?, leader.tokens.get(..computed)?);
    if let Some(grid) = grid {
        common = grid.usable(common.min(leader.prompt_len), task.prompt_len);
    }
    // A state that cannot be cut is copied at the very moment at which it holds the shared tokens and nothing else.
    let can_reach = can_cut || leader.n_past == common || (leader.n_past < common && common <= leader.prompt_len);
    (common > 0 && can_reach).then_some(common)
}

/// Whether waiting for `upto` tokens saves more than it costs. A short request never waits: it goes before the leader.
pub(crate) fn is_worth_waiting(task: Progress<'_>, leader: Progress<'_>, upto: usize) -> bool {
    let gain = upto.saturating_sub(task.n_past);
    // A leader that is far behind is not worth it either.
    let wait = upto.saturating_sub(leader.n_past);
    let is_short = task.prompt_len.saturating_sub(task.n_past) <= SHORT;
    !is_short && gain >= WORTH_WAITING_FOR && wait <= gain.saturating_mul(2)
}

/// What to do with a request that waits for `upto` tokens of a leader that holds `n_past`.
pub(crate) fn verdict(upto: usize, leader: LeaderState, n_past: usize, can_cut: bool) -> Verdict {
    let is_there = n_past == upto || (can_cut && n_past > upto);
    match leader {
        LeaderState::Failed => Verdict::Release,
        _ if is_there => Verdict::Copy { upto },
        // Its caller left; what it computed so far is valid.
        LeaderState::Finished if can_cut => Verdict::Copy { upto: n_past.min(upto) },
        LeaderState::Finished => Verdict::Release,
        LeaderState::Running if n_past > upto => Verdict::Release,
        LeaderState::Running => Verdict::Wait,
    }
}

/// How many leading tokens agree.
pub(crate) fn common_prefix(one: &[u32], two: &[u32]) -> usize {
    one.iter().zip(two).take_while(|(one, two)| one == two).count()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    fn progress(tokens: &[u32], prompt_len: usize, n_past: usize) -> Progress<'_> {
        Progress { tokens, prompt_len, n_past }
    }

    #[test]
    fn what_a_leader_will_have_computed_counts_and_what_it_only_drew_does_not() {
        let tokens: Vec<u32> = (0..40).collect();
        let task = progress(&tokens, 40, 0);
        assert_eq!(shared_tokens(task, progress(&tokens[..30], 30, 5), None, true), Some(30), "it reads its prompt");
        assert_eq!(shared_tokens(task, progress(&tokens[..31], 30, 30), None, true), Some(30), "31 is only drawn");
        let grid = Some(Grid(NonZeroUsize::new(8).unwrap()));
        assert_eq!(shared_tokens(task, progress(&tokens[..30], 30, 5), grid, true), Some(24));
        assert_eq!(shared_tokens(task, progress(&[99], 1, 0), None, true), None);
    }

    #[test]
    fn a_state_that_cannot_be_cut_is_copied_only_where_it_ends() {
        let tokens: Vec<u32> = (0..40).collect();
        let task = progress(&tokens[..20], 20, 0);
        assert_eq!(shared_tokens(task, progress(&tokens, 40, 10), None, false), Some(20), "it can pause there");
        assert_eq!(shared_tokens(task, progress(&tokens, 40, 20), None, false), Some(20), "it is there");
        assert_eq!(shared_tokens(task, progress(&tokens, 40, 21), None, false), None, "it is past");
    }

    #[test]
    fn few_tokens_and_a_leader_far_behind_are_not_worth_waiting_for() {
        let tokens: Vec<u32> = (0..400).collect();
        let at = |n_past| progress(&tokens, 400, n_past);
        assert!(is_worth_waiting(at(0), at(0), 64));
        assert!(!is_worth_waiting(at(0), at(0), 63));
        assert!(!is_worth_waiting(at(300), at(0), 364), "it would wait for 364 tokens to save 64");
        assert!(!is_worth_waiting(progress(&tokens, 64, 0), at(0), 64), "a short request goes first");
    }

    #[test]
    fn nobody_waits_for_a_leader_that_does_not_get_there() {
        use LeaderState::{Failed, Finished, Running};
        assert_eq!(verdict(10, Running, 9, true), Verdict::Wait);
        assert_eq!(verdict(10, Running, 10, false), Verdict::Copy { upto: 10 });
        assert_eq!(verdict(10, Running, 11, false), Verdict::Release);
        assert_eq!(verdict(10, Running, 11, true), Verdict::Copy { upto: 10 });
        assert_eq!(verdict(10, Finished, 6, true), Verdict::Copy { upto: 6 });
        assert_eq!(verdict(10, Finished, 6, false), Verdict::Release);
        assert_eq!(verdict(10, Failed, 10, true), Verdict::Release);
    }
}
