//! Why a prompt was not found: what differs from the most similar cached one, where, what it costs, and the likely cause.
//!
//! Called by the host for `/api/cache/explain`. The cache finds the row and compares tokens; the words for a cause come
//! from looking at the texts on both sides. A cause is a guess; positions and counts are exact. With several tenants,
//! nothing here may come from another tenant's rows.

mod changed;
mod diagnosis;
mod message;
mod remote;

use poncho_api::{
    Around, Cause, ChatTurn, Divergence, Explained, ExplainedRow, MessagePlace, PastLookup, Prompt, Request,
    Resumption, SpecialText,
};
use poncho_cache::{Alignment, Cut, Explanation, Similar, Then, Verdict};

use self::diagnosis::{Compared, Vocabulary, diagnose};
use crate::chat::model::ChatModel;
use crate::model::Model;

/// Tokens shown on each side of the place.
const SHOWN: usize = 24;
/// Fewer tokens that a live context had may be the first words of a template.
const FIRST_WORDS: usize = 16;

impl Vocabulary for Model {
    fn text(&self, tokens: &[u32]) -> String {
        self.detokenize(tokens, SpecialText::Render)
    }

    fn is_special(&self, token: u32) -> bool {
        self.detokenize(&[token], SpecialText::Hide).is_empty() && !self.text(&[token]).is_empty()
    }
}

/// A prompt that is explained.
pub(super) struct Asked<'a> {
    pub(super) prompt: &'a Prompt,
    pub(super) request: &'a Request,
    /// The prompt as the model reads it.
    pub(super) tokens: &'a [u32],
    /// How it was looked up when it was computed, if it was.
    pub(super) past: Option<PastLookup>,
}

/// The answer for one prompt. Where keys tell callers apart it is that of a cache which holds the caller's rows alone.
pub(super) fn explain(model: &ChatModel, asked: &Asked<'_>) -> Explained {
    let cut = if model.info().memory.can_cut() { Cut::AnyToken } else { Cut::SavedBoundary };
    let namespace = model.namespace_for(asked.request.exact, model.tenant());
    let found = match (asked.past, model.private_to()) {
        (Some(then), owner) => {
            let then = Then { found: then.cached_tokens, at: then.at };
            model.cache().explain_past(owner, &namespace, asked.tokens, cut, then)
        }
        (None, Some(owner)) => model.cache().explain_for(owner, &namespace, asked.tokens, cut),
        (None, None) => model.cache().explain(&namespace, asked.tokens, cut),
    };
    let remote =
        if asked.past.is_none() { remote::longest(model, asked.request, &namespace, found.usable) } else { None };
    let explained = match &found.similar {
        Some(similar) => compared(model, asked, &found, similar),
        None => {
            let cause = match found.verdict {
                Verdict::Stored => Cause::Cached,
                Verdict::OtherNamespace { fingerprint: true, .. } => Cause::ModelChanged,
                Verdict::OtherNamespace { .. } => Cause::SettingsChanged,
                Verdict::NothingStored | Verdict::Ends | Verdict::Parts => served(asked),
            };
            // The row that agrees on a few words has nothing to do with the prompt.
            let row = found.row.as_ref().filter(|_| cause == Cause::Cached);
            let known = found.elsewhere.unwrap_or(if cause == Cause::Cached { found.common } else { 0 });
            Explained { lost: known.saturating_sub(found.usable), row: row.map(explained_row), ..bare(&found, cause) }
        }
    };
    Explained { remote, ..explained }
}

/// The cause where no row is like the prompt: a live context, which has no row, may have had its beginning.
fn served(asked: &Asked<'_>) -> Cause {
    match asked.past.map_or(0, |past| past.cached_tokens) {
        had if had > 0 && had.saturating_add(1) >= asked.tokens.len() => Cause::Cached,
        had if had >= FIRST_WORDS => Cause::Branched,
        _ => Cause::NeverSeen,
    }
}

/// The answer without anything that was compared.
fn bare(found: &Explanation, cause: Cause) -> Explained {
    let Explanation { tokens, common, usable, .. } = *found;
    Explained {
        tokens,
        agree: common,
        usable,
        lost: 0,
        cause,
        message: None,
        row: None,
        divergence: None,
        remote: None,
    }
}

fn explained_row(row: &poncho_cache::ExplainedRow) -> ExplainedRow {
    ExplainedRow { key: row.key, tokens: row.tokens, tier: row.tier }
}

/// The answer from comparing the prompt with a row.
fn compared(model: &ChatModel, asked: &Asked<'_>, found: &Explanation, similar: &Similar) -> Explained {
    let alignment = &similar.alignment;
    let row = Some(explained_row(&similar.row));
    let lost = alignment.shared_from(found.usable);
    // The row may have left meanwhile.
    let Some(stored) = model.cache().tokens_of(&similar.row.key) else {
        return Explained { lost, ..bare(found, Cause::NeverSeen) };
    };
    let at = alignment.prefix;
    if at == stored.len() && alignment.first_gap().is_none() {
        return Explained { lost, row, ..bare(found, Cause::Grown) };
    }
    let turn = match asked.prompt {
        Prompt::Chat(turn) => Some(turn),
        Prompt::Written(_) | Prompt::Parts(_) | Prompt::Fill { .. } => None,
    };
    let message = turn.and_then(|turn| place(model, turn, asked, at));
    let names: Vec<String> = turn.iter().flat_map(|turn| &turn.tools).map(|tool| tool.name.clone()).collect();
    let compared = Compared { stored: &stored, asked: asked.tokens, alignment, tools: &names };
    let cause = diagnose(&compared, &**model, message.as_ref());
    let message = message.filter(|_| !matches!(cause, Cause::ToolOrder | Cause::ToolsChanged));
    let divergence = Some(divergence(model, alignment, &stored, asked.tokens));
    Explained { lost, message, row, divergence, ..bare(found, cause) }
}

fn divergence(model: &Model, alignment: &Alignment, stored: &[u32], asked: &[u32]) -> Divergence {
    let at = alignment.prefix;
    let around = |tokens: &[u32]| {
        let before = tokens.get(at.saturating_sub(SHOWN)..at).unwrap_or_default();
        let after: Vec<u32> = tokens.iter().skip(at).take(SHOWN).copied().collect();
        Around { before: model.text(before), after: model.text(&after) }
    };
    let resumes = alignment.notable_runs().next().map(|run| Resumption { cached: run.stored, asked: run.asked });
    Divergence { offset: at, cached: around(stored), asked: around(asked), resumes }
}

/// The message that a token belongs to. `None` for what stands after all messages.
fn place(model: &ChatModel, turn: &ChatTurn, asked: &Asked<'_>, at: usize) -> Option<MessagePlace> {
    let end_of = |count: usize| message::end_of(model, turn, asked.request, asked.tokens, count);
    let number = message::number_at(turn.messages.len(), at, end_of)?;
    let role = turn.messages.get(number - 1)?.get("role")?.as_str()?.to_owned();
    Some(MessagePlace { number, role })
}
