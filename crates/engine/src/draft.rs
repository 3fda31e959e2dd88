//! Drafts: guesses at the next tokens of a reply, found in tokens that were seen before.
//!
//! The worker asks a [`Drafter`] before a decode call and computes the guesses in the same call; only those that the
//! request's own sampler draws are kept, so a wrong guess costs time and nothing else. Two drafters exist: the request's own
//! tokens (`context.rs`) and the stored rows of the same namespace and owner (`library.rs`). Nothing here may touch the
//! context, wait for a disk, or write a token into a log.

pub mod context;
pub mod corpus;
pub(crate) mod library;
pub mod ngrams;
pub(crate) mod request;

use crate::backend::Token;

/// Where a draft comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The tokens of the request itself.
    Context,
    /// Stored rows.
    Stored,
}

/// Guesses at the next tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// The tokens, never more than were asked for.
    pub tokens: Vec<Token>,
    /// How many tokens before them agree: the longer, the more likely they are right.
    pub matched: usize,
    /// Where they were found.
    pub source: Source,
}

impl Draft {
    /// The better of two drafts: the longer match, and of equals the first.
    #[must_use]
    pub fn or(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if other.matched > self.matched => other,
            _ => self,
        }
    }
}

/// Guesses how a sequence of tokens goes on.
pub trait Drafter {
    /// Up to `most` tokens that may follow `tokens`; `None` without a guess.
    fn draft(&mut self, tokens: &[Token], most: usize) -> Option<Draft>;
}
