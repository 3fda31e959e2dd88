//! llama.cpp with a script: tokenizer, templates, grammars, parser and cache are real, and under a grammar the model
//! writes what a test wants, as far as the grammar allows it.
//!
//! A tiny generated model would write noise in every place where a grammar leaves it free, for as long as it may.

use std::sync::{Arc, Mutex};

use poncho_engine::backend::double::ModelDouble;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{
    Backend, Candidate, Grammar, GrammarError, GrammarOptions, HostBuffer, LoadError, Model, ModelOptions, Token,
};

/// How far ahead the script is looked through for a token that the grammar allows.
const LOOK_AHEAD: usize = 96;

/// What the next reply shall be.
pub(crate) type Script = Arc<Mutex<Vec<Token>>>;

pub(crate) struct ScriptedBackend(pub(crate) Script);

impl Backend for ScriptedBackend {
    fn name(&self) -> &'static str {
        LlamaBackend.name()
    }

    fn build(&self) -> String {
        LlamaBackend.build()
    }

    fn load_model(&self, options: &ModelOptions) -> Result<Arc<dyn Model>, LoadError> {
        let inner = LlamaBackend.load_model(options)?;
        let size = inner.info().n_vocab;
        let ends = (0..size).filter(|token| inner.is_eog(*token)).collect();
        Ok(Arc::new(ScriptedModel { inner, script: Arc::clone(&self.0), ends }))
    }

    fn host_buffer(&self, len: usize) -> HostBuffer {
        LlamaBackend.host_buffer(len)
    }
}

struct ScriptedModel {
    inner: Arc<dyn Model>,
    script: Script,
    ends: Vec<Token>,
}

impl ModelDouble for ScriptedModel {
    fn inner(&self) -> &dyn Model {
        &*self.inner
    }

    fn grammar(&self, options: &GrammarOptions) -> Result<Box<dyn Grammar>, GrammarError> {
        let inner = self.inner.new_grammar(options)?;
        let script = self.script.lock().unwrap().clone();
        Ok(Box::new(ScriptedGrammar { inner, script, place: 0, ends: self.ends.clone(), wanted: None }))
    }
}

/// A grammar that allows the next token of the script only, or the next but one, if the inner grammar does.
struct ScriptedGrammar {
    inner: Box<dyn Grammar>,
    script: Vec<Token>,
    place: usize,
    ends: Vec<Token>,
    /// The token of the script that was asked for last; others do not move the script on.
    wanted: Option<Token>,
}

impl ScriptedGrammar {
    /// The first token of the script that may come now, then the tokens that end a reply.
    fn find_wanted(&mut self) -> Result<Option<Token>, GrammarError> {
        let ahead = self.script.iter().skip(self.place).take(LOOK_AHEAD).chain(&self.ends);
        let mut asked: Vec<Candidate> = Vec::new();
        for token in ahead {
            if !asked.iter().any(|known| known.token == *token) {
                asked.push(Candidate { token: *token, logit: 1.0, p: 0.0 });
            }
        }
        self.inner.constrain(&mut asked)?;
        Ok(asked.iter().find(|one| one.logit.is_finite()).map(|one| one.token))
    }
}

impl Grammar for ScriptedGrammar {
    fn constrain(&mut self, candidates: &mut [Candidate]) -> Result<(), GrammarError> {
        self.wanted = self.find_wanted()?;
        match self.wanted {
            None => self.inner.constrain(candidates),
            Some(wanted) => {
                for other in candidates.iter_mut().filter(|one| one.token != wanted) {
                    other.logit = f32::NEG_INFINITY;
                }
                Ok(())
            }
        }
    }

    fn accept(&mut self, token: Token) -> Result<(), GrammarError> {
        if self.wanted.take() == Some(token)
            && let Some(found) = self.script.iter().skip(self.place).take(LOOK_AHEAD).position(|one| *one == token)
        {
            self.place += found + 1;
        }
        self.inner.accept(token)
    }

    fn reset(&mut self) {
        self.inner.reset();
        self.place = 0;
    }

    fn duplicate(&self) -> Option<Box<dyn Grammar>> {
        let (script, place, ends, wanted) = (self.script.clone(), self.place, self.ends.clone(), self.wanted);
        Some(Box::new(Self { inner: self.inner.duplicate()?, script, place, ends, wanted }))
    }
}
