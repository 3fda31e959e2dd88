//! GBNF grammars: their text, their rules, and which characters may follow what was written so far.
//!
//! The llama.cpp backend builds its grammars from this and gives it the characters of tokens. It takes the notation
//! that llama.cpp takes, and means the same by it: a test of the backend compares the two. Unlike llama.cpp it counts
//! what it does. Clients send schemas, schemas become grammars, and a short grammar can stand for an exponential number
//! of ways to go on. Here that is an error after a bounded amount of work, the same on every machine. Nothing here may
//! recurse deeper than [`limits::DEEPEST_GROUP`] allows, or work without counting it.

mod class;
pub(crate) mod limits;
mod machine;
mod parse;
mod recursion;
mod text;
mod trigger;

pub(crate) use machine::{Machine, StateId};
pub(crate) use parse::Gbnf;
pub(crate) use text::{Characters, PartialCharacter};
pub(crate) use trigger::{Triggers, Written};

use crate::backend::{GrammarError, Token};

/// One step of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Element {
    /// The rule is over.
    End,
    /// The alternative is over, another one follows.
    Or,
    /// This rule, by its number.
    Rule(u32),
    /// A character of this class, by its number.
    Character(u32),
    /// This token.
    Token(Token),
    /// Any token but this one.
    OtherToken(Token),
}

impl Element {
    /// Whether an alternative ends here.
    const fn is_end(self) -> bool {
        matches!(self, Self::End | Self::Or)
    }
}

fn invalid(reason: impl Into<String>) -> GrammarError {
    GrammarError::Invalid { reason: reason.into() }
}
