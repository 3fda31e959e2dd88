//! Ends of messages that were found before: where the first messages of a conversation end in the tokens of a prompt.
//!
//! Asked by `message_ends.rs`. A turn repeats the messages of the turns before it, and rendering each of its beginnings
//! again made a turn cost more the later it came. What is kept is the number of tokens that a beginning shared with its
//! prompt, their digest, and the few tokens of the beginning after them. A prompt with that digest shares them again, so
//! the end is exactly the one that rendering would find. It must never be used for other tokens.

use std::sync::{Mutex, PoisonError};

use poncho_cache::{Key, KeyHasher, Namespace, OwnerId};
use poncho_kinds::FairLru;

/// Beginnings that are remembered: those of some thousand turns.
const MOST: usize = 1 << 14;
/// Bytes of all of them.
const MOST_BYTES: usize = 4 << 20;
/// Tokens after the shared ones that are kept: the end of a turn that the whole prompt goes on from in another way.
const MOST_REST: usize = 32;

/// A hash of everything that the tokens of a beginning depend on.
pub(crate) type HeadKey = [u8; 32];

/// The owner of a conversation, where there are several keys.
type Share = Option<[u8; OwnerId::LENGTH]>;

/// Where a beginning ends.
#[derive(Clone)]
struct End {
    /// Tokens that it shares with its prompt.
    shared: usize,
    /// Of those.
    digest: Key,
    /// Its own tokens after them.
    rest: Box<[u32]>,
}

/// See the module.
pub(crate) struct KnownEnds(Mutex<FairLru<Share, HeadKey, End>>);

impl Default for KnownEnds {
    fn default() -> Self {
        Self(Mutex::new(FairLru::new(MOST, MOST_BYTES)))
    }
}

impl KnownEnds {
    /// How many leading tokens of a prompt a beginning has, if that is known. Ask for later ends after earlier ones: the
    /// tokens are hashed once then.
    pub(crate) fn find(&self, key: &HeadKey, prompt: &mut Digests<'_>) -> Option<usize> {
        let end = {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let end = known.peek(key).cloned()?;
            if known.is_old(key) {
                known.touch(key);
            }
            end
        };
        let after = prompt.tokens.get(end.shared..)?;
        (prompt.of_first(end.shared)? == end.digest).then(|| end.shared + common(&end.rest, after))
    }

    /// Remembers a beginning; returns how many leading tokens of the prompt it has.
    pub(crate) fn put(&self, owner: Share, key: HeadKey, head: &[u32], prompt: &mut Digests<'_>) -> usize {
        let shared = common(head, prompt.tokens);
        let rest = head.get(shared..).unwrap_or_default();
        if rest.len() <= MOST_REST
            && let Some(digest) = prompt.of_first(shared)
        {
            let bytes = size_of::<HeadKey>() * 4 + size_of::<End>() + size_of_val(rest);
            let end = End { shared, digest, rest: rest.into() };
            self.0.lock().unwrap_or_else(PoisonError::into_inner).put(owner, key, end, bytes);
        }
        shared
    }
}

fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Digests of the beginnings of a prompt's tokens.
pub(crate) struct Digests<'t> {
    tokens: &'t [u32],
    namespace: Namespace,
    hash: KeyHasher,
    hashed: usize,
}

impl<'t> Digests<'t> {
    pub(crate) fn new(namespace: Namespace, tokens: &'t [u32]) -> Self {
        Self { tokens, namespace, hash: namespace.hasher(), hashed: 0 }
    }

    /// The digest of the first tokens; `None` if there are fewer.
    fn of_first(&mut self, count: usize) -> Option<Key> {
        if count < self.hashed {
            (self.hash, self.hashed) = (self.namespace.hasher(), 0);
        }
        self.hash.update(self.tokens.get(self.hashed..count)?);
        self.hashed = count;
        Some(self.hash.key())
    }
}

#[cfg(test)]
mod tests {
    use poncho_cache::QuantType;
    use proptest::prelude::*;

    use super::*;

    fn digests(tokens: &[u32]) -> Digests<'_> {
        Digests::new(Namespace { fingerprint: [1; 32], quant: QuantType::F16, context_hash: [0; 32] }, tokens)
    }

    fn find(known: &KnownEnds, key: u8, prompt: &[u32]) -> Option<usize> {
        known.find(&[key; 32], &mut digests(prompt))
    }

    proptest! {
        /// Everyday use 4: an end that is known is the one that comparing all tokens finds, in whatever prompt.
        #[test]
        fn a_known_end_is_the_one_that_a_comparison_finds(
            head in prop::collection::vec(0..3_u32, 0..12),
            first in prop::collection::vec(0..3_u32, 0..12),
            prompts in prop::collection::vec(prop::collection::vec(0..3_u32, 0..12), 1..8),
            keeps in 0..12_usize,
        ) {
            let known = KnownEnds::default();
            let first = [&head[..keeps.min(head.len())], &first[..]].concat();
            prop_assert_eq!(known.put(None, [1; 32], &head, &mut digests(&first)), common(&head, &first));
            prop_assert_eq!(find(&known, 1, &first), Some(common(&head, &first)));
            let begun = prompts.iter().map(|rest| [&head[..keeps.min(head.len())], &rest[..]].concat());
            for prompt in begun.chain(prompts.clone()) {
                if let Some(end) = find(&known, 1, &prompt) {
                    prop_assert_eq!(end, common(&head, &prompt));
                }
            }
        }
    }

    #[test]
    fn other_tokens_other_beginnings_and_long_remainders_are_not_known() {
        let known = KnownEnds::default();
        known.put(None, [1; 32], &[1, 2, 3, 9], &mut digests(&[1, 2, 3, 4]));
        assert_eq!(find(&known, 1, &[1, 2, 3, 7, 7]), Some(3));
        assert_eq!(find(&known, 1, &[1, 2, 3, 9, 7]), Some(4), "the prompt goes on as the beginning does");
        assert_eq!(find(&known, 1, &[1, 2, 4, 9]), None);
        assert_eq!(find(&known, 1, &[1, 2]), None, "a shorter prompt");
        assert_eq!(find(&known, 2, &[1, 2, 3, 4]), None, "another conversation");
        let long: Vec<u32> = (0..100).collect();
        assert_eq!(known.put(None, [3; 32], &long, &mut digests(&[0, 1])), 2);
        assert_eq!(find(&known, 3, &[0, 1]), None);
    }
}
