//! From tokens to the rows that serve them: which row, which ranges of its chain, and where a new row
//! should hang itself on.
//!
//! Called by the store on lookup and before a save. Everything it returns is decided by comparing tokens;
//! it must never return a chain that does not cover every token up to its reach.

use super::table::Index;
use crate::identity::key::Namespace;
use crate::index::rows::{Row, RowId};
use crate::index::trie::Match;
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

/// Tokens that may be read in vain for each one that need not be stored again. Most rows are never read, so a little too much to
/// read costs less than the same to write.
const IN_VAIN: u32 = 4;

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
    /// The row that the chain was built from (the deepest one).
    pub(crate) deepest: RowId,
}

impl Index {
    /// The longest stored prefix of `tokens` that the model can use.
    pub(crate) fn find(&self, namespace: &Namespace, tokens: &[u32], needs: Needs) -> Option<Found> {
        self.serving(&self.match_tokens(namespace, tokens)?, needs)
    }

    /// The longest of the matched rows that the model can use.
    pub(crate) fn serving(&self, matched: &Match<RowId>, needs: Needs) -> Option<Found> {
        let boundaries = matched.boundaries.iter().rev().map(|(depth, row)| (*row, *depth));
        let inside = match needs.cut {
            Cut::AnyToken => matched.below.map(|row| (row, matched.common)),
            Cut::SavedBoundary => None,
        };
        inside.into_iter().chain(boundaries).find_map(|(row, reach)| self.chain(row, u32::try_from(reach).ok()?, needs))
    }

    /// The chain that serves the first `reach` tokens of a row, or `None` if something in it is lacking.
    pub(crate) fn chain(&self, id: RowId, reach: u32, needs: Needs) -> Option<Found> {
        let row = self.row(id)?;
        if reach == 0 || reach > row.token_count {
            return None;
        }
        let boundary = (row.token_count == reach).then_some(id);
        let whole = row.has_part(PartKind::Whole);
        if needs.cut == Cut::SavedBoundary && boundary.is_none() {
            return None;
        }
        if needs.partial && !whole && !row.has_part(PartKind::Partial) {
            return None;
        }
        if !needs.attention {
            let links = vec![Link { row: id, from: row.start.min(reach), to: reach }];
            return Some(Found { links, reach, boundary, deepest: id });
        }
        let mut links = Vec::new();
        let mut end = reach;
        let mut next = Some(id);
        while end > 0 {
            let current = next?;
            let row = self.row(current)?;
            let to = end.min(row.token_count);
            if to > row.start {
                if !row.has_part(PartKind::Attention) && !row.has_part(PartKind::Whole) {
                    return None;
                }
                links.push(Link { row: current, from: row.start, to });
            }
            end = end.min(row.start);
            next = row.parent;
        }
        links.reverse();
        Some(Found { links, reach, boundary, deepest: id })
    }

    /// The row that a new row for `tokens` in `tier` should build on, and the token to start from: the one with which the
    /// new row has to store the fewest tokens of its own, of those that pay.
    pub(crate) fn base(&self, namespace: &Namespace, tokens: &[u32], tier: Tier) -> Option<(RowId, u32)> {
        let matched = self.match_tokens(namespace, tokens)?;
        let inside = matched.below.map(|row| (row, matched.common));
        let boundaries = matched.boundaries.iter().rev().map(|(depth, row)| (*row, *depth));
        inside.into_iter().chain(boundaries).find_map(|(id, common)| {
            let common = u32::try_from(common).ok()?;
            let links = self.chain(id, common, Needs::ATTENTION)?.links;
            let extendable = links.iter().all(|link| {
                self.row(link.row).is_some_and(|row| !row.has_part(PartKind::Whole) && will_be_durable(row, tier))
            });
            // A row is read whole, also where it is cut. Two prompts with nothing but a template's first words in common
            // would otherwise be read both for either.
            let pays = self.read_in_vain(&links) <= common.saturating_mul(IN_VAIN);
            // The last link holds the tokens just before `common`; rows below it need not be held.
            let parent = links.last()?.row;
            (extendable && pays).then_some((parent, common))
        })
    }

    /// Tokens that these rows hold and their chain does not use.
    fn read_in_vain(&self, links: &[Link]) -> u32 {
        let cut = |link: &Link| self.row(link.row).map_or(0, |row| row.token_count.saturating_sub(link.to));
        links.iter().map(cut).fold(0, u32::saturating_add)
    }
}

/// Whether the row is, or will be once its pending write is done, as durable as `tier`.
pub(crate) fn will_be_durable(row: &Row, tier: Tier) -> bool {
    row.is_as_durable_as(tier) || row.pending.is_some_and(|pending| pending >= tier)
}
