//! The tokens of stretches of prompts that were tokenized before.
//!
//! Asked by `ChatModel` for every stretch of a rendered conversation: a turn repeats all of the turns before it, and only
//! what is new in it is tokenized. Stretches are tokenized each by itself, so the tokens of a prompt are those of its
//! stretches. A stretch is found by its whole text, by the model and by the owner of the conversation; it must never be
//! found by less. Bounded in bytes, with a share for every owner.

use std::sync::{Arc, Mutex, PoisonError};

use poncho_cache::OwnerId;
use poncho_kinds::FairLru;

use crate::backend::TokenizeMode;

/// Stretches that are remembered.
const MOST: usize = 1 << 16;
/// Bytes of all of them, with their tokens.
const MOST_BYTES: usize = 32 << 20;
/// What an entry takes besides its text and its tokens.
const ENTRY: usize = 192;

/// The owner of a conversation, where there are several keys.
pub(super) type Share = Option<[u8; OwnerId::LENGTH]>;

/// What the tokens of a stretch depend on.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Stretch {
    /// The fingerprint of the model.
    fingerprint: [u8; 32],
    owner: Share,
    add_special: bool,
    parse_special: bool,
    text: Arc<str>,
}

/// See the module.
pub(super) struct KnownTokens(Mutex<FairLru<Share, Stretch, Arc<[u32]>>>);

impl Default for KnownTokens {
    fn default() -> Self {
        Self::new(MOST, MOST_BYTES)
    }
}

impl KnownTokens {
    fn new(most: usize, most_bytes: usize) -> Self {
        Self(Mutex::new(FairLru::new(most, most_bytes)))
    }

    /// The tokens of a text, computed by `tokenize` if they are not known.
    pub(super) fn of<E>(
        &self,
        fingerprint: [u8; 32],
        owner: Share,
        text: &str,
        mode: TokenizeMode,
        tokenize: impl FnOnce(&str) -> Result<Vec<u32>, E>,
    ) -> Result<Arc<[u32]>, E> {
        let TokenizeMode { add_special, parse_special } = mode;
        let stretch = Stretch { fingerprint, owner, add_special, parse_special, text: Arc::from(text) };
        {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(tokens) = known.peek(&stretch).cloned() {
                if known.is_old(&stretch) {
                    known.touch(&stretch);
                }
                return Ok(tokens);
            }
        }
        // Not under the lock: others tokenize meanwhile.
        let tokens: Arc<[u32]> = tokenize(text)?.into();
        let bytes = text.len() + size_of_val(&*tokens) + ENTRY;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).put(owner, stretch, Arc::clone(&tokens), bytes);
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    const TEXT: TokenizeMode = TokenizeMode { add_special: false, parse_special: false };

    /// A token for each character, which also depends on everything else that tokens depend on.
    fn tokenize(fingerprint: u8, mode: TokenizeMode, text: &str) -> Vec<u32> {
        let opening = mode.add_special.then_some(1);
        let shift = u32::from(fingerprint) * 1000 + u32::from(mode.parse_special) * 100_000;
        opening.into_iter().chain(text.chars().map(|char| u32::from(char) + shift)).collect()
    }

    proptest! {
        /// Everyday use 4: whatever is known, the tokens are those that the tokenizer would return.
        #[test]
        fn known_tokens_are_those_of_the_tokenizer(
            asked in prop::collection::vec(("[ab<]{0,3}", 0..2_u8, 0..3_u8, any::<bool>(), any::<bool>()), 1..40),
            most_bytes in 0..2000_usize,
        ) {
            let known = KnownTokens::new(8, most_bytes);
            for (text, fingerprint, owner, add_special, parse_special) in asked {
                let mode = TokenizeMode { add_special, parse_special };
                let owner = (owner > 0).then_some([owner; OwnerId::LENGTH]);
                let right = tokenize(fingerprint, mode, &text);
                let found = known.of::<()>([fingerprint; 32], owner, &text, mode, |text| {
                    Ok(tokenize(fingerprint, mode, text))
                });
                prop_assert_eq!(found.unwrap().to_vec(), right);
                prop_assert!(known.0.lock().unwrap().bytes() <= most_bytes);
            }
        }
    }

    #[test]
    fn a_text_is_tokenized_once_for_each_owner_and_failures_are_not_kept() {
        let known = KnownTokens::default();
        let calls = Cell::new(0);
        let ask = |owner: Share, fails: bool| {
            known.of([1; 32], owner, "text", TEXT, |_| {
                calls.set(calls.get() + 1);
                if fails { Err(()) } else { Ok(vec![7]) }
            })
        };
        assert!(ask(None, true).is_err());
        for _ in 0..3 {
            assert_eq!(ask(None, false).unwrap().to_vec(), [7]);
        }
        assert_eq!(calls.get(), 2);
        ask(Some([1; OwnerId::LENGTH]), false).unwrap();
        assert_eq!(calls.get(), 3, "nobody learns what another owner has sent");
    }
}
