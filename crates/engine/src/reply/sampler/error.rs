//! The errors of sampling: why no token was chosen.
//!
//! Plain data. The request fails with the error, or its reply ends if a grammar allows nothing.

use crate::backend::GrammarError;

/// Why no token was chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// A logit is not a number.
    #[error(
        "the logit of token {position} is not a number; the model's file or its computation is broken, load it again"
    )]
    NotANumber {
        /// The first such token.
        position: usize,
    },
    /// The grammar allows no token that the bias left.
    #[error("the grammar allows no token here; relax the grammar or the logit bias")]
    GrammarStuck,
    /// The grammar is too costly to follow.
    #[error(transparent)]
    GrammarTooCostly(GrammarError),
    /// There are no logits, or all are minus infinity.
    #[error("no token can be drawn: every logit is minus infinity; remove bans from the logit bias")]
    NothingLeft,
}
