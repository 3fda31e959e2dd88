//! JSON schemas and grammar texts, turned into grammars by llama.cpp and asked for the first token.
//!
//! Whatever comes is refused or compiles, within the time that `run.sh` allows. Input: one byte for the sort of text, then
//! choices for a schema, or the text itself.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use poncho_engine::backend::{Candidate, GrammarOptions, Model};
use poncho_fuzz::json::Choices;
use poncho_fuzz::models::{served, tiny};
use poncho_testkit::{ModelKind, model_path};

/// Schemas are bounded by the engine, grammars by the backend.
static ENGINE: LazyLock<poncho_engine::Model> = LazyLock::new(|| served(&model_path(ModelKind::Attention)));
static MODEL: LazyLock<Arc<dyn Model>> = LazyLock::new(|| tiny(ModelKind::Attention));

fuzz_target!(|data: &[u8]| {
    let Some((&sort, rest)) = data.split_first() else { return };
    let text = match sort % 4 {
        0 => {
            let Ok(text) = std::str::from_utf8(rest) else { return };
            compile(text);
            return;
        }
        1 => {
            let Ok(text) = std::str::from_utf8(rest) else { return };
            text.to_owned()
        }
        _ => Choices::new(rest).schema(6).to_string(),
    };
    if let Ok(grammar) = ENGINE.json_schema_to_grammar(&text) {
        compile(&grammar);
    }
});

fn compile(text: &str) {
    let options = GrammarOptions { text: text.to_owned(), ..GrammarOptions::default() };
    let Ok(mut grammar) = MODEL.new_grammar(&options) else { return };
    let n_vocab = MODEL.info().n_vocab;
    let mut candidates: Vec<Candidate> = (0..n_vocab).map(|token| Candidate { token, logit: 0.0, p: 0.0 }).collect();
    if grammar.constrain(&mut candidates).is_err() {
        return;
    }
    if let Some(allowed) = candidates.iter().find(|candidate| candidate.logit > f32::NEG_INFINITY) {
        // A token that the grammar allows is one that it accepts.
        grammar.accept(allowed.token).expect("an allowed token is accepted");
    }
}
