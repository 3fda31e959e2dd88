//! A request as the engine takes it: tokens, limits, sampling, and what to do with the state.
//!
//! Built by the server, the command line or a Rust program; checked once by `Request::validate` before it is queued,
//! so that nothing behind the queue has to doubt a number. Plain owned data that could travel to another process: it
//! must never hold a closure, a channel or a borrowed pointer.

use poncho_kinds::Key;
use serde::{Deserialize, Serialize};

use crate::drafts::Drafts;
use crate::error::{Field, RequestError};
use crate::load::markers::ThinkingMarkers;
use crate::load::reasoning::Reasoning;
use crate::model::ModelLimits;
use crate::tenant::Tenant;

/// More stop sequences than any client sends; each costs a comparison for every byte of the reply.
pub const MAX_STOPS: usize = 64;
/// A stop sequence holds back text while it may still match, so its length bounds what a reader waits for.
pub const MAX_STOP_BYTES: usize = 1024;
/// The most alternatives that a client of any family may ask for.
pub const MAX_TOP_LOGPROBS: u8 = 20;
/// Session names are kept in memory and in logs. More than the 256 bytes that clients of a server may use: it puts the
/// owner before them.
pub const MAX_SESSION_BYTES: usize = 320;

/// What is asked of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Mode {
    /// Read the prompt, generate a reply.
    #[default]
    Complete,
    /// Read the prompt, save its state, generate nothing.
    PrefillOnly,
    /// Append the tokens, unchecked, to what the session holds, then generate.
    Continue,
}

/// Whether the model may think before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Thinking {
    /// As the model's template has it.
    #[default]
    Default,
    /// Asked for.
    On,
    /// Not wanted: a block that the model opens all the same is closed at once.
    Off,
}

/// How the next token is drawn. Each request has its own sampler chain and shares nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 takes the most likely token; larger values flatten the distribution.
    pub temperature: f32,
    /// Only the `top_k` most likely tokens; 0 takes all.
    pub top_k: u32,
    /// The smallest set of tokens with probabilities that reach this sum; 1 takes all.
    pub top_p: f32,
    /// Only tokens at least this likely relative to the best one; 0 takes all.
    pub min_p: f32,
    /// Divides the logits of tokens seen before; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted once for each time that a token was seen; 0 does nothing.
    pub frequency_penalty: f32,
    /// Subtracted once from a token that was seen; 0 does nothing.
    pub presence_penalty: f32,
    /// How many of the last tokens the penalties look at; `None` is the whole context.
    pub penalty_last_n: Option<u32>,
    /// The same seed on the same state draws the same tokens; `None` takes a fresh one.
    pub seed: Option<u64>,
    /// Added to the logit of a token; minus infinity bans it.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for Sampling {
    /// The values that people who run GGUF models expect: those of llama.cpp.
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_last_n: Some(64),
            seed: None,
            logit_bias: Vec::new(),
        }
    }
}

impl Sampling {
    /// Always the most likely token.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// The seed for a generator with 32 bits of it: small seeds stay what they are. All ones is never returned,
    /// because llama.cpp takes that value as "choose one yourself".
    #[must_use]
    pub fn seed32(&self, fresh: u64) -> u32 {
        let [a, b, c, d, e, f, g, h] = self.seed.unwrap_or(fresh).to_le_bytes();
        let folded = u32::from_le_bytes([a, b, c, d]) ^ u32::from_le_bytes([e, f, g, h]);
        if folded == u32::MAX { u32::MAX - 1 } else { folded }
    }
}

/// A constraint on the reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grammar {
    /// The rules.
    pub source: GrammarSource,
    /// What wakes the grammar. Empty: it holds from the first token.
    pub triggers: Vec<Trigger>,
    /// Tokens that the grammar has already seen when generation starts: the part of the prompt that the template
    /// wrote for the reply and that the rules describe too. Without triggers only.
    pub accepted: Vec<u32>,
}

/// The text of a grammar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrammarSource {
    /// llama.cpp's own notation, and the rule to start from.
    Gbnf {
        /// The rules.
        text: String,
        /// Name of the first rule.
        root: String,
    },
    /// A JSON schema, as text.
    JsonSchema(String),
}

/// What wakes a lazy grammar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trigger {
    /// This text appears in the reply.
    Word(String),
    /// This token is drawn.
    Token(u32),
    /// This regular expression matches in the reply; the grammar starts at its first group.
    Pattern(String),
    /// This regular expression matches the whole reply so far.
    PatternFull(String),
}

/// The beginning of a reply that was generated before, by a process that ended. Nothing of it is drawn again: grammar,
/// penalties, stop sequences and random numbers move past it, its events are sent again, and the reply goes on after it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Resume {
    /// The tokens that were drawn.
    pub tokens: Vec<u32>,
    /// How many random numbers drawing them took.
    pub draws: u64,
}

/// One request. Every field but `tokens` has a default.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Request {
    /// What to do.
    pub mode: Mode,
    /// The prompt; with `Mode::Continue` only what is appended.
    pub tokens: Vec<u32>,
    /// The most tokens to generate; `None` goes on until the model stops or the context is full.
    pub max_tokens: Option<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Texts that end the reply and are cut from it.
    pub stop: Vec<String>,
    /// A constraint on the reply.
    pub grammar: Option<Grammar>,
    /// Report the log probability of each token and of that many alternatives.
    pub logprobs: Option<u8>,
    /// The caller's name for a sequence that stays pinned after the request.
    pub session_id: Option<String>,
    /// A row to start from; used only if its tokens begin the prompt.
    pub parent_key: Option<Key>,
    /// Whether the model may think.
    pub thinking: Thinking,
    /// The most thinking tokens in the reply; the block is closed when they are used up.
    pub thinking_budget: Option<u32>,
    /// What encloses thinking in this reply; `None` for the markers that the model was loaded with.
    pub thinking_markers: Option<ThinkingMarkers>,
    /// The reply must be byte-identical to that of a cold, idle server.
    pub exact: bool,
    /// Which tokens the reply may be guessed from, at most what the model offers.
    pub drafts: Drafts,
    /// Token offsets at which messages end: good places to save. Only advice.
    pub boundary_hints: Vec<usize>,
    /// Go on when the model says that it is done.
    pub ignore_eos: bool,
    /// Its tenant; `None` where callers are not told apart.
    pub tenant: Option<Tenant>,
    /// Control tokens with text that belongs to the reply (a template's tool-call tokens); the others yield no text.
    pub shown_tokens: Vec<u32>,
    /// Send the reply as one text, with thinking, tool calls and their markers in it, for a parser that reads all of it.
    pub raw_text: bool,
    /// The beginning of the reply, where it was generated before. With `Mode::Complete` only.
    pub resume: Option<Resume>,
    /// The caller's number for the request. Reports about it repeat the number; nothing else depends on it.
    pub label: Option<u64>,
}

impl Request {
    /// A request for a reply to these tokens, everything else left at its default.
    #[must_use]
    pub fn new(tokens: Vec<u32>) -> Self {
        Self { tokens, ..Self::default() }
    }

    /// Fills in what the model's configuration says about thinking where the request leaves it open.
    pub fn fill_reasoning(&mut self, reasoning: Reasoning) {
        if self.thinking == Thinking::Default && reasoning.is_off {
            self.thinking = Thinking::Off;
        }
        self.thinking_budget = self.thinking_budget.or(reasoning.budget);
    }

    /// Repairs what is only advice (boundary hints that are out of order or out of range) and refuses what is wrong.
    ///
    /// # Errors
    /// The first wrong field, with what it holds and what it may hold.
    pub fn validate(&mut self, limits: &ModelLimits) -> Result<(), RequestError> {
        self.check_prompt(limits)?;
        self.sampling.check(limits)?;
        self.check_stops()?;
        if let Some(grammar) = &self.grammar {
            grammar.check(limits)?;
        }
        if self.mode != Mode::PrefillOnly && self.max_tokens == Some(0) {
            return Err(RequestError::NothingToGenerate);
        }
        if let Some(count) = self.logprobs.filter(|&count| count > MAX_TOP_LOGPROBS) {
            let (count, limit) = (count.into(), MAX_TOP_LOGPROBS.into());
            return Err(RequestError::TooMany { field: Field::Logprobs, count, limit });
        }
        match &self.session_id {
            Some(name) => text_fits(Field::SessionId, name, MAX_SESSION_BYTES)?,
            None if self.mode == Mode::Continue => return Err(RequestError::SessionMissing),
            None => {}
        }
        if self.exact && !limits.exact {
            return Err(RequestError::ExactUnavailable);
        }
        if self.exact && self.mode == Mode::Continue {
            return Err(RequestError::ExactContinue);
        }
        if self.resume.is_some() && self.mode != Mode::Complete {
            return Err(RequestError::ResumeMode);
        }
        self.boundary_hints.retain(|&hint| hint > 0 && hint <= self.tokens.len());
        self.boundary_hints.sort_unstable();
        self.boundary_hints.dedup();
        Ok(())
    }

    /// How many tokens may be generated after `held` tokens are in the sequence.
    #[must_use]
    pub fn generation_limit(&self, limits: &ModelLimits, held: usize) -> usize {
        if self.mode == Mode::PrefillOnly {
            return 0;
        }
        let room = limits.context.saturating_sub(held);
        self.max_tokens.map_or(room, |asked| usize::try_from(asked).map_or(room, |asked| asked.min(room)))
    }

    fn check_prompt(&self, limits: &ModelLimits) -> Result<(), RequestError> {
        if self.tokens.is_empty() {
            return Err(RequestError::Empty { field: Field::Tokens });
        }
        let (tokens, limit) = (self.tokens.len(), limits.longest_prompt(self.mode));
        if tokens > limit {
            return Err(RequestError::PromptTooLong { tokens, limit });
        }
        let resumed = self.resume.as_ref().map_or(&[][..], |resume| &resume.tokens);
        // The reply that was generated before fitted.
        if tokens + resumed.len() > limits.context {
            return Err(RequestError::PromptTooLong { tokens: tokens + resumed.len(), limit: limits.context });
        }
        tokens_known(Field::Tokens, self.tokens.iter().chain(resumed).copied(), limits.vocab)
    }

    fn check_stops(&self) -> Result<(), RequestError> {
        if self.stop.len() > MAX_STOPS {
            return Err(RequestError::TooMany { field: Field::Stop, count: self.stop.len(), limit: MAX_STOPS });
        }
        self.stop.iter().try_for_each(|stop| text_fits(Field::Stop, stop, MAX_STOP_BYTES))
    }
}

impl Sampling {
    fn check(&self, limits: &ModelLimits) -> Result<(), RequestError> {
        let above_zero = f32::MIN_POSITIVE..=f32::MAX;
        let any = f32::MIN..=f32::MAX;
        for (field, value, range) in [
            (Field::Temperature, self.temperature, 0.0..=f32::MAX),
            (Field::TopP, self.top_p, 0.0..=1.0),
            (Field::MinP, self.min_p, 0.0..=1.0),
            (Field::RepetitionPenalty, self.repetition_penalty, above_zero),
            (Field::FrequencyPenalty, self.frequency_penalty, any.clone()),
            (Field::PresencePenalty, self.presence_penalty, any.clone()),
        ] {
            // A NaN lies in no range.
            if !range.contains(&value) {
                return Err(RequestError::OutOfRange { field, value, low: *range.start(), high: *range.end() });
            }
        }
        tokens_known(Field::LogitBias, self.logit_bias.iter().map(|&(token, _)| token), limits.vocab)?;
        // Minus infinity bans a token; plus infinity would turn the softmax into NaN.
        match self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            Some(&(_, value)) => {
                let (low, high) = (f32::NEG_INFINITY, f32::MAX);
                Err(RequestError::OutOfRange { field: Field::LogitBias, value, low, high })
            }
            None => Ok(()),
        }
    }
}

impl Grammar {
    fn check(&self, limits: &ModelLimits) -> Result<(), RequestError> {
        let mut texts = match &self.source {
            GrammarSource::Gbnf { text, root } => vec![text, root],
            GrammarSource::JsonSchema(text) => vec![text],
        };
        for trigger in &self.triggers {
            match trigger {
                Trigger::Word(text) | Trigger::Pattern(text) | Trigger::PatternFull(text) => texts.push(text),
                Trigger::Token(token) => tokens_known(Field::Grammar, [*token].into_iter(), limits.vocab)?,
            }
        }
        for text in texts {
            text_fits(Field::Grammar, text, usize::MAX)?;
            if text.contains('\0') {
                return Err(RequestError::ZeroByte { field: Field::Grammar });
            }
        }
        tokens_known(Field::Grammar, self.accepted.iter().copied(), limits.vocab)
    }
}

fn text_fits(field: Field, text: &str, limit: usize) -> Result<(), RequestError> {
    match text.len() {
        0 => Err(RequestError::Empty { field }),
        bytes if bytes > limit => Err(RequestError::TooLong { field, bytes, limit }),
        _ => Ok(()),
    }
}

fn tokens_known(field: Field, mut tokens: impl Iterator<Item = u32>, vocab: u32) -> Result<(), RequestError> {
    let mut position = 0;
    let unknown = tokens.find(|&token| {
        position += 1;
        token >= vocab
    });
    match unknown {
        Some(token) => Err(RequestError::UnknownToken { field, position: position - 1, token, vocab }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
