//! llama.cpp's own grammars, for tests: what ours must agree with.
//!
//! Used by the tests of `matcher.rs` and by nothing else. llama.cpp throws when a grammar has no way to go on and aborts
//! the process when an end token comes too early, so a token is only accepted after the grammar was asked whether it
//! allows it, and a grammar that got stuck is never asked again.

use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::Arc;

use llama_cpp_sys_4 as sys;

use crate::backend::llama::chat::schema::c_text;
use crate::backend::llama::handle::ModelHandle;
use crate::backend::llama::log;
use crate::backend::{Candidate, Grammar, GrammarError, GrammarOptions, GrammarTrigger, Token};

/// A grammar in progress, as llama.cpp has it.
pub(in crate::backend::llama) struct ReferenceGrammar {
    sampler: NonNull<sys::llama_sampler>,
    stuck: bool,
    /// The sampler points into the model's vocabulary.
    model: Arc<ModelHandle>,
}

// SAFETY: the sampler is owned by this value alone; it has no thread of its own and no thread-local state.
unsafe impl Send for ReferenceGrammar {}

impl ReferenceGrammar {
    pub(in crate::backend::llama) fn new(
        model: Arc<ModelHandle>,
        options: &GrammarOptions,
    ) -> Result<Self, GrammarError> {
        let text = c_text(&options.text, "grammar")?;
        let root = if options.root.is_empty() { "root" } else { options.root.as_str() };
        let root = c_text(root, "start rule")?;
        if options.text.trim().is_empty() {
            return Err(GrammarError::Invalid { reason: "the text is empty".to_owned() });
        }
        let mut patterns = Vec::new();
        let mut tokens = Vec::new();
        for trigger in &options.triggers {
            match trigger {
                GrammarTrigger::Pattern(pattern) => patterns.push(c_text(pattern, "trigger")?),
                GrammarTrigger::Token(token) => tokens.extend(model.checked_token(*token)),
            }
        }
        if options.lazy && patterns.is_empty() && tokens.is_empty() {
            return Err(GrammarError::Invalid { reason: "a lazy grammar needs a trigger".to_owned() });
        }
        let mut pointers: Vec<*const c_char> = patterns.iter().map(|pattern| pattern.as_ptr()).collect();
        let (sampler, reason) = log::collect(|| {
            // SAFETY: the texts outlive the call and are copied; a text that does not parse yields null; the
            // patterns of the tests compile.
            unsafe {
                if options.lazy {
                    sys::llama_sampler_init_grammar_lazy_patterns(
                        model.vocab(),
                        text.as_ptr(),
                        root.as_ptr(),
                        pointers.as_mut_ptr(),
                        pointers.len(),
                        tokens.as_ptr(),
                        tokens.len(),
                    )
                } else {
                    sys::llama_sampler_init_grammar(model.vocab(), text.as_ptr(), root.as_ptr())
                }
            }
        });
        let sampler = NonNull::new(sampler).ok_or(GrammarError::Invalid { reason })?;
        Ok(Self { sampler, stuck: false, model })
    }

    fn apply(&mut self, candidates: &mut [Candidate]) {
        let mut array = sys::llama_token_data_array {
            // `Candidate` has the same three fields in the same order.
            data: candidates.as_mut_ptr().cast(),
            size: candidates.len(),
            selected: -1,
            sorted: false,
        };
        // SAFETY: the array borrows `candidates` for the call; its tokens are the vocabulary's; the grammar still has
        // a way to go on, which is what llama.cpp asserts.
        unsafe { sys::llama_sampler_apply(self.sampler.as_ptr(), &raw mut array) }
    }
}

const _: () = assert!(
    size_of::<Candidate>() == size_of::<sys::llama_token_data>()
        && align_of::<Candidate>() == align_of::<sys::llama_token_data>()
);

impl Grammar for ReferenceGrammar {
    fn constrain(&mut self, candidates: &mut [Candidate]) -> Result<(), GrammarError> {
        let n_vocab = self.model.n_vocab();
        if self.stuck || candidates.iter().any(|candidate| candidate.token >= n_vocab) {
            return Err(GrammarError::Stuck);
        }
        self.apply(candidates);
        Ok(())
    }

    fn accept(&mut self, token: Token) -> Result<(), GrammarError> {
        let known = self.model.checked_token(token).filter(|_| !self.stuck).ok_or(GrammarError::Stuck)?;
        let mut asked = [Candidate { token, logit: 0.0, p: 0.0 }];
        self.apply(&mut asked);
        let allowed = asked.iter().all(|candidate| candidate.logit == 0.0);
        // SAFETY: the sampler is valid and the token the vocabulary's; exceptions are caught in the shim.
        if !allowed || unsafe { sys::common_shim_sampler_accept_raw(self.sampler.as_ptr(), known) } != 0 {
            self.stuck = true;
            return Err(GrammarError::Stuck);
        }
        Ok(())
    }

    fn reset(&mut self) {
        // SAFETY: the sampler is valid; the text compiled before and compiles again.
        unsafe { sys::llama_sampler_reset(self.sampler.as_ptr()) }
        self.stuck = false;
    }

    fn duplicate(&self) -> Option<Box<dyn Grammar>> {
        // SAFETY: the sampler is valid and `&self` keeps it unchanged meanwhile.
        let sampler = NonNull::new(unsafe { sys::llama_sampler_clone(self.sampler.as_ptr()) })?;
        Some(Box::new(Self { sampler, stuck: self.stuck, model: Arc::clone(&self.model) }))
    }
}

impl Drop for ReferenceGrammar {
    fn drop(&mut self) {
        // SAFETY: the sampler is freed once.
        unsafe { sys::llama_sampler_free(self.sampler.as_ptr()) }
    }
}
