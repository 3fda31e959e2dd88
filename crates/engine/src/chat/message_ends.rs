//! Where messages end in a prompt: hints for models with a state that can be resumed at saved places only.
//!
//! Called by `turn.rs` after the prompt was rendered. A message's end is found by rendering the conversation up to it
//! and looking how far the tokens agree with the whole prompt, which is right for any template. Stretches of a prompt
//! are tokenized each by itself, so only the one in which the two part is tokenized for it. Only advice: a template
//! that refuses a shortened conversation costs a hint, never the request.

use serde_json::Value;

use crate::backend::{ChatPrompt, TokenizeMode};
use crate::model::Model;

/// The ends of older messages were hinted when they were new. Agents that shorten old tool results keep the last five,
/// so each turn parts from the one before it eleven messages from its end.
const RECENT_MESSAGES: usize = 12;

/// Token offsets at which messages end; none for a model that can resume anywhere. `common` says how many leading tokens
/// of the prompt the first messages of the conversation make, without the opening of a reply.
pub(crate) fn hints(
    model: &Model,
    messages: &[Value],
    mut common: impl FnMut(&[Value]) -> Option<usize>,
) -> Vec<usize> {
    if model.info().memory.can_cut() {
        return Vec::new();
    }
    let ends = places(messages).into_iter().filter_map(|count| common(messages.get(..count)?));
    let mut found: Vec<usize> = ends.filter(|end| *end > 0).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// A rendered prompt and its tokens, to compare others with.
pub(crate) fn whole<'a>(
    model: &'a Model,
    prompt: &'a ChatPrompt,
    tokens: usize,
) -> Whole<'a, impl Fn(&Stretch<'_>, bool) -> Option<Vec<u32>> + 'a> {
    let tokenize = |stretch: &Stretch<'_>, is_first: bool| {
        let mode = TokenizeMode { add_special: is_first, parse_special: !stretch.is_input };
        model.tokenize(stretch.text, mode).ok()
    };
    Whole::new(stretches(prompt), tokens, tokenize)
}

/// A stretch of a prompt, of the template's text or of the request's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch<'a> {
    text: &'a str,
    is_input: bool,
}

fn stretches(prompt: &ChatPrompt) -> Vec<Stretch<'_>> {
    prompt.parts.iter().map(|part| Stretch { text: &part.text, is_input: part.is_input }).collect()
}

/// A prompt that others are compared with.
pub(crate) struct Whole<'a, T> {
    parts: Vec<Stretch<'a>>,
    /// Tokens of all parts.
    tokens: usize,
    /// Tokens of each part, as far as they were counted.
    counts: Vec<Option<usize>>,
    /// The tokens of a part, which may be the first of its prompt.
    tokenize: T,
}

impl<'a, T: Fn(&Stretch<'_>, bool) -> Option<Vec<u32>>> Whole<'a, T> {
    fn new(parts: Vec<Stretch<'a>>, tokens: usize, tokenize: T) -> Self {
        let counts = vec![None; parts.len()];
        Self { parts, tokens, counts, tokenize }
    }

    /// How many leading tokens a prompt shares with this one.
    pub(crate) fn common_with(&mut self, prompt: &ChatPrompt) -> Option<usize> {
        self.common(&stretches(prompt))
    }

    /// How many leading tokens a prompt of these parts shares with the whole one.
    fn common(&mut self, parts: &[Stretch<'_>]) -> Option<usize> {
        let same = self.parts.iter().zip(parts).take_while(|(one, other)| one == other).count();
        let shared = self.tokens_before(same)?;
        let (Some(one), Some(other)) = (self.parts.get(same), parts.get(same)) else { return Some(shared) };
        if one.is_input != other.is_input {
            return Some(shared);
        }
        let (one, other) = ((self.tokenize)(one, same == 0)?, (self.tokenize)(other, same == 0)?);
        Some(shared + one.iter().zip(&other).take_while(|(one, other)| one == other).count())
    }

    /// The tokens of the first parts, counted from the side that has less text.
    fn tokens_before(&mut self, place: usize) -> Option<usize> {
        let (before, after) = self.parts.split_at_checked(place)?;
        let bytes = |parts: &[Stretch<'_>]| parts.iter().map(|part| part.text.len()).sum::<usize>();
        if bytes(before) <= bytes(after) {
            (0..place).map(|part| self.count(part)).sum()
        } else {
            let behind: usize = (place..self.parts.len()).map(|part| self.count(part)).sum::<Option<usize>>()?;
            self.tokens.checked_sub(behind)
        }
    }

    fn count(&mut self, place: usize) -> Option<usize> {
        if let Some(known) = self.counts.get(place).copied().flatten() {
            return Some(known);
        }
        let count = (self.tokenize)(self.parts.get(place)?, place == 0)?.len();
        *self.counts.get_mut(place)? = Some(count);
        Some(count)
    }
}

/// After how many messages to look: the system's, which every conversation shares, and the last ones.
fn places(messages: &[Value]) -> Vec<usize> {
    let system =
        messages.iter().take_while(|message| message.get("role").and_then(Value::as_str) == Some("system")).count();
    let recent = messages.len().saturating_sub(RECENT_MESSAGES);
    let mut counts: Vec<usize> = (recent + 1..=messages.len()).chain([system]).filter(|count| *count > 0).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn conversation(roles: &[&str]) -> Vec<Value> {
        roles.iter().map(|role| json!({"role": role})).collect()
    }

    #[test]
    fn the_systems_end_and_the_last_ones_are_looked_at() {
        assert_eq!(places(&conversation(&["system", "system", "user"])), [1, 2, 3]);
        assert_eq!(places(&conversation(&["user"])), [1]);
        let long: Vec<&str> = std::iter::once("system").chain(std::iter::repeat_n("user", 19)).collect();
        assert_eq!(places(&conversation(&long)), [1, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
        assert_eq!(places(&[]), [0_usize; 0]);
    }

    fn part(text: &str, is_input: bool) -> Stretch<'_> {
        Stretch { text, is_input }
    }

    /// A token a byte but for `ab`, which is one, and an opening token.
    fn tokenize(part: &Stretch<'_>, is_first: bool) -> Option<Vec<u32>> {
        let opening = is_first.then_some(1);
        let text = part.text.replace("ab", "\u{1}").replace('!', "");
        opening.into_iter().chain(text.bytes().map(u32::from)).map(Some).collect()
    }

    fn common(whole: &[Stretch<'_>], shorter: &[Stretch<'_>]) -> Option<usize> {
        let all = |parts: &[Stretch<'_>]| -> Vec<u32> {
            let tokens = |(place, part): (usize, &Stretch<'_>)| tokenize(part, place == 0).unwrap();
            parts.iter().enumerate().flat_map(tokens).collect()
        };
        let (tokens, theirs) = (all(whole), all(shorter));
        let mut compared = Whole::new(whole.to_vec(), tokens.len(), tokenize);
        let found = compared.common(shorter);
        let agreed = tokens.iter().zip(&theirs).take_while(|(one, other)| one == other).count();
        assert_eq!(found, Some(agreed), "{shorter:?} in {whole:?}");
        assert_eq!(compared.common(shorter), found, "what was counted is counted alike");
        found
    }

    #[test]
    fn a_shorter_prompt_shares_the_tokens_of_the_stretches_before_it_parts() {
        let whole = [
            part("<s>", false),
            part("rules", true),
            part("</s><u>", false),
            part("hello", true),
            part("</u><a>", false),
        ];
        assert_eq!(
            common(&whole, &[part("<s>", false), part("rules", true), part("</s>", false)]),
            Some(1 + 3 + 5 + 4)
        );
        let mut longer = whole[..4].to_vec();
        longer.push(part("</u>", false));
        assert_eq!(common(&whole, &longer), Some(1 + 3 + 5 + 7 + 5 + 4));
        assert_eq!(common(&whole, &whole), Some(28));
        assert_eq!(common(&whole, &whole[..2]), Some(9), "the end of a prompt is not a difference");
        assert_eq!(common(&whole, &[]), Some(0));
        assert_eq!(common(&whole, &[part("x", false)]), Some(1), "only the opening token");
    }

    #[test]
    fn a_token_that_joins_what_was_apart_is_not_shared() {
        let whole = [part("xab", false), part("y", true)];
        assert_eq!(common(&whole, &[part("xa", false)]), Some(2), "`ab` is one token and `a` another");
        let mut compared = Whole::new(whole.to_vec(), 4, tokenize);
        assert_eq!(compared.common(&[part("xab", true)]), Some(0), "a text of the request is not the template's");
        let mut broken = Whole::new(whole.to_vec(), 4, |_: &Stretch<'_>, _| None);
        assert_eq!(broken.common(&[part("xa", false)]), None, "what cannot be tokenized gives no hint");
    }
}
