//! The likely cause of a difference between a prompt and the most similar cached one.
//!
//! Called by `explain.rs`. Pure: tokens, their texts and the message at the place in, a cause out. The strongest evidence
//! comes first: a line that differs in its time alone, the same definitions in another order, messages that are missing.

use std::collections::HashMap;

use poncho_api::{Cause, MessagePlace};
use poncho_cache::{Alignment, Gap};

use super::changed::{self, Volatile};
use crate::chat::hygiene;

/// Tokens looked at on each side for the line around a place: it is rarely longer, and the prompt may be a book.
const REACH: usize = 128;
/// A template that changed differs at this number of places, at least.
const TEMPLATE_PLACES: usize = 3;
/// Where a template has no special tokens, a gap of this length is a message and not a few words.
const MESSAGE_LENGTH: usize = 32;

/// The texts of tokens.
pub(super) trait Vocabulary {
    /// The text of some tokens, special ones included.
    fn text(&self, tokens: &[u32]) -> String;
    /// Whether a token is a mark and not text.
    fn is_special(&self, token: u32) -> bool;
}

/// A prompt and the row that it is compared with.
pub(super) struct Compared<'a> {
    pub(super) stored: &'a [u32],
    pub(super) asked: &'a [u32],
    pub(super) alignment: &'a Alignment,
    /// The names of the prompt's tools, if they are known.
    pub(super) tools: &'a [String],
}

/// What may have made the two differ. `message` is the prompt's message at the first difference.
pub(super) fn diagnose(compared: &Compared<'_>, vocabulary: &impl Vocabulary, message: Option<&MessagePlace>) -> Cause {
    let Compared { stored, asked, alignment, .. } = *compared;
    let at = alignment.prefix;
    let lines = [stored, asked].map(|tokens| line_at(vocabulary, tokens, at));
    if lines.iter().any(|line| hygiene::is_billing_header(line)) {
        return Cause::BillingHeader;
    }
    let [one, two] = lines.each_ref().map(|line| hygiene::without_clock(line));
    if one.is_some() && one == two {
        return Cause::Clock;
    }
    let Some(gap) = alignment.first_gap() else { return Cause::Branched };
    if is_template_change(compared, vocabulary) {
        return Cause::TemplateChanged;
    }
    let [_, line] = &lines;
    match changed_value(compared, vocabulary, &gap, line) {
        Some(Volatile::Date) => return Cause::Date,
        Some(Volatile::Id) => return Cause::ChangingId,
        None => {}
    }
    let is_beginning = match message {
        Some(message) => message.number == 1 || ["system", "developer"].contains(&message.role.as_str()),
        None => at < asked.len() / 4,
    };
    if let Some(cause) = tool_change(compared, vocabulary, &gap, is_beginning) {
        return cause;
    }
    if is_truncation(compared, vocabulary, &gap) {
        return Cause::TruncatedHistory;
    }
    if is_beginning { Cause::EditedBeginning } else { Cause::EditedHistory }
}

/// The line around a place.
fn line_at(vocabulary: &impl Vocabulary, tokens: &[u32], at: usize) -> String {
    let before = vocabulary.text(tokens.get(at.saturating_sub(REACH)..at).unwrap_or_default());
    let after = vocabulary.text(tokens.get(at..tokens.len().min(at + REACH)).unwrap_or_default());
    let head = before.rsplit('\n').next().unwrap_or_default();
    let tail = after.split('\n').next().unwrap_or_default();
    format!("{head}{tail}")
}

/// Whether the marks between messages differ in the same way again and again.
fn is_template_change(compared: &Compared<'_>, vocabulary: &impl Vocabulary) -> bool {
    let gaps = compared.alignment.gaps();
    if gaps.len() < TEMPLATE_PLACES {
        return false;
    }
    let tokens = |gap: &Gap| {
        let stored = compared.stored.get(gap.stored.clone()).unwrap_or_default();
        (stored, compared.asked.get(gap.asked.clone()).unwrap_or_default())
    };
    let mut counts: HashMap<(&[u32], &[u32]), usize> = HashMap::new();
    for gap in &gaps {
        *counts.entry(tokens(gap)).or_default() += 1;
    }
    let repeated: usize = counts.values().filter(|count| **count > 1).sum();
    let has_mark = |gap: &&Gap| {
        let (stored, asked) = tokens(gap);
        stored.iter().chain(asked).any(|token| vocabulary.is_special(*token))
    };
    let marked = gaps.iter().filter(has_mark).count();
    repeated * 10 >= gaps.len() * 6 && marked * 2 >= gaps.len()
}

/// The kind of a short text that was replaced, or put in front of what is cached.
fn changed_value(compared: &Compared<'_>, vocabulary: &impl Vocabulary, gap: &Gap, line: &str) -> Option<Volatile> {
    if gap.stored.len().max(gap.asked.len()) > REACH {
        return None;
    }
    let text = |tokens: &[u32], range: std::ops::Range<usize>| vocabulary.text(tokens.get(range).unwrap_or_default());
    let [cached, asked] = [text(compared.stored, gap.stored.clone()), text(compared.asked, gap.asked.clone())];
    if gap.stored.is_empty() {
        return changed::inserted(&asked);
    }
    // A difference may begin and end inside a word.
    let start = gap.asked.start;
    let before = text(compared.asked, start.saturating_sub(REACH)..start);
    let after = text(compared.asked, gap.asked.end..compared.asked.len().min(gap.asked.end + REACH));
    let head = before.rsplit(char::is_whitespace).next().unwrap_or_default();
    let tail = after.split(char::is_whitespace).next().unwrap_or_default();
    changed::replaced(&format!("{head}{cached}{tail}"), &format!("{head}{asked}{tail}"), line)
}

/// Tools in another order, or other tools.
fn tool_change(compared: &Compared<'_>, vocabulary: &impl Vocabulary, gap: &Gap, is_beginning: bool) -> Option<Cause> {
    let Compared { stored, asked, alignment, tools } = *compared;
    let (before, after) = asked.split_at_checked(alignment.prefix)?;
    let (before, after) = (vocabulary.text(before), vocabulary.text(after));
    let whole = format!("{before}{after}");
    let mut names = if tools.is_empty() { tool_names(&whole) } else { tools.to_vec() };
    names.sort_unstable();
    names.dedup();
    let order = in_order(&whole, &names);
    if order.len() > 1 {
        let stored_order = in_order(&vocabulary.text(stored), &names);
        if stored_order.len() == order.len() && stored_order != order {
            return Some(Cause::ToolOrder);
        }
    }
    let is_before = |name: &&String| definition(&before, name).is_some();
    let between = names.iter().any(|name| is_before(&name))
        && names.iter().any(|name| !is_before(&name) && definition(&after, name).is_some());
    let text = |tokens: &[u32], range: std::ops::Range<usize>| vocabulary.text(tokens.get(range).unwrap_or_default());
    let defines = |text: String| {
        text.contains("\"name\"") && ["\"parameters\"", "\"description\""].iter().any(|word| text.contains(word))
    };
    let is_definition = defines(text(stored, gap.stored.clone())) || defines(text(asked, gap.asked.clone()));
    (is_beginning && (between || is_definition)).then_some(Cause::ToolsChanged)
}

/// Where a tool of that name is defined, or called first.
fn definition(text: &str, name: &str) -> Option<usize> {
    [format!("\"name\":\"{name}\""), format!("\"name\": \"{name}\"")].iter().filter_map(|words| text.find(words)).min()
}

/// The names in the order of their definitions; those that a text does not have are left out.
fn in_order<'n>(text: &str, names: &'n [String]) -> Vec<&'n str> {
    let mut found: Vec<(usize, &str)> =
        names.iter().filter_map(|name| definition(text, name).map(|at| (at, name.as_str()))).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, name)| name).collect()
}

/// The names in tool definitions, as far as a text has any.
fn tool_names(text: &str) -> Vec<String> {
    let after = text.split("\"name\"").skip(1);
    let names =
        after.filter_map(|rest| rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?.split('"').next());
    names.map(str::to_owned).collect()
}

/// Whether messages are missing: the row has more marks between messages in the gap than the prompt has, and not fewer in
/// all. A message that was put in has marks of its own.
fn is_truncation(compared: &Compared<'_>, vocabulary: &impl Vocabulary, gap: &Gap) -> bool {
    let marks = |tokens: &[u32]| tokens.iter().filter(|token| vocabulary.is_special(**token)).count();
    let stored = compared.stored.get(gap.stored.clone()).unwrap_or_default();
    let asked = compared.asked.get(gap.asked.clone()).unwrap_or_default();
    if marks(compared.asked) > 0 {
        return marks(stored) > marks(asked) && marks(compared.stored) >= marks(compared.asked);
    }
    asked.is_empty() && stored.len() >= MESSAGE_LENGTH
}

#[cfg(test)]
mod tests;
