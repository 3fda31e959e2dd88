//! Long runs of one class of characters, with every pre-tokenizer that has no code of its own in llama.cpp.
//!
//! The tests of `tokenizer.rs`, `runs.rs` and `split.rs` on tiny real vocabularies.

use poncho_testkit::{ModelKind, ModelSpec, path_of};
use proptest::prelude::*;

use super::*;
use crate::backend::llama::model::LlamaModel;
use crate::backend::{LoadError, Model, ModelOptions, SpecialText};

/// What a server's blocking thread has.
const USUAL_STACK: usize = 2 << 20;

/// Every name that llama.cpp knows, by the expressions that stand behind it; the first of a line for all of them.
const PRE_TOKENIZERS: [&str; 43] = [
    "default",
    "llama-bpe",
    "gpt-2",
    "qwen2",
    "qwen35",
    "starcoder",
    "smollm",
    "glm4",
    "kimi-k2",
    "grok-2",
    "laguna",
    "k2-horizon",
    "falcon",
    "chameleon",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "hunyuan-dense",
    "joyai-llm",
    "hy_v4",
    "spark2_5",
    "afmoe",
    "flint",
    "youtu",
    "poro-chat",
    "bloom",
    "gpt3-finnish",
    "viking",
    "tekken",
    "tekken-num3",
    "pixtral",
    "gpt-4o",
    "llama4",
    "minimax-m2",
    "granite-embed-multi-97m",
    "tiny_aya",
    "bailingmoe",
    "seed-coder",
    "ufakzeka",
    "minicpm5",
    "jais-2",
    "exaone-moe",
    "superbpe",
];

fn model(pre_tokenizer: &'static str) -> LlamaModel {
    load(pre_tokenizer).unwrap()
}

fn load(pre_tokenizer: &'static str) -> Result<LlamaModel, LoadError> {
    let tiny = ModelSpec::tiny(ModelKind::Attention);
    let path = path_of(&ModelSpec { pre_tokenizer, n_layers: 1, width: 32, head_size: 32, ..tiny }).unwrap();
    crate::backend::llama::devices::start_library();
    LlamaModel::load(&ModelOptions { vocab_only: true, ..ModelOptions::new(path) })
}

fn tokens(model: &LlamaModel, text: &str) -> Result<Vec<Token>, TokenizeError> {
    let mut tokens = Vec::new();
    model.tokenize(text, TokenizeMode { add_special: true, parse_special: false }, &mut tokens)?;
    Ok(tokens)
}

/// The text of some tokens but the first, which is the mark for the start.
fn text_of(model: &LlamaModel, tokens: &[Token]) -> String {
    let mut bytes = Vec::new();
    tokens.iter().skip(1).for_each(|token| model.token_bytes(*token, SpecialText::Hide, &mut bytes));
    String::from_utf8(bytes).unwrap()
}

fn on_usual_stack(work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(USUAL_STACK).spawn(work).unwrap().join().unwrap();
}

/// Hardening 1: each of these texts ended the process.
#[test]
fn long_runs_end_no_process_with_any_pre_tokenizer() {
    on_usual_stack(|| {
        for pre in PRE_TOKENIZERS {
            let model = model(pre);
            for run in ["a", "A", "-", "+", "1", "你", "\u{301}", "😀", "a ", "aA", "a1", "\n"] {
                // Steep expressions take at most 2,000 digits or white space. A mark or a picture may count as a digit.
                let is_digit = matches!(run, "1" | "\u{301}" | "😀");
                let steep =
                    (is_digit && matches!(pre, "superbpe" | "tekken-num3")) || (run, pre) == ("\n", "deepseek-llm");
                let text = run.repeat(if steep { 2_000 } else { 20_000 });
                assert_eq!(text_of(&model, &tokens(&model, &text).unwrap()), text, "{pre} {run:?}");
            }
            let spaces = " ".repeat(if pre == "deepseek-llm" { 2_000 } else { 20_000 });
            for text in [spaces.clone(), spaces.clone() + "a", spaces + "你"] {
                assert_eq!(text_of(&model, &tokens(&model, &text).unwrap()), text, "{pre} spaces");
            }
        }
    });
}

/// Hardening 1: the longest runs that are let through to llama.cpp fit into the stack, two in one match.
#[test]
fn the_longest_runs_that_are_taken_fit_into_a_deep_stack() {
    use crate::backend::llama::text::runs::LONGEST;
    for pre in ["gpt-4o", "tekken", "deepseek-v3", "exaone-moe", "bloom", "default", "jais-2"] {
        let model = model(pre);
        let full = |run: &str| run.repeat(LONGEST);
        for text in [full("a"), full("你"), full("-") + &full("\n"), full(" ") + "x", full(" ") + &full("\n")] {
            match tokens(&model, &text) {
                Ok(tokens) => assert_eq!(text_of(&model, &tokens), text),
                Err(error) => assert!(matches!(error, TokenizeError::RunTooLong { .. }), "{pre}: {error}"),
            }
        }
    }
}

/// Hardening 1: what cannot be cut is refused with the numbers.
#[test]
fn a_run_that_is_too_long_is_cut_or_refused_and_nothing_else() {
    let gpt4o = model("gpt-4o");
    for alone in ["a", "the", "-", "=", " ", "ll"] {
        let text = alone.repeat(150_000 / alone.len());
        assert_eq!(text_of(&gpt4o, &tokens(&gpt4o, &text).unwrap()), text, "{alone:?}");
        let line = format!("before\n{text}\nafter");
        let cut = tokens(&gpt4o, &line);
        match alone {
            " " => assert_eq!(cut, Err(TokenizeError::RunTooLong { chars: 150_002, limit: 100_000 })),
            _ => assert_eq!(text_of(&gpt4o, &cut.unwrap()), line, "{alone:?}"),
        }
    }
    for mixed in ["aB", "你", "\u{301}a"] {
        let refused = tokens(&gpt4o, &mixed.repeat(200_000));
        assert!(matches!(refused, Err(TokenizeError::RunTooLong { limit: 100_000, .. })), "{mixed:?}");
    }
    let superbpe = model("superbpe");
    let refused = tokens(&superbpe, &format!("x{}", "1".repeat(3000)));
    assert_eq!(refused, Err(TokenizeError::RunTooLong { chars: 3000, limit: 2000 }));
}

/// Hardening 1: two spaces ended the process, because these words keep their spaces and llama.cpp asserts that none has
/// any.
#[test]
fn a_pre_tokenizer_that_keeps_spaces_in_words_is_refused_at_the_load() {
    assert!(matches!(load("whitespace"), Err(LoadError::Malformed { .. })));
}

/// One cut text and the same uncut, with a limit that is low enough for both to be quick.
fn compare(model: &LlamaModel, pre: &str, text: &str, mode: TokenizeMode, limit: usize) -> Option<()> {
    let inside = Inside { tokenizer: &model.tokenizer, mode: TokenizeMode { add_special: false, ..mode } };
    let limits = RunLimits::of(Some(pre)).at_most(limit);
    let whole = on_deep_stack(|| model.tokenizer.call(text, inside.mode)).unwrap().unwrap();
    match split::tokens(&inside, &limits, text) {
        Ok(cut) => {
            assert_eq!(cut, whole, "{pre}: {text:?}");
            limits.first_over(text).map(|_| ())
        }
        Err(error) => {
            assert!(matches!(error, TokenizeError::RunTooLong { .. }), "{error}");
            None
        }
    }
}

/// Hardening 1: cutting a run never changes a token.
#[test]
fn cut_texts_have_the_tokens_of_uncut_ones() {
    let words = ["a", "l", "the", "llo", "ing", "you", "-", "=", "</", "{\"", "OP", "ST", "1", "123", "x1="];
    let lines = ["", "before\n", "\n\n", "x ", "!", "é", "1", "<think>"];
    let mut random = 1_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(random >> 33).unwrap() % below
    };
    for pre in PRE_TOKENIZERS {
        let model = model(pre);
        let mut cuts = 0;
        for round in 0..80 {
            // Each word alone first, then mixtures at any place.
            let alone = words.get(round).copied();
            let pool: Vec<&str> = (0..1 + next(3)).map(|_| alone.unwrap_or(words[next(words.len())])).collect();
            let run: String = (0..200 + next(400)).map(|_| pool[next(pool.len())]).collect();
            let before = if alone.is_some() { "before\n" } else { lines[next(lines.len())] };
            let after = if alone.is_some() { "" } else { lines[next(lines.len())] };
            let text = format!("{before}{run}{after}");
            let mode = TokenizeMode { add_special: false, parse_special: next(2) == 0 };
            cuts += usize::from(compare(&model, pre, &text, mode, 200 + next(200)).is_some());
        }
        let has_runs = RunLimits::of(Some(pre)) != RunLimits::none();
        assert!(cuts > 0 || !has_runs || pre == "chameleon", "{pre}: nothing was ever cut");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Hardening 1: the same for runs of anything.
    #[test]
    fn a_cut_run_of_any_characters_has_the_tokens_of_the_uncut_one(
        run in prop_oneof![
            "[a-z]{300,700}", "[lthe]{300,700}", "[A-Z]{300,700}", "[-=+<>/]{300,700}", "[0-9]{300,700}",
            " {300,700}", "[a-zA-Z0-9=]{300,700}", "[ -~]{300,700}",
        ],
        before in "(|\n|x\n|x )", after in "(|\n|\nx|é| x)", limit in 200_usize..300,
    ) {
        for pre in ["gpt-4o", "tekken-num3", "deepseek-v3", "bloom", "default"] {
            let model = cached(pre);
            let text = format!("{before}{run}{after}");
            let mode = TokenizeMode { add_special: false, parse_special: false };
            compare(model, pre, &text, mode, limit);
        }
    }

    /// Hardening 13: the bound is never above the number of tokens.
    #[test]
    fn a_text_never_has_fewer_tokens_than_its_size_says(
        text in prop_oneof![".{0,300}", "[ \n\t]{0,300}", "(<\\|im_start\\|>|<think>| the|    ){0,60}"],
        add_special in any::<bool>(), parse_special in any::<bool>(),
    ) {
        for pre in ["gpt-2", "gpt-4o", "default", "superbpe"] {
            let model = cached(pre);
            let mut tokens = Vec::new();
            model.tokenize(&text, TokenizeMode { add_special, parse_special }, &mut tokens).unwrap();
            prop_assert!(model.least_tokens(&text) <= tokens.len(), "{pre}: {text:?}");
        }
    }
}

/// A model of a pre-tokenizer, loaded once.
fn cached(pre: &'static str) -> &'static LlamaModel {
    use std::collections::HashMap;
    use std::sync::Mutex;
    static MODELS: Mutex<Option<HashMap<&'static str, &'static LlamaModel>>> = Mutex::new(None);
    let mut models = MODELS.lock().unwrap();
    models.get_or_insert_default().entry(pre).or_insert_with(|| Box::leak(Box::new(model(pre))))
}

/// Hardening 13: a bound that is worth something.
#[test]
fn the_size_of_a_text_says_how_many_tokens_it_has_at_least() {
    let model = model("gpt-2");
    let longest = model.tokenizer.reach();
    assert!(longest.is_complete && !longest.strips, "{longest:?}");
    assert!((10..40).contains(&longest.longest), "{longest:?}");
    assert!(model.least_tokens(&"a".repeat(4_000_000)) >= 100_000);
    assert_eq!(model.least_tokens(""), 0);
}
