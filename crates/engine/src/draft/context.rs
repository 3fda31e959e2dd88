//! Drafts from the tokens of the request itself: its prompt with all turns before, and its reply so far.
//!
//! One value per request, used by the worker. It files a bounded number of positions in each call, so that a long prompt
//! costs no tick a noticeable time; the reply begins meanwhile with what is filed.

use crate::backend::Token;
use crate::draft::ngrams::Ngrams;
use crate::draft::{Draft, Drafter, Source};

/// Positions that one call files, in a fraction of a millisecond.
const STEP: usize = 8192;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct ContextDrafter {
    ngrams: Ngrams,
}

impl Drafter for ContextDrafter {
    fn draft(&mut self, tokens: &[Token], most: usize) -> Option<Draft> {
        self.ngrams.extend(tokens, STEP);
        let found = self.ngrams.find(tokens, tokens)?;
        let guessed: Vec<Token> = tokens.iter().skip(found.next).take(most).copied().collect();
        Some(Draft { tokens: guessed, matched: found.length, source: Source::Context })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_repeats_its_prompt_is_guessed() {
        let mut drafter = ContextDrafter::default();
        let mut tokens: Vec<Token> = (0..100).collect();
        assert_eq!(drafter.draft(&tokens, 4), None, "nothing repeats yet");
        tokens.extend([40, 41, 42]);
        let draft = drafter.draft(&tokens, 4).unwrap();
        assert_eq!((draft.tokens, draft.matched), (vec![43, 44, 45, 46], 3));
        tokens.extend([43, 500]);
        assert_eq!(drafter.draft(&tokens, 4), None);
    }

    #[test]
    fn a_long_prompt_is_filed_in_steps() {
        // The end stands a second time, just after the first step.
        let first = STEP + 100;
        let period = Token::try_from(3 * STEP - first).unwrap();
        let tokens: Vec<Token> = (0..Token::try_from(3 * STEP).unwrap()).map(|number| number % period).collect();
        let mut drafter = ContextDrafter::default();
        assert_eq!(drafter.draft(&tokens, 2), None, "the place is not filed yet");
        let filed = [(); 3].map(|()| {
            drop(drafter.draft(&tokens, 2));
            drafter.ngrams.len()
        });
        assert_eq!(filed, [2 * STEP, 3 * STEP, 3 * STEP + 1]);
        assert_eq!(drafter.draft(&tokens, 2).unwrap().tokens, tokens[first..first + 2]);
    }
}
