//! Lists of tokens as they come in JSON, counted while they are read.
//!
//! Used by every body that takes tokens. A list is four bytes a token and never more than `MOST_TOKENS` long: without that
//! a body of a few megabytes takes forty times its size before anybody looks at it. Whether a list fits the context of a
//! model is checked later, when the model is known.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

use crate::error::ApiError;

/// More than any context holds.
pub(crate) const MOST_TOKENS: usize = 1 << 22;

/// Some tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema)]
#[schemars(with = "Vec<u32>", inline)]
pub(crate) struct TokenList(pub(crate) Vec<u32>);

impl TokenList {
    /// The tokens, if a vocabulary of this size has all of them.
    pub(crate) fn known(self, field: &str, vocab: u32) -> Result<Vec<u32>, ApiError> {
        match self.0.iter().position(|token| *token >= vocab) {
            Some(at) => {
                let reason = format!("the vocabulary has {vocab} tokens; tokenize with this model");
                Err(ApiError::field(format!("{field}[{at}]"), reason))
            }
            None => Ok(self.0),
        }
    }

    /// Reads the rest of a list; `read` tokens of the same field were read before.
    pub(crate) fn read_rest<'de, A: SeqAccess<'de>>(
        mut tokens: Vec<u32>,
        read: usize,
        list: &mut A,
    ) -> Result<Self, A::Error> {
        while let Some(Token(token)) = list.next_element()? {
            if read.saturating_add(tokens.len()) >= MOST_TOKENS {
                return Err(de::Error::custom(format_args!("it has more than {MOST_TOKENS} tokens; send fewer")));
            }
            tokens.push(token);
        }
        Ok(Self(tokens))
    }
}

impl<'de> Deserialize<'de> for TokenList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor;

        impl<'de> Visitor<'de> for ListVisitor {
            type Value = TokenList;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of tokens")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<TokenList, A::Error> {
                TokenList::read_rest(Vec::new(), 0, &mut list)
            }
        }

        deserializer.deserialize_seq(ListVisitor)
    }
}

/// One token.
struct Token(u32);

/// What a number must be.
pub(crate) fn token_of<E: de::Error>(number: u64) -> Result<u32, E> {
    u32::try_from(number).map_err(|_| E::custom("it is not a token"))
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TokenVisitor;

        impl Visitor<'_> for TokenVisitor {
            type Value = Token;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a token")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Token, E> {
                token_of(number).map(Token)
            }
        }

        deserializer.deserialize_u32(TokenVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hardening 13: 16 MB of token ids took 611 MB.
    #[test]
    fn a_list_of_tokens_is_refused_while_it_is_read() {
        let list = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
        let read = |text: &str| serde_json::from_str::<TokenList>(text);
        assert_eq!(read("[1, 2]").unwrap().0, [1, 2]);
        assert_eq!(read(&list(MOST_TOKENS)).unwrap().0.len(), MOST_TOKENS);
        // The rest is not even read: it is not JSON.
        let endless = list(MOST_TOKENS + 1).replace(']', ",{{{");
        assert!(read(&endless).unwrap_err().to_string().contains("more than 4194304 tokens"));
        for wrong in ["[-1]", "[1.5]", "[\"a\"]", "[4294967296]", "5", "[1, null]"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
