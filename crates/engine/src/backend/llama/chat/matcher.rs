//! Grammars in progress: which tokens of a model's vocabulary may follow.
//!
//! Made by `Model::new_grammar`, driven by the sampler of one request on the worker's thread. The rules are read and
//! followed by `gbnf`, which counts its work; llama.cpp's own grammar code is not used, because a client's schema can
//! make one call of it take minutes and nothing can interrupt it. It allows exactly the tokens that llama.cpp would
//! allow, and a test compares the two. A grammar that got stuck or became too costly stays so.

use std::sync::Arc;

use llama_cpp_sys_4 as sys;

use crate::backend::grammar::gbnf::{Characters, Gbnf, Machine, PartialCharacter, StateId, Triggers, Written};
use crate::backend::llama::handle::ModelHandle;
use crate::backend::llama::pieces::Pieces;
use crate::backend::{Candidate, Grammar, GrammarError, GrammarOptions, Token};

/// Why a grammar no longer allows anything.
#[derive(Clone, Copy)]
enum Over {
    Stuck,
    TooCostly,
}

impl From<Over> for GrammarError {
    fn from(over: Over) -> Self {
        match over {
            Over::Stuck => Self::Stuck,
            Over::TooCostly => Self::TooCostly,
        }
    }
}

/// What was written while a lazy grammar waits for its trigger.
#[derive(Clone, Default)]
struct Asleep {
    written: Written,
    bytes: Vec<u8>,
    /// Each token with the end of its text.
    tokens: Vec<(Token, usize)>,
}

/// A grammar in progress.
#[derive(Clone)]
pub(in crate::backend::llama) struct LlamaGrammar {
    machine: Machine,
    state: StateId,
    /// The beginning of a character that the last token ended with.
    begun: PartialCharacter,
    asleep: Option<Asleep>,
    lazy: bool,
    triggers: Arc<Triggers>,
    pieces: Arc<Pieces>,
    over: Option<Over>,
    scratch: Characters,
}

impl LlamaGrammar {
    pub(in crate::backend::llama) fn new(handle: &ModelHandle, options: &GrammarOptions) -> Result<Self, GrammarError> {
        let root = if options.root.is_empty() { "root" } else { options.root.as_str() };
        if options.text.trim().is_empty() {
            return Err(GrammarError::Invalid { reason: "the text is empty".to_owned() });
        }
        if options.text.contains('\0') {
            return Err(GrammarError::Invalid { reason: "the text has a NUL byte".to_owned() });
        }
        let triggers = Triggers::new(&options.triggers)?;
        if options.lazy && triggers.is_empty() {
            return Err(GrammarError::Invalid { reason: "a lazy grammar needs a trigger".to_owned() });
        }
        let grammar = Gbnf::parse(&options.text, root, &|name| token_of(handle, name))?;
        let machine = Machine::new(Arc::new(grammar))?;
        Ok(Self {
            state: machine.start(),
            machine,
            begun: PartialCharacter::default(),
            asleep: options.lazy.then(Asleep::default),
            lazy: options.lazy,
            triggers: Arc::new(triggers),
            pieces: handle.pieces(),
            over: None,
            scratch: Characters::default(),
        })
    }

    fn check(&self) -> Result<(), GrammarError> {
        self.over.map_or(Ok(()), |over| Err(over.into()))
    }

    /// Remembers why nothing can follow.
    fn end<T>(&mut self, result: Result<T, GrammarError>) -> Result<T, GrammarError> {
        if let Err(error) = &result {
            self.over = Some(if *error == GrammarError::TooCostly { Over::TooCostly } else { Over::Stuck });
        }
        result
    }

    fn allows(&mut self, token: Token) -> Result<bool, GrammarError> {
        let pieces = Arc::clone(&self.pieces);
        if pieces.is_eog(token) {
            return Ok(self.machine.is_complete(self.state));
        }
        match pieces.text(token) {
            None | Some([] | [0, ..]) => Ok(false),
            Some(text) => {
                self.scratch.read(text, self.begun);
                self.machine.allows(self.state, token, &self.scratch)
            }
        }
    }

    fn take(&mut self, token: Token, text: &[u8]) -> Result<(), GrammarError> {
        self.scratch.read(text, self.begun);
        self.state = self.machine.accept(self.state, token, &self.scratch)?;
        self.begun = self.scratch.rest;
        if Machine::is_dead(self.state) { Err(GrammarError::Stuck) } else { Ok(()) }
    }

    /// Takes a token while asleep. The text that wakes the grammar is the first that it describes.
    fn doze(&mut self, token: Token, mut asleep: Asleep) -> Result<(), GrammarError> {
        let pieces = Arc::clone(&self.pieces);
        let text = pieces.text(token).unwrap_or_default();
        if self.triggers.is_token(token) {
            return self.take(token, text);
        }
        asleep.written.push(text);
        asleep.bytes.extend_from_slice(text);
        asleep.tokens.push((token, asleep.bytes.len()));
        let Some(start) = self.triggers.find(&asleep.written) else {
            self.asleep = Some(asleep);
            return Ok(());
        };
        let mut from = 0;
        for (token, end) in asleep.tokens {
            if end > start {
                self.take(token, asleep.bytes.get(from.max(start)..end).unwrap_or_default())?;
            }
            from = end;
        }
        Ok(())
    }

    fn step(&mut self, token: Token) -> Result<(), GrammarError> {
        self.machine.earn();
        self.state = self.machine.tidy(self.state)?;
        if let Some(asleep) = self.asleep.take() {
            return self.doze(token, asleep);
        }
        if !self.allows(token)? {
            return Err(GrammarError::Stuck);
        }
        let pieces = Arc::clone(&self.pieces);
        if pieces.is_eog(token) { Ok(()) } else { self.take(token, pieces.text(token).unwrap_or_default()) }
    }

    fn forbid(&mut self, candidates: &mut [Candidate]) -> Result<(), GrammarError> {
        for candidate in candidates.iter_mut() {
            if !self.allows(candidate.token)? {
                candidate.logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }
}

/// The token that a grammar names by its text.
fn token_of(handle: &ModelHandle, name: &str) -> Option<Token> {
    // No token has a longer name; tokenizing a long text is work of its own.
    let len = i32::try_from(name.len()).ok().filter(|len| *len <= 256)?;
    let mut tokens = [0; 2];
    // SAFETY: the text has `len` bytes and the buffer two places; a text of more tokens yields a negative count.
    let count =
        unsafe { sys::llama_tokenize(handle.vocab(), name.as_ptr().cast(), len, tokens.as_mut_ptr(), 2, false, true) };
    match (count, tokens) {
        (1, [token, _]) => u32::try_from(token).ok(),
        _ => None,
    }
}

impl Grammar for LlamaGrammar {
    fn constrain(&mut self, candidates: &mut [Candidate]) -> Result<(), GrammarError> {
        self.check()?;
        if self.asleep.is_some() {
            return Ok(());
        }
        let forbidden = self.forbid(candidates);
        self.end(forbidden)
    }

    fn accept(&mut self, token: Token) -> Result<(), GrammarError> {
        self.check()?;
        let taken = self.step(token);
        self.end(taken)
    }

    fn reset(&mut self) {
        self.state = self.machine.start();
        self.begun = PartialCharacter::default();
        self.asleep = self.lazy.then(Asleep::default);
        self.over = None;
    }

    fn duplicate(&self) -> Option<Box<dyn Grammar>> {
        Some(Box::new(self.clone()))
    }
}

#[cfg(test)]
mod tests;
