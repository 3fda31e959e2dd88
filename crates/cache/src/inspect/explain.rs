//! Why a prompt hits or misses: how far the best stored prefix reaches, and which stored prompt is most like it.
//!
//! Called by `poncho cache explain` and by the server's explain endpoint. The most similar row is found among the newest
//! prompts by their sketches, then by their tokens, so a change at the very beginning does not hide it. Changes nothing,
//! counts nothing, and holds the index for one short step at a time.

use std::cmp::Reverse;
use std::sync::Arc;

use super::alignment::Alignment;
use super::sketch::{Sketch, Sketches};
use crate::identity::key::{Key, Namespace};
use crate::identity::owner::OwnerId;
use crate::index::rows::RowId;
use crate::index::{Cut, Index, Needs};
use crate::kinds::Tier;

/// Tokens shown on each side of the parting.
const WINDOW: usize = 8;
/// How many stored prompts a prompt is compared with, by their sketches.
const MOST_PROMPTS: usize = 1024;
/// How many of them are compared token by token.
const FINALISTS: usize = 4;
/// Another row has to share this many more tokens than the one that agrees longest.
const CLEARLY_MORE: usize = 16;
/// Prompts that agree on fewer leading tokens may have only the first words of a template in common.
const FIRST_WORDS: usize = 16;
/// Prompts that share fewer tokens in all are not related, however short they are.
const RELATED: usize = 32;

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
    /// The stored row that is most like the tokens, unless none is like them or all tokens are stored.
    pub similar: Option<Similar>,
    /// How many leading tokens are stored for other settings, if that is the verdict.
    pub elsewhere: Option<usize>,
    /// What it comes to.
    pub verdict: Verdict,
}

/// The stored row that is most like some tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Similar {
    /// The row.
    pub row: ExplainedRow,
    /// What both have.
    pub alignment: Alignment,
}

/// A row of an explanation.
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

/// The rows that explain, and their model and context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) namespace: &'a Namespace,
    /// The rows of one owner, as if there were no others; `None` for all rows.
    pub(crate) owner: Option<OwnerId>,
    /// When the tokens were looked up, if that is explained: rows that were saved since do not count.
    pub(crate) then: Option<Then>,
}

/// A lookup of some tokens before they were computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Then {
    /// How many of them were stored.
    pub found: usize,
    /// When, unix seconds.
    pub at: u64,
}

impl Scope<'_> {
    /// Whether a row was saved after the lookup. Times have seconds only, so a longer row that does not part from the tokens
    /// counts as later too: it came of their computation.
    fn is_later(&self, created: u64, stored: &[u32], tokens: &[u32]) -> bool {
        let agrees = || stored.iter().zip(tokens).all(|(one, two)| one == two);
        self.then.is_some_and(|then| created > then.at || (stored.len() > then.found && agrees()))
    }
}

/// Explains some tokens.
pub(crate) fn explain<L: LendIndex>(
    lender: &L,
    sketches: &Sketches,
    scope: Scope<'_>,
    tokens: &[u32],
    cut: Cut,
) -> Explanation {
    let mut found = lender.lend(|index| by_prefix(index, scope, tokens, cut));
    if found.verdict == Verdict::Stored {
        return found;
    }
    found.similar = similar(lender, sketches, scope, tokens, found.row.as_ref());
    if let (Some(_), None, Some(similar)) = (scope.then, &found.row, &found.similar) {
        found.common = found.common.max(similar.alignment.prefix);
    }
    let shared = found.similar.as_ref().map_or(found.common, |similar| similar.alignment.shared());
    let other = lender.lend(|index| elsewhere(index, scope, tokens));
    // A few words that happen to be stored here do not hide a whole prompt that is stored for other settings. A few words
    // there, such as the first ones of a template, explain nothing; nor does what was found all the same.
    let had = scope.then.map_or(0, |then| then.found);
    let explains = |common: usize| {
        common >= FIRST_WORDS.min(tokens.len())
            && common.saturating_mul(5) >= tokens.len()
            && common > had.saturating_mul(2)
            && (found.row.is_none() || common > shared.saturating_mul(2))
    };
    if let Some((common, verdict)) = other.filter(|(common, _)| explains(*common)) {
        found = Explanation { verdict, elsewhere: Some(common), parting: None, similar: None, ..found };
    }
    found
}

/// Gives access to an index.
pub(crate) trait LendIndex {
    /// Runs a step with it.
    fn lend<T>(&self, step: impl FnOnce(&Index) -> T) -> T;
}

fn by_prefix(index: &Index, scope: Scope<'_>, tokens: &[u32], cut: Cut) -> Explanation {
    let needs = match cut {
        Cut::AnyToken => Needs::ATTENTION,
        Cut::SavedBoundary => Needs { cut, attention: false, partial: false },
    };
    let matched = index.match_for(scope.namespace, tokens, scope.owner);
    let common = matched.as_ref().map_or(0, |matched| matched.common);
    let best = matched.as_ref().and_then(|matched| matched.below);
    let found = matched.as_ref().and_then(|matched| index.serving(matched, needs));
    let usable = found.map_or(0, |found| found.reach as usize);
    let row = best.map(|id| explained_row(index, id));
    let stored = best.map_or_else(Vec::new, |id| index.tokens_of(id));
    let created = best.map_or(0, |id| index.row(id).meta.created);
    if let Some(then) = scope.then.filter(|_| best.is_some() && scope.is_later(created, &stored, tokens)) {
        let rows = matched.iter().flat_map(|matched| matched.boundaries.iter());
        let is_earlier = |id: &RowId| {
            let meta = &index.row(*id).meta;
            meta.created <= then.at && meta.token_count as usize <= then.found
        };
        let row = rows.map(|(_, id)| *id).rfind(is_earlier).map(|id| explained_row(index, id));
        let verdict = if row.is_some() { Verdict::Ends } else { Verdict::NothingStored };
        let (common, usable) = (common.min(then.found), usable.min(then.found));
        let tokens = tokens.len();
        return Explanation { tokens, common, usable, row, parting: None, similar: None, elsewhere: None, verdict };
    }
    let parting = (common < tokens.len() && common < stored.len()).then(|| parting(&stored, tokens, common));
    let verdict = match (&row, &parting) {
        (Some(_), Some(_)) => Verdict::Parts,
        (Some(_), None) if common == tokens.len() => Verdict::Stored,
        (Some(_), None) => Verdict::Ends,
        (None, _) => Verdict::NothingStored,
    };
    Explanation { tokens: tokens.len(), common, usable, row, parting, similar: None, elsewhere: None, verdict }
}

fn explained_row(index: &Index, id: RowId) -> ExplainedRow {
    let row = index.row(id);
    ExplainedRow { key: row.key, tokens: row.meta.token_count as usize, tier: row.best_tier() }
}

fn parting(stored: &[u32], asked: &[u32], position: usize) -> Parting {
    let window_start = position.saturating_sub(WINDOW);
    let window = |tokens: &[u32]| tokens.iter().skip(window_start).take(2 * WINDOW).copied().collect();
    Parting { position, window_start, stored: window(stored), asked: window(asked) }
}

/// The stored row that shares the most tokens, wherever they stand. `agreeing` is the row that agrees longest; another one
/// must share clearly more.
fn similar<L: LendIndex>(
    lender: &L,
    sketches: &Sketches,
    scope: Scope<'_>,
    tokens: &[u32],
    agreeing: Option<&ExplainedRow>,
) -> Option<Similar> {
    let tokens_of = |key: &Key| lender.lend(|index| index.by_key(key).map(|id| index.tokens_of(id)));
    let prompts = lender.lend(|index| index.newest_prompts(scope.namespace, scope.owner, MOST_PROMPTS));
    let asked = Sketch::of(tokens);
    let estimate = |(key, sketch): (Key, Arc<Sketch>)| (asked.shared_with(&sketch), key);
    let mut ranked: Vec<(usize, Key)> = sketches.of(&prompts, tokens_of).into_iter().map(estimate).collect();
    ranked.retain(|(shared, _)| *shared > 0);
    // Stable, so that the newest of equals comes first.
    ranked.sort_by_key(|(shared, _)| Reverse(*shared));
    let created = |key: &Key| lender.lend(|index| index.by_key(key).map(|id| index.row(id).meta.created));
    let is_later = |key: &Key| {
        let row = created(key).zip(tokens_of(key));
        row.is_some_and(|(created, stored)| scope.is_later(created, &stored, tokens))
    };
    let earlier = ranked.into_iter().map(|(_, key)| key).filter(|key| scope.then.is_none() || !is_later(key));
    let finalists = earlier.take(FINALISTS);
    let mut best: Option<(Key, Alignment)> = None;
    for (at, key) in agreeing.map(|row| row.key).into_iter().chain(finalists).enumerate() {
        let Some(stored) = tokens_of(&key) else { continue };
        let alignment = Alignment::of(&stored, tokens);
        let is_agreeing = at == 0 && agreeing.is_some();
        if !is_agreeing && !is_related(&alignment, stored.len(), tokens.len()) {
            continue;
        }
        // The first one found is the one that agrees longest; among the others every token counts.
        let margin = match &best {
            Some((best, _)) if agreeing.is_some_and(|row| row.key == *best) => CLEARLY_MORE,
            _ => 0,
        };
        if best.as_ref().is_none_or(|(_, best)| alignment.shared() > best.shared() + margin) {
            best = Some((key, alignment));
        }
    }
    let (key, alignment) = best?;
    let row = lender.lend(|index| index.by_key(&key).map(|id| explained_row(index, id)))?;
    let is_wholly_there = alignment.prefix == row.tokens;
    (is_wholly_there || is_related(&alignment, row.tokens, tokens.len())).then_some(Similar { row, alignment })
}

/// Whether two lists share more than what all prompts have in common.
fn is_related(alignment: &Alignment, stored: usize, asked: usize) -> bool {
    let shared = alignment.shared();
    alignment.prefix >= FIRST_WORDS || (shared >= RELATED && shared.saturating_mul(5) >= stored.min(asked))
}

/// The longest agreement in another namespace, and what differs between the two. Rows that were saved since do not count.
fn elsewhere(index: &Index, scope: Scope<'_>, tokens: &[u32]) -> Option<(usize, Verdict)> {
    let was_there = |id: RowId| scope.then.is_none_or(|then| index.row(id).meta.created <= then.at);
    let agreement = |other: &Namespace| {
        let matched = index.match_for(other, tokens, scope.owner);
        matched.filter(|matched| matched.below.is_some_and(was_there)).map_or(0, |matched| matched.common)
    };
    let others = index.namespaces().filter(|other| other != scope.namespace);
    let (common, other) = others.map(|other| (agreement(&other), other)).max_by_key(|(common, _)| *common)?;
    let verdict = Verdict::OtherNamespace {
        fingerprint: other.fingerprint != scope.namespace.fingerprint,
        quant: other.quant != scope.namespace.quant,
        context: other.context_hash != scope.namespace.context_hash,
    };
    (common > 0).then_some((common, verdict))
}
