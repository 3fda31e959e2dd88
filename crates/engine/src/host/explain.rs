//! Why a prompt was not found: where it leaves the best cached one, both texts around that place, and the likely cause.
//!
//! Called by the host for `/api/cache/explain`. The cache knows tokens only; the words for a cause come from looking at the texts
//! on both sides. A cause is a guess and says so by its name; the offset is exact.

use poncho_api::{Around, Cause, Explained, ExplainedRow, SpecialText};
use poncho_cache::{Cut, Verdict};

use crate::chat::hygiene;
use crate::chat::model::ChatModel;
use crate::model::Model;

/// Tokens shown on each side of the place.
const SHOWN: usize = 24;
/// Prompts that agree on fewer tokens have only the template's first words in common.
const FIRST_WORDS: usize = 8;
/// Tokens looked at on each side for the line around a place: it is rarely longer, and the prompt may be a book.
const REACH: usize = 128;
/// A run of this number of tokens that recurs further on is not a coincidence.
const RUN: usize = 8;

/// The answer for one prompt. Where keys tell callers apart it is that of a cache which holds the caller's rows alone.
pub(super) fn explain(model: &ChatModel, tokens: &[u32], exact: bool) -> Explained {
    let cut = if model.info().memory.can_cut() { Cut::AnyToken } else { Cut::SavedBoundary };
    let namespace = model.namespace_for(exact, model.tenant());
    let found = match model.private_to() {
        Some(owner) => model.cache().explain_for(owner, &namespace, tokens, cut),
        None => model.cache().explain(&namespace, tokens, cut),
    };
    let stored = found.row.as_ref().and_then(|row| model.cache().tokens_of(&row.key)).unwrap_or_default();
    let cause = match found.verdict {
        Verdict::Stored => Cause::Cached,
        Verdict::Ends => Cause::Grown,
        Verdict::NothingStored => Cause::NeverSeen,
        Verdict::OtherNamespace { fingerprint: true, .. } => Cause::ModelChanged,
        Verdict::OtherNamespace { .. } => Cause::SettingsChanged,
        Verdict::Parts => cause(model, &stored, tokens, found.common),
    };
    let around = |tokens: &[u32]| {
        let before = tokens.get(found.common.saturating_sub(SHOWN)..found.common).unwrap_or_default();
        let after: Vec<u32> = tokens.iter().skip(found.common).take(SHOWN).copied().collect();
        Around { before: text(model, before), after: text(model, &after) }
    };
    Explained {
        tokens: tokens.len(),
        agree: found.common,
        usable: found.usable,
        cause,
        parting: found.parting.is_some().then(|| (around(&stored), around(tokens))),
        row: found.row.map(|row| ExplainedRow { key: row.key, tokens: row.tokens, tier: row.tier }),
    }
}

fn text(model: &Model, tokens: &[u32]) -> String {
    model.detokenize(tokens, SpecialText::Render)
}

/// What may have made two token lists part at a place.
fn cause(model: &Model, stored: &[u32], asked: &[u32], at: usize) -> Cause {
    if at < FIRST_WORDS {
        return Cause::NeverSeen;
    }
    let lines = [stored, asked].map(|tokens| line_at(model, tokens, at));
    if lines.iter().any(|line| hygiene::is_billing_header(line)) {
        return Cause::BillingHeader;
    }
    let [one, two] = lines.each_ref().map(|line| hygiene::without_clock(line));
    if one.is_some() && one == two {
        return Cause::Clock;
    }
    let [stored_rest, asked_rest] = [stored, asked].map(|tokens| tokens.get(at..).unwrap_or_default());
    // From a little before: two definitions may part in the middle of a name.
    let from = at.saturating_sub(REACH);
    let [mut one, mut two] =
        [stored, asked].map(|tokens| tool_names(&text(model, tokens.get(from..).unwrap_or_default())));
    if one != two && one.len() > 1 {
        one.sort();
        two.sort();
        if one == two {
            return Cause::ToolOrder;
        }
    }
    let run = asked_rest.get(..RUN.min(asked_rest.len())).unwrap_or_default();
    if run.len() == RUN && stored_rest.windows(RUN).any(|window| window == run) {
        return Cause::TruncatedHistory;
    }
    Cause::EditedHistory
}

/// The line around a place.
fn line_at(model: &Model, tokens: &[u32], at: usize) -> String {
    let before = text(model, tokens.get(at.saturating_sub(REACH)..at).unwrap_or_default());
    let after: Vec<u32> = tokens.iter().skip(at).take(REACH).copied().collect();
    let after = text(model, &after);
    let head = before.rsplit('\n').next().unwrap_or_default();
    let tail = after.split('\n').next().unwrap_or_default();
    format!("{head}{tail}")
}

/// The names in tool definitions, as far as a text has any.
fn tool_names(text: &str) -> Vec<String> {
    let after = text.split("\"name\"").skip(1);
    let names =
        after.filter_map(|rest| rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?.split('"').next());
    names.map(str::to_owned).collect()
}
