//! The tokens of a reply's opening, without the space that SentencePiece tokenizers put before a text.
//!
//! Called by `turn.rs`: a grammar that describes the opening has to be fed with it before the reply begins. The tokens
//! must spell the opening and nothing else; a token that holds the added space and the first letters is none of them.

use crate::backend::TokenizeMode;
use crate::error::EngineError;
use crate::model::Model;

/// Texts to put before the opening, so that the added space goes there: a line break is a token of its own in nearly
/// every vocabulary, the others are for those in which it joins what follows.
const LEADS: [&str; 3] = ["\n", ".", "a"];

/// The tokens of an opening as the template wrote it.
pub(crate) fn opening_tokens(model: &Model, opening: &str) -> Result<Vec<u32>, EngineError> {
    let tokenize = |text: &str| model.tokenize(text, TokenizeMode { add_special: false, parse_special: true });
    spelled(opening, tokenize, |token| model.token_bytes(token))
}

/// Nothing where no tokens spell the text alone: the grammar then is used without them.
fn spelled<E>(
    text: &str,
    tokenize: impl Fn(&str) -> Result<Vec<u32>, E>,
    bytes: impl Fn(u32) -> Vec<u8>,
) -> Result<Vec<u32>, E> {
    let usual = tokenize(text)?;
    let begins_with_space = usual.first().is_some_and(|token| bytes(*token).first() == Some(&b' '));
    if !begins_with_space || text.starts_with(' ') {
        return Ok(usual);
    }
    for lead in LEADS {
        let tokens = tokenize(&format!("{lead}{text}"))?;
        let pieces: Vec<Vec<u8>> = tokens.iter().map(|token| bytes(*token)).collect();
        let after_lead = (0..pieces.len()).find(|from| pieces.iter().skip(*from).flatten().eq(text.as_bytes()));
        if let Some(from) = after_lead {
            return Ok(tokens.into_iter().skip(from).collect());
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vocabulary of pieces, the longest of which wins; like SentencePiece it puts a space before every text.
    fn spelled_by(vocabulary: &[&str], adds_space: bool, text: &str) -> Vec<String> {
        let tokenize = |text: &str| -> Result<Vec<u32>, ()> {
            let spaced = if adds_space { format!(" {text}") } else { text.to_owned() };
            let mut rest = spaced.as_str();
            let mut tokens = Vec::new();
            while !rest.is_empty() {
                let fitting = (0..vocabulary.len()).filter(|id| rest.starts_with(vocabulary[*id]));
                let best = fitting.max_by_key(|id| vocabulary[*id].len()).ok_or(())?;
                rest = &rest[vocabulary[best].len()..];
                tokens.push(u32::try_from(best).unwrap());
            }
            Ok(tokens)
        };
        let piece = |id: u32| vocabulary[usize::try_from(id).unwrap()].to_owned();
        let tokens = spelled(text, tokenize, |id| piece(id).into_bytes()).unwrap();
        tokens.into_iter().map(piece).collect()
    }

    #[test]
    fn a_token_that_holds_the_added_space_is_not_the_opening() {
        let vocabulary = [" ", " <", "<", "|", "bot", ">", "\n", ".", "a"];
        assert_eq!(spelled_by(&vocabulary, true, "<|bot|>\n"), ["<", "|", "bot", "|", ">", "\n"]);
        let with_lone_space = [" ", "<", "bot", ">", "\n", ".", "a"];
        assert_eq!(spelled_by(&with_lone_space, true, "<bot>"), ["<", "bot", ">"]);
    }

    #[test]
    fn what_is_right_already_stays_and_what_cannot_be_spelled_is_left_out() {
        let vocabulary = [" ", " <", "<", "bot", ">", "\n", ".", "a", "\n<", ".<", "a<"];
        assert_eq!(spelled_by(&vocabulary, false, "<bot>"), ["<", "bot", ">"]);
        assert_eq!(spelled_by(&vocabulary, true, " <bot>"), [" ", " <", "bot", ">"], "a space of its own stays");
        assert_eq!(spelled_by(&vocabulary, true, "<bot>"), [""; 0], "every lead joins the opening");
        assert_eq!(spelled_by(&vocabulary, false, ""), [""; 0]);
    }

    #[test]
    fn a_line_break_that_joins_is_not_the_only_lead() {
        let vocabulary = [" ", " <", "<", "bot", ">", "\n", "\n<", ".", "a"];
        assert_eq!(spelled_by(&vocabulary, true, "<bot>"), ["<", "bot", ">"]);
    }
}
