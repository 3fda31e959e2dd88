//! Why a prompt hits or misses: how far the best stored prefix reaches and where it parts.
//!
//! Called by `poncho cache explain` and by the server's explain endpoint. Changes nothing, counts nothing.

use crate::identity::key::{Key, Namespace};
use crate::identity::owner::OwnerId;
use crate::index::{Cut, Index, Needs};
use crate::kinds::Tier;

/// Tokens shown on each side of the parting.
const WINDOW: usize = 8;

/// What is stored for some tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// How many tokens were asked about.
    pub tokens: usize,
    /// How many leading tokens agree with the best stored row, whether or not the model can use them all.
    pub common: usize,
    /// How many leading tokens the model can resume from.
    pub usable: usize,
    /// The row that agrees longest.
    pub row: Option<ExplainedRow>,
    /// Where the tokens part from that row.
    pub parting: Option<Parting>,
    /// What it comes to.
    pub verdict: Verdict,
}

/// The row that agrees longest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedRow {
    /// Its name.
    pub key: Key,
    /// How many tokens it has.
    pub tokens: usize,
    /// The fastest tier that holds it.
    pub tier: Option<Tier>,
}

/// Where two token lists part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parting {
    /// The first token that differs.
    pub position: usize,
    /// The position of the first token in both windows.
    pub window_start: usize,
    /// Stored tokens around it.
    pub stored: Vec<u32>,
    /// Tokens asked about around it.
    pub asked: Vec<u32>,
}

/// What an explanation comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Every token is stored.
    Stored,
    /// A stored row parts from the tokens.
    Parts,
    /// A stored row ends before the tokens do; nothing differs.
    Ends,
    /// Nothing is stored for this model and context.
    NothingStored,
    /// Nothing fits here, but the same tokens are stored for other settings.
    OtherNamespace {
        /// Another model file (or adapters) made them.
        fingerprint: bool,
        /// Another quantisation made them.
        quant: bool,
        /// Other context settings (KV types, flash attention, RoPE) made them.
        context: bool,
    },
}

/// Explains with all rows, or with those of one owner as if there were no others.
pub(crate) fn explain(
    index: &Index,
    namespace: &Namespace,
    tokens: &[u32],
    cut: Cut,
    owner: Option<OwnerId>,
) -> Explanation {
    let needs = match cut {
        Cut::AnyToken => Needs::ATTENTION,
        Cut::SavedBoundary => Needs { cut, attention: false, partial: false },
    };
    let matched = index.match_for(namespace, tokens, owner);
    let common = matched.as_ref().map_or(0, |matched| matched.common);
    let best = matched.as_ref().and_then(|matched| matched.below);
    let found = matched.as_ref().and_then(|matched| index.serving(matched, needs));
    let usable = found.map_or(0, |found| found.reach as usize);
    let row = best.map(|id| index.row(id)).map(|row| ExplainedRow {
        key: row.key,
        tokens: row.meta.token_count as usize,
        tier: row.best_tier(),
    });
    let stored = best.map_or_else(Vec::new, |id| index.tokens_of(id));
    let parting = (common < tokens.len() && common < stored.len()).then(|| {
        let window_start = common.saturating_sub(WINDOW);
        let window = |tokens: &[u32]| tokens.iter().skip(window_start).take(2 * WINDOW).copied().collect();
        Parting { position: common, window_start, stored: window(&stored), asked: window(tokens) }
    });
    let verdict = match (&row, &parting) {
        (Some(_), Some(_)) => Verdict::Parts,
        (Some(_), None) if common == tokens.len() => Verdict::Stored,
        (Some(_), None) => Verdict::Ends,
        (None, _) => elsewhere(index, namespace, tokens, owner),
    };
    Explanation { tokens: tokens.len(), common, usable, row, parting, verdict }
}

/// The namespace with the longest agreement, if one agrees at all.
fn elsewhere(index: &Index, namespace: &Namespace, tokens: &[u32], owner: Option<OwnerId>) -> Verdict {
    let agreement = |other: &Namespace| index.match_for(other, tokens, owner).map_or(0, |matched| matched.common);
    let best = index.namespaces().map(|other| (agreement(&other), other)).max_by_key(|(common, _)| *common);
    match best {
        Some((common, other)) if common > 0 => Verdict::OtherNamespace {
            fingerprint: other.fingerprint != namespace.fingerprint,
            quant: other.quant != namespace.quant,
            context: other.context_hash != namespace.context_hash,
        },
        _ => Verdict::NothingStored,
    }
}
