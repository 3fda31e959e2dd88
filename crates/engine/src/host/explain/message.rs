//! Which message of a conversation a token belongs to.
//!
//! Called by `explain.rs`. A message's end is found by rendering the conversation up to it, which is right for any
//! template, and by halving, so that long conversations take few renders. Advice: a template that refuses a shortened
//! conversation makes the answer less exact, never wrong by more than its neighbours.

use poncho_api::{ChatTurn, Request};

use crate::backend::TokenizeMode;
use crate::chat::model::ChatModel;
use crate::chat::turn;

/// The number, from 1, of the first message that ends after a token. `end_of` gives the end of the first messages, if it
/// is known. `None` if all messages end before the token.
pub(super) fn number_at(count: usize, at: usize, mut end_of: impl FnMut(usize) -> Option<usize>) -> Option<usize> {
    // The first `before` messages end at or before the token; the first `after` end behind it, or there are fewer.
    let (mut before, mut after) = (0, count + 1);
    while after - before > 1 {
        let middle = before + (after - before) / 2;
        let known = (middle..after).find_map(|number| end_of(number).map(|end| (number, end)));
        match known {
            Some((number, end)) if end <= at => before = number,
            _ => after = middle,
        }
    }
    (after <= count).then_some(after)
}

/// How many leading tokens of a prompt its first messages make, without the opening of a reply.
pub(super) fn end_of(
    model: &ChatModel,
    turn: &ChatTurn,
    request: &Request,
    tokens: &[u32],
    count: usize,
) -> Option<usize> {
    let messages = turn.messages.get(..count)?.to_vec();
    let head = ChatTurn { messages, reply_start: String::new(), ..turn.clone() };
    let rendered = turn::render(model, &head, request).ok()?;
    let mode = TokenizeMode { add_special: false, parse_special: true };
    let opening = model.tokenize(&rendered.prompt.generation_prompt, mode).ok()?;
    let head = rendered.tokens.strip_suffix(opening.as_slice()).unwrap_or(&rendered.tokens);
    Some(head.iter().zip(tokens).take_while(|(one, other)| one == other).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_belongs_to_the_first_message_that_ends_behind_it() {
        let ends = [10, 15, 15, 40, 90];
        for at in 0..100 {
            let expected = ends.iter().position(|end| *end > at).map(|index| index + 1);
            assert_eq!(number_at(ends.len(), at, |count| ends.get(count - 1).copied()), expected, "{at}");
        }
        assert_eq!(number_at(0, 5, |_| None), None);
    }

    #[test]
    fn long_conversations_take_few_renders_and_unknown_ends_do_not_stop_the_search() {
        let mut renders = 0;
        let found = number_at(400, 3995, |count| {
            renders += 1;
            Some(count * 10)
        });
        assert_eq!((found, renders < 12), (Some(400), true), "{renders}");
        let found = number_at(20, 75, |count| (count % 2 == 0).then_some(count * 10));
        assert!(matches!(found, Some(7 | 8)), "{found:?}");
    }
}
