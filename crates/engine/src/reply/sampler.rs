//! The sampler chain of one request: from a row of logits to a token, without a decode call.
//!
//! The worker asks it after every tick, and for stored logits when a hit decodes nothing. The order is logit bias,
//! grammar, penalties, `top_k`, `top_p`, `min_p`, then temperature and a seeded draw, or the best token at temperature 0.
//! The same seed and the same rows give the same tokens on every machine. It must never panic on any logits, and once
//! its buffers have grown it never allocates for a token.
//!
//! # What a grammar does to the distribution
//!
//! Asking a grammar about a whole vocabulary costs more than a decode of a small model, and most tokens that a model
//! wants are allowed. So a token is first drawn as if there were no grammar, and only that token is checked. If it is
//! forbidden, every candidate is checked and a second token is drawn from those that are left, with a fresh random
//! number. At temperature 0, and without `top_k`, `top_p` and `min_p`, this is exactly the distribution that checking
//! everything first would give: an allowed token keeps its odds against every other allowed one. With these filters the
//! first draw counts forbidden tokens among those it keeps, and only the second fills their places; so a token that the
//! model ranks below the filters' cut comes up only if the first draw was refused.

use crate::backend::{Candidate, Grammar, GrammarError, Token};
use crate::calls::request::Sampling;

mod error;
mod filter;
mod number;
mod penalty;
mod scan;

pub use error::SampleError;
use filter::Filters;
use number::Random;
use penalty::Penalties;
pub use scan::argmax;

/// The number of best candidates that a grammar checks before it checks all: in a greedy stretch one of them nearly
/// always fits, and they cost a hundredth of a vocabulary.
const SHORTLIST: usize = 512;

/// How a token is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Draw {
    /// As the request wants it.
    #[default]
    Own,
    /// The best token after bias and grammar, whatever the request's penalties and temperature: for the syntax of tool
    /// calls. It uses up no random number.
    Greedy,
}

/// The chain of one request. It shares nothing with other requests.
pub struct Sampler {
    filters: Filters,
    penalties: Penalties,
    bias: Vec<(Token, f32)>,
    random: Random,
    /// Random numbers that were used up.
    draws: u64,
    seed: u64,
    grammar: Option<Box<dyn Grammar>>,
    /// Whether the grammar got to a point where nothing fits.
    stuck: bool,
    /// The row after bias and penalties; empty while the request has neither.
    changed: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A chain at its start. `fresh_seed` is used if the request has no seed of its own; `recent` are the tokens before
    /// the first draw, oldest first, for the penalties. The grammar has already seen what it must have seen.
    #[must_use]
    pub fn new(sampling: &Sampling, fresh_seed: u64, grammar: Option<Box<dyn Grammar>>, recent: &[Token]) -> Self {
        let seed = sampling.seed.unwrap_or(fresh_seed);
        Self {
            filters: Filters::new(sampling),
            penalties: Penalties::new(sampling, recent),
            bias: sampling.logit_bias.clone(),
            random: Random::new(seed),
            draws: 0,
            seed,
            grammar,
            stuck: false,
            changed: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// Chooses a token. Nothing but the random numbers moves on: call [`Sampler::accept`] with the token that is kept.
    ///
    /// # Errors
    /// [`SampleError`] for logits from which nothing can be drawn. The random numbers used up by then stay used up.
    pub fn sample(&mut self, logits: &[f32], mode: Draw) -> Result<Token, SampleError> {
        if self.stuck {
            return Err(SampleError::GrammarStuck);
        }
        let own = mode == Draw::Own;
        let greedy = !own || self.filters.is_greedy();
        let Self { filters, random, draws, candidates, .. } = self;
        let mut next_unit = || {
            *draws += 1;
            random.next_unit()
        };
        let row = change_row(logits, &self.bias, Some(&self.penalties).filter(|_| own), &mut self.changed);
        let free = if greedy {
            argmax(row)?
        } else {
            filters.gather(row, candidates)?;
            filters.draw(candidates, next_unit()).ok_or(SampleError::NothingLeft)?
        };
        let Some(grammar) = self.grammar.as_deref_mut() else { return Ok(free) };
        let chosen = match is_allowed(grammar, free) {
            Ok(true) => return Ok(free),
            Ok(false) => {
                let enough = if greedy { Some(1) } else { filters.enough() };
                keep_allowed(grammar, row, enough, candidates).map(|()| {
                    if greedy {
                        return candidates.iter().min_by(|a, b| scan::better_first(a, b)).map(|best| best.token);
                    }
                    filters.cut_to_k(candidates);
                    filters.draw(candidates, next_unit())
                })
            }
            Err(error) => Err(grammar_end(error)),
        };
        let chosen = chosen.and_then(|token| token.ok_or(SampleError::GrammarStuck));
        self.stuck = chosen == Err(SampleError::GrammarStuck);
        chosen
    }

    /// Moves grammar and penalties on past a token of the reply, drawn or forced.
    ///
    /// # Errors
    /// [`GrammarError`] if the grammar does not allow the token; nothing can be sampled after that.
    pub fn accept(&mut self, token: Token) -> Result<(), GrammarError> {
        if let Some(grammar) = &mut self.grammar {
            let accepted = grammar.accept(token);
            self.stuck |= accepted.is_err();
            accepted?;
        }
        self.penalties.push(token);
        Ok(())
    }

    /// Moves the random numbers on as if `draws` of them had been used up since the start.
    pub fn skip_to(&mut self, draws: u64) {
        for _ in self.draws..draws {
            self.random.next_unit();
        }
        self.draws = self.draws.max(draws);
    }

    /// How many random numbers were used up since the start.
    #[must_use]
    pub fn draws(&self) -> u64 {
        self.draws
    }

    /// Whether the grammar allows no further token: the reply cannot go on.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Whether a grammar constrains the reply.
    #[must_use]
    pub fn has_grammar(&self) -> bool {
        self.grammar.is_some()
    }

    /// The seed in use: the request's own or the fresh one.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

/// The row after bias and penalties; the row itself, uncopied, if there are neither.
///
/// Bias and penalties look at one token each and a grammar only bans, so whether the grammar comes between them, as its
/// place in the order says, or after them makes no difference.
fn change_row<'a>(
    logits: &'a [f32],
    bias: &[(Token, f32)],
    penalties: Option<&Penalties>,
    changed: &'a mut Vec<f32>,
) -> &'a [f32] {
    let penalties = penalties.filter(|penalties| penalties.is_on());
    if bias.is_empty() && penalties.is_none() {
        return logits;
    }
    changed.clear();
    changed.extend_from_slice(logits);
    for &(token, bias) in bias {
        if let Some(logit) = usize::try_from(token).ok().and_then(|index| changed.get_mut(index)) {
            // A sum of opposite infinities would be no number; a ban bans. A NaN stays to be reported.
            *logit = if bias == f32::NEG_INFINITY && !logit.is_nan() { bias } else { *logit + bias };
        }
    }
    if let Some(penalties) = penalties {
        penalties.apply(changed);
    }
    changed
}

/// Why a grammar answers no more questions.
fn grammar_end(error: GrammarError) -> SampleError {
    if error == GrammarError::TooCostly { SampleError::GrammarTooCostly(error) } else { SampleError::GrammarStuck }
}

fn is_allowed(grammar: &mut dyn Grammar, token: Token) -> Result<bool, GrammarError> {
    let mut asked = [Candidate { token, logit: 0.0, p: 0.0 }];
    grammar.constrain(&mut asked)?;
    Ok(asked.iter().all(|candidate| candidate.logit > f32::NEG_INFINITY))
}

/// Collects what the grammar allows: the best `enough` or more of them, all if that is `None`.
fn keep_allowed(
    grammar: &mut dyn Grammar,
    row: &[f32],
    enough: Option<usize>,
    candidates: &mut Vec<Candidate>,
) -> Result<(), SampleError> {
    let mut constrain = |candidates: &mut Vec<Candidate>| {
        grammar.constrain(candidates).map_err(grammar_end)?;
        candidates.retain(|candidate| candidate.logit > f32::NEG_INFINITY);
        Ok(candidates.len())
    };
    if let Some(enough) = enough.filter(|&enough| enough <= SHORTLIST && row.len() > SHORTLIST) {
        scan::top_k(row, SHORTLIST, candidates)?;
        if constrain(candidates)? >= enough {
            return Ok(());
        }
    }
    scan::all(row, candidates)?;
    constrain(candidates).map(|_| ())
}

#[cfg(test)]
mod tests;
