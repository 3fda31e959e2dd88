//! From tokens to the rows that serve them: which row, which ranges of its chain, and which row a new one should
//! build on.
//!
//! Called by the store on lookup and before a save. Everything it returns is decided by comparing tokens; it must never
//! return a chain that does not cover every token up to its reach.

use super::rows::{Row, RowId};
use super::table::Index;
use super::trie::Match;
use crate::identity::key::Namespace;
use crate::kinds::{PartKind, Tier};

/// Where a stored state may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Plain attention: a state can be cut at any token.
    AnyToken,
    /// Window, recurrent and hybrid models: only where a row was saved.
    SavedBoundary,
}

/// What a model needs in order to go on from a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Where a state may end.
    pub cut: Cut,
    /// Attention state of every token before the end.
    pub attention: bool,
    /// The state at the end that is not plain attention.
    pub partial: bool,
}

impl Needs {
    /// Plain attention (llama, qwen, deepseek).
    pub const ATTENTION: Self = Self { cut: Cut::AnyToken, attention: true, partial: false };
    /// Sliding window (gemma, gpt-oss) and hybrid (falcon-h1, lfm2) models.
    pub const ATTENTION_AND_PARTIAL: Self = Self { cut: Cut::SavedBoundary, attention: true, partial: true };
    /// Recurrent models (mamba).
    pub const PARTIAL: Self = Self { cut: Cut::SavedBoundary, attention: false, partial: true };
}

/// Wasted tokens that may be read for each token that need not be stored again. Most rows are never read, so reading a
/// little too much costs less than writing the same amount.
const WASTE_FACTOR: u32 = 4;

/// One row of a chain and the tokens that it contributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) row: RowId,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// The best that is stored for some tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Rows to restore, first tokens first. Together they cover [0, reach) without a gap.
    pub(crate) links: Vec<Link>,
    /// How many leading tokens are covered.
    pub(crate) reach: u32,
    /// The row that ends exactly at `reach`, if there is one: its partial state and logits fit.
    pub(crate) boundary: Option<RowId>,
}

impl Index {
    /// The longest stored prefix of `tokens` that the model can use.
    pub(crate) fn find(&self, namespace: &Namespace, tokens: &[u32], needs: Needs) -> Option<Found> {
        self.serving(&self.match_tokens(namespace, tokens)?, needs)
    }

    /// The longest of the matched rows that the model can use.
    pub(crate) fn serving(&self, matched: &Match<RowId>, needs: Needs) -> Option<Found> {
        candidates(matched, needs.cut).find_map(|(row, reach)| self.chain(row, reach, needs))
    }

    /// The chain that serves the first `reach` tokens of a row, or `None` if a part that is needed is missing.
    pub(crate) fn chain(&self, id: RowId, reach: u32, needs: Needs) -> Option<Found> {
        let row = self.row(id);
        if reach == 0 || reach > row.meta.token_count {
            return None;
        }
        let boundary = (row.meta.token_count == reach).then_some(id);
        if needs.cut == Cut::SavedBoundary && boundary.is_none() {
            return None;
        }
        if needs.partial && !row.has_part(PartKind::Partial) {
            return None;
        }
        if !needs.attention {
            let links = vec![Link { row: id, from: row.meta.start.min(reach), to: reach }];
            return Some(Found { links, reach, boundary });
        }
        let mut links = Vec::new();
        let (mut current, mut row, mut end) = (id, row, reach);
        loop {
            let start = row.meta.start;
            if end > start {
                if !row.has_part(PartKind::Attention) {
                    return None;
                }
                links.push(Link { row: current, from: start, to: end });
                end = start;
            }
            let Some(parent) = row.parent else { break };
            (current, row) = (parent, self.row(parent));
            assert!(end <= row.meta.token_count, "invariant: a parent holds the tokens before its child's start");
        }
        assert_eq!(end, 0, "invariant: a chain begins at the first token");
        links.reverse();
        Some(Found { links, reach, boundary })
    }

    /// The row that a new row for `tokens` in `tier` should build on, and the token to start from: the one with which the
    /// new row has to store the fewest tokens of its own, of those that pay.
    pub(crate) fn base(&self, namespace: &Namespace, tokens: &[u32], tier: Tier) -> Option<(RowId, u32)> {
        let matched = self.match_tokens(namespace, tokens)?;
        candidates(&matched, Cut::AnyToken).find_map(|(id, common)| {
            let links = self.chain(id, common, Needs::ATTENTION)?.links;
            let extendable = links.iter().all(|link| will_be_durable(self.row(link.row), tier));
            // A row is read whole, also where it is cut: if two prompts share only the first words of a template, restoring
            // one must not read the other.
            let pays = self.wasted_tokens(&links) <= common.saturating_mul(WASTE_FACTOR);
            // The last link holds the tokens just before `common`; rows below it need not be held.
            let parent = links.last()?.row;
            (extendable && pays).then_some((parent, common))
        })
    }

    /// Tokens that these rows hold and their chain does not use.
    fn wasted_tokens(&self, links: &[Link]) -> u32 {
        let cut = |link: &Link| self.row(link.row).meta.token_count - link.to;
        links.iter().map(cut).fold(0, u32::saturating_add)
    }
}

/// The rows that agree with some tokens, each with the number of tokens it agrees on, the most first.
fn candidates(matched: &Match<RowId>, cut: Cut) -> impl Iterator<Item = (RowId, u32)> {
    let inside = match cut {
        Cut::AnyToken => matched.below.map(|row| (row, matched.common)),
        Cut::SavedBoundary => None,
    };
    let boundaries = matched.boundaries.iter().rev().map(|(depth, row)| (*row, *depth));
    inside.into_iter().chain(boundaries).map(|(row, depth)| (row, narrow(depth)))
}

/// The trie refuses rows of more tokens than 32 bits count.
#[expect(clippy::expect_used, reason = "a depth that wraps would name other tokens")]
fn narrow(depth: usize) -> u32 {
    u32::try_from(depth).expect("invariant: the tokens of a row are counted in 32 bits")
}

/// Whether the row is, or will be once its pending write is done, as durable as `tier`.
pub(crate) fn will_be_durable(row: &Row, tier: Tier) -> bool {
    row.is_as_durable_as(tier) || row.pending.is_some_and(|pending| pending >= tier)
}
