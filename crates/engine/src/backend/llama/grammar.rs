//! Grammars in progress, and JSON schemas turned into grammars.
//!
//! Made by `Model::new_grammar`, driven by the sampler of one request. llama.cpp throws when a grammar has no way to
//! go on and aborts the process when an end token comes too early, so a token is only accepted after the grammar was
//! asked whether it allows it, and a grammar that got stuck is never asked again.

use std::ffi::{CStr, CString, c_char};
use std::ptr::NonNull;
use std::sync::Arc;

use llama_cpp_sys_4 as sys;

use super::log;
use super::model::ModelHandle;
use crate::backend::{Candidate, Grammar, GrammarError, GrammarOptions, GrammarTrigger, Token};

/// Longest grammar or schema text; a text of this size already takes seconds to compile.
const MAX_TEXT: usize = 4 << 20;
/// Deepest nesting of a schema; llama.cpp converts it by recursion.
const MAX_DEPTH: usize = 128;

/// A grammar in progress.
pub(super) struct LlamaGrammar {
    sampler: NonNull<sys::llama_sampler>,
    stuck: bool,
    /// The sampler points into the model's vocabulary.
    model: Arc<ModelHandle>,
}

// SAFETY: the sampler is owned by this value alone; it has no thread of its own and no thread-local state.
unsafe impl Send for LlamaGrammar {}

impl LlamaGrammar {
    pub(super) fn new(model: Arc<ModelHandle>, options: &GrammarOptions) -> Result<Self, GrammarError> {
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
        check_patterns(&model, &patterns)?;
        let mut pointers: Vec<*const c_char> = patterns.iter().map(|pattern| pattern.as_ptr()).collect();
        let (sampler, reason) = log::collect(|| {
            // SAFETY: the texts outlive the call and are copied; a text that does not parse yields null; the patterns
            // are known to compile.
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

impl Grammar for LlamaGrammar {
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

impl Drop for LlamaGrammar {
    fn drop(&mut self) {
        // SAFETY: the sampler is freed once.
        unsafe { sys::llama_sampler_free(self.sampler.as_ptr()) }
    }
}

/// A pattern that does not compile would throw where nothing catches it, so it is compiled behind a shim first.
fn check_patterns(model: &ModelHandle, patterns: &[CString]) -> Result<(), GrammarError> {
    /// `common_grammar_trigger_type`: pattern.
    const PATTERN: i32 = 2;
    for pattern in patterns {
        // SAFETY: the parameters are made, used and freed here; every call catches its exceptions.
        let compiles = unsafe {
            let params = sys::common_shim_sampler_params_init();
            if params.is_null() {
                return Err(GrammarError::Invalid { reason: "out of memory".to_owned() });
            }
            sys::common_shim_sampler_params_set_grammar(params, c"root ::= \"a\"".as_ptr(), 1, true);
            sys::common_shim_sampler_params_add_grammar_trigger(params, PATTERN, pattern.as_ptr(), -1);
            let sampler = sys::common_shim_sampler_init(model.as_ptr(), params);
            sys::common_shim_sampler_params_free(params);
            let compiles = !sampler.is_null();
            if compiles {
                sys::common_shim_sampler_free(sampler);
            }
            compiles
        };
        if !compiles {
            let reason = format!("the trigger {pattern:?} is no regular expression: {}", last_error());
            return Err(GrammarError::Invalid { reason });
        }
    }
    Ok(())
}

/// Turns a JSON schema into GBNF.
pub(super) fn json_schema_to_grammar(schema: &str) -> Result<String, GrammarError> {
    let bad = |reason: String| GrammarError::BadSchema { reason };
    if nesting(schema) > MAX_DEPTH {
        return Err(bad(format!("it is nested more than {MAX_DEPTH} levels deep")));
    }
    let text = c_text(schema, "schema").map_err(|error| bad(error.to_string()))?;
    sized_text(|buffer, len, needed| {
        // SAFETY: the schema is NUL-terminated, the buffer has `len` bytes; exceptions are caught in the shim.
        unsafe { sys::common_json_schema_to_grammar_c(text.as_ptr(), true, buffer, len, needed) }
    })
    .map_err(bad)
}

/// Calls a shim that says how many bytes it needs, then writes them; the error is the shim's own.
pub(super) fn sized_text(call: impl FnMut(*mut c_char, usize, *mut usize) -> i32) -> Result<String, String> {
    let mut bytes = sized_bytes(4096, call)?;
    // The shims end their texts with a NUL.
    bytes.pop();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// As [`sized_text`], with the raw bytes, and a guess of how many there will be.
pub(super) fn sized_bytes(
    guess: usize,
    mut call: impl FnMut(*mut c_char, usize, *mut usize) -> i32,
) -> Result<Vec<u8>, String> {
    let mut needed = 0;
    let mut buffer = vec![0u8; guess];
    for _ in 0..2 {
        let status = call(buffer.as_mut_ptr().cast(), buffer.len(), &raw mut needed);
        match status {
            0 => {
                buffer.truncate(needed);
                return Ok(buffer);
            }
            1 => buffer.resize(needed, 0),
            _ => return Err(last_error()),
        }
    }
    Err("the size of the result changed between two calls".to_owned())
}

/// What the last failed shim call on this thread said.
pub(super) fn last_error() -> String {
    // SAFETY: the pointer is never null and valid until the next shim call on this thread.
    let text = unsafe { CStr::from_ptr(sys::llama_shim_last_error()) }.to_string_lossy();
    if text.is_empty() { "llama.cpp gave no reason".to_owned() } else { text.chars().take(1000).collect() }
}

fn c_text(text: &str, what: &str) -> Result<CString, GrammarError> {
    if text.len() > MAX_TEXT {
        return Err(GrammarError::Invalid { reason: format!("the {what} has more than {MAX_TEXT} bytes") });
    }
    CString::new(text).map_err(|_| GrammarError::Invalid { reason: format!("the {what} has a NUL byte") })
}

/// Deepest nesting of brackets outside strings.
pub(super) fn nesting(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_ignores_brackets_in_strings() {
        assert_eq!(nesting(r#"{"a": "[[[[", "b\"": [1, {"c": 2}]}"#), 3);
        assert_eq!(nesting(&"[".repeat(500)), 500);
    }

    #[test]
    fn a_schema_becomes_a_grammar_and_a_wrong_one_an_error() {
        let grammar =
            json_schema_to_grammar(r#"{"type": "object", "properties": {"n": {"type": "integer"}}}"#).unwrap();
        assert!(grammar.contains("root ::="), "{grammar}");
        assert!(matches!(json_schema_to_grammar("{not json"), Err(GrammarError::BadSchema { .. })));
        let deep = format!("{}{}", r#"{"items":"#.repeat(5000), "{}".to_owned() + &"}".repeat(5000));
        assert!(matches!(json_schema_to_grammar(&deep), Err(GrammarError::BadSchema { .. })));
        assert!(matches!(json_schema_to_grammar(r##"{"$ref": "#/nowhere"}"##), Err(GrammarError::BadSchema { .. })));
    }
}
