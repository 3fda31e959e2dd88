//! Our grammars beside llama.cpp's: the same tokens are allowed after the same tokens.

use poncho_testkit::{ModelKind, model_path};

use super::*;
use crate::backend::llama::chat::reference_grammar::ReferenceGrammar;
use crate::backend::llama::chat::schema::json_schema_to_grammar;
use crate::backend::llama::model::LlamaModel;
use crate::backend::{GrammarTrigger, ModelOptions};

fn model() -> LlamaModel {
    crate::backend::llama::devices::start_library();
    LlamaModel::load(&ModelOptions::new(model_path(ModelKind::Attention))).unwrap()
}

fn allowed(grammar: &mut dyn Grammar, vocabulary: u32) -> Vec<Token> {
    let mut all: Vec<Candidate> = (0..vocabulary).map(|token| Candidate { token, logit: 0.0, p: 0.0 }).collect();
    grammar.constrain(&mut all).unwrap();
    all.iter().filter(|candidate| candidate.logit == 0.0).map(|candidate| candidate.token).collect()
}

/// Walks both grammars along the same tokens, those that a seed chooses, and compares what they allow at every step.
fn walk_together(model: &LlamaModel, options: &GrammarOptions, seed: u64) {
    let vocabulary = model.handle.n_vocab();
    let ours = LlamaGrammar::new(&model.handle, options);
    let theirs = ReferenceGrammar::new(Arc::clone(&model.handle), options);
    let (Ok(mut ours), Ok(mut theirs)) = (ours, theirs) else { panic!("not taken: {}", options.text) };
    let mut random = seed;
    let mut written = Vec::new();
    for _ in 0..40 {
        let (mine, other) = (allowed(&mut ours, vocabulary), allowed(&mut theirs, vocabulary));
        assert_eq!(mine, other, "{} after {written:?}", options.text);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let count = u64::try_from(mine.len()).unwrap();
        let Some(at) = (random >> 33).checked_rem(count) else { return };
        let token = mine[usize::try_from(at).unwrap()];
        written.push(token);
        assert_eq!(ours.accept(token), theirs.accept(token), "{} at the end of {written:?}", options.text);
        if ours.over.is_some() || model.handle.pieces().is_eog(token) {
            return;
        }
    }
}

const GRAMMARS: [&str; 12] = [
    "root ::= [0-9]+ \"-\" [a-f]+ \".\"",
    "root ::= \"a\" (\"b\" | \"cd\")* \"e\"? | \"a\" [^b-x]{2,5}",
    "root ::= (\"x\" | \"xy\" | \"xyz\")* [^\\x00-\\x7f]? .{0,3}",
    "root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]{1,3} | \"(\" expr \")\"",
    "root ::= \"é\" [à-ü]* \"€\"? [^é]* \"😀\"",
    "root ::= x{0,3} y{2} z{1,}\nx ::= [a-c] | \n  [d-f]\ny ::= (x \"!\")?\nz ::= \".\"",
    "# a comment\nroot ::= \"\\\"(|\\x41\" [\\]\\-\\\\] \"\\u00e9\" \"\" [] \"z\"*",
    "root ::= a b c \"end\"\na ::= \"1\"? \nb ::= a a\nc ::= b | \"2\" c",
    "root ::= <[5]> [a-z]* !<[7]> \"q\"",
    "root ::= \"<\" [^>]+ \">\" root \"</\" [^>]+ \">\" | [a-z]",
    "root ::= \"[\" root \"]\" | \"[\" other \"]\" | \"x\"\nother ::= root \"y\" | \"z\"?",
    "root ::= . . .",
];

const SCHEMAS: [&str; 8] = [
    r#"{"type":"object"}"#,
    r#"{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string","maxLength":5},"c":{"enum":["x","xy",true,null]}},"required":["b"]}"#,
    r#"{"type":"array","items":{"anyOf":[{"type":"number"},{"type":"null"},{"type":"array","items":{"type":"boolean"}}]},"minItems":1,"maxItems":3}"#,
    r##"{"$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"}}}},"$ref":"#/$defs/n"}"##,
    r#"{"type":"string","pattern":"^(ab|a)?[c-e]{1,3}\\.x*$"}"#,
    r#"{"type":"integer","minimum":-12,"maximum":345}"#,
    r#"{"type":"object","properties":{"name":{"type":"string","format":"date"}},"additionalProperties":{"type":"boolean"}}"#,
    r#"{"allOf":[{"properties":{"a":{"const":1}}},{"properties":{"b":{"type":["string","null"]}}}]}"#,
];

#[test]
fn the_same_tokens_are_allowed_as_by_llama_cpp() {
    let model = model();
    let schemas = SCHEMAS.map(|schema| json_schema_to_grammar(schema).unwrap());
    let texts = GRAMMARS.iter().map(|text| (*text).to_owned()).chain(schemas);
    for text in texts {
        for seed in 0..6 {
            walk_together(&model, &GrammarOptions { text: text.clone(), ..GrammarOptions::default() }, seed);
        }
    }
}

#[test]
fn lazy_grammars_wake_where_those_of_llama_cpp_do() {
    let model = model();
    let triggers = [
        GrammarTrigger::Pattern("[ab]+(c)".to_owned()),
        GrammarTrigger::Pattern("^x".to_owned()),
        GrammarTrigger::Pattern("e(?!f)".to_owned()),
        GrammarTrigger::Token(70),
    ];
    for trigger in triggers {
        let text = "root ::= . [0-9]* \"e\"? [a-z]*".to_owned();
        let options = GrammarOptions { text, lazy: true, triggers: vec![trigger], ..GrammarOptions::default() };
        for seed in 0..40 {
            walk_together(&model, &options, seed);
        }
    }
}

/// Hardening 14.12: the ways double with every bracket. llama.cpp follows each of them.
#[test]
fn a_grammar_whose_ways_double_is_given_up_instead_of_followed() {
    let model = model();
    let text = "root ::= one | two\none ::= \"[\" root \"]\"\ntwo ::= \"[\" root \"]\" | \"x\"".to_owned();
    let mut grammar = LlamaGrammar::new(&model.handle, &GrammarOptions { text, ..GrammarOptions::default() }).unwrap();
    let pieces = model.handle.pieces();
    let bracket = (0..model.handle.n_vocab()).find(|token| pieces.text(*token) == Some(b"[")).unwrap();
    let accepted = (0..64).map(|_| grammar.accept(bracket)).position(|taken| taken == Err(GrammarError::TooCostly));
    assert!(accepted.is_some_and(|count| count > 8), "{accepted:?}");
    assert_eq!(grammar.constrain(&mut []), Err(GrammarError::TooCostly), "and it stays given up");
    grammar.reset();
    assert_eq!(grammar.accept(bracket), Ok(()));
}

/// Hardening 14.12: 4,000 strings cost llama.cpp 0.65 s for each token, because every candidate is compared with each.
#[test]
fn an_enum_of_many_strings_costs_little_for_each_token() {
    let model = model();
    let words: Vec<String> = (0..4_000).map(|word| format!("\"word-{word}-{}\"", word * 7919 % 4001)).collect();
    let text = format!("root ::= {}", words.join(" | "));
    let mut grammar = LlamaGrammar::new(&model.handle, &GrammarOptions { text, ..GrammarOptions::default() }).unwrap();
    let vocabulary = model.handle.n_vocab();
    for _ in 0..6 {
        let before = grammar.machine.spent();
        let next = allowed(&mut grammar, vocabulary);
        let token = *next.last().unwrap();
        grammar.accept(token).unwrap();
        let spent = grammar.machine.spent().saturating_sub(before);
        assert!(spent < 200_000, "{spent} units for one token");
    }
}

/// The costliest schemas that are let through are converted, read and followed.
#[test]
fn schemas_at_their_bounds_become_grammars_that_can_be_used() {
    use serde_json::{Map, Value, json};
    let model = model();
    let object = |count: usize, name: &dyn Fn(usize) -> String| -> Value {
        let properties: Map<String, Value> = (0..count).map(|at| (name(at), json!({"type": "string"}))).collect();
        json!({"type": "object", "properties": properties})
    };
    let plain = |at: usize| format!("property_{at}");
    let mut required = object(1_000, &plain);
    required["required"] = (0..1_000).map(plain).collect();
    let mut open = object(150, &plain);
    open["additionalProperties"] = json!({"type": "integer"});
    let words: Vec<String> = (0..1_000).map(|word| format!("word-{word}")).collect();
    let schemas = [
        ("optional", object(200, &plain)),
        ("alike", object(60, &|at| "名".repeat(at + 1))),
        ("required", required),
        ("open", open),
        ("enums", json!({"type": "array", "items": {"anyOf": vec![json!({"enum": words}); 5]}})),
        ("lengths", json!({"type": "array", "items": {"type": "string", "maxLength": 2_000}, "maxItems": 2_000})),
        ("patterns", json!({"anyOf": vec![json!({"pattern": "^(([a-z]{1,40}){1,40}x?){1,40}$"}); 100]})),
    ];
    for (name, schema) in schemas {
        crate::backend::grammar::schema::check(&schema, &mut crate::backend::grammar::schema::Used::default())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let began = std::time::Instant::now();
        let text = json_schema_to_grammar(&schema.to_string()).unwrap();
        let converted = began.elapsed();
        let options = GrammarOptions { text, ..GrammarOptions::default() };
        let mut grammar = LlamaGrammar::new(&model.handle, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let compiled = began.elapsed();
        let next = allowed(&mut grammar, model.handle.n_vocab());
        eprintln!("{name}: converted in {converted:?}, read in {compiled:?}, asked in {:?}", began.elapsed());
        assert!(!next.is_empty(), "{name}");
        for token in next.into_iter().take(4) {
            let mut copy = grammar.clone();
            copy.accept(token).unwrap_or_else(|error| panic!("{name}: {error}"));
            let after = allowed(&mut copy, model.handle.n_vocab());
            assert!(!after.is_empty() || copy.machine.is_complete(copy.state), "{name}");
        }
    }
}
