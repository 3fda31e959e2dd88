//! Tests of `request.rs`: each refusal names its field and its numbers, advice is repaired, the edges are taken.
//!
//! Run by `cargo test` only. They must never accept a request that the sampler or the decode call would choke on.

use super::*;

const LIMITS: ModelLimits = ModelLimits { context: 8, vocab: 100, sequences: 1, exact: false, queue: 4 };

fn refusal(change: impl FnOnce(&mut Request)) -> Option<RequestError> {
    let mut request = Request::new(vec![1, 2, 3]);
    change(&mut request);
    request.validate(&LIMITS).err()
}

#[test]
fn a_plain_request_is_taken() {
    assert_eq!(refusal(|_| {}), None);
    assert_eq!(refusal(|request| request.sampling = Sampling::greedy()), None);
}

#[test]
fn numbers_outside_their_range_are_refused_by_name() {
    type Change = fn(&mut Sampling, f32);
    let cases: [(Field, Change, &[f32], &[f32]); 6] = [
        (Field::Temperature, |s, v| s.temperature = v, &[-0.1], &[0.0, 5.0]),
        (Field::TopP, |s, v| s.top_p = v, &[-0.1, 1.1], &[0.0, 1.0]),
        (Field::MinP, |s, v| s.min_p = v, &[-0.1, 1.1], &[0.0, 1.0]),
        (Field::RepetitionPenalty, |s, v| s.repetition_penalty = v, &[0.0, -1.0], &[0.5, 2.0]),
        (Field::FrequencyPenalty, |s, v| s.frequency_penalty = v, &[], &[-2.0, 2.0]),
        (Field::PresencePenalty, |s, v| s.presence_penalty = v, &[], &[-2.0, 2.0]),
    ];
    for (field, set, bad, good) in cases {
        for value in bad.iter().copied().chain([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]) {
            let error = refusal(|request| set(&mut request.sampling, value));
            assert!(
                matches!(error, Some(RequestError::OutOfRange { field: named, .. }) if named == field),
                "{field} {value}: {error:?}"
            );
        }
        for &value in good {
            assert_eq!(refusal(|request| set(&mut request.sampling, value)), None, "{field} {value}");
        }
    }
}

#[test]
fn a_prompt_must_exist_and_fit_with_room_for_a_token() {
    assert_eq!(refusal(|request| request.tokens.clear()), Some(RequestError::Empty { field: Field::Tokens }));
    assert_eq!(refusal(|request| request.tokens = vec![1; 7]), None);
    assert_eq!(
        refusal(|request| request.tokens = vec![1; 8]),
        Some(RequestError::PromptTooLong { tokens: 8, limit: 7 })
    );
    assert_eq!(refusal(|request| (request.tokens, request.mode) = (vec![1; 8], Mode::PrefillOnly)), None);
}

#[test]
fn tokens_that_the_vocabulary_lacks_are_refused_everywhere() {
    let unknown = |field, position| Some(RequestError::UnknownToken { field, position, token: 100, vocab: 100 });
    assert_eq!(refusal(|request| request.tokens = vec![99, 100]), unknown(Field::Tokens, 1));
    assert_eq!(refusal(|request| request.sampling.logit_bias = vec![(100, 1.0)]), unknown(Field::LogitBias, 0));
    let gbnf = || GrammarSource::Gbnf { text: "root ::= \"a\"".into(), root: "root".into() };
    for (triggers, accepted) in [(vec![Trigger::Token(100)], vec![]), (vec![], vec![100])] {
        let grammar = Grammar { source: gbnf(), triggers, accepted };
        assert_eq!(refusal(|request| request.grammar = Some(grammar)), unknown(Field::Grammar, 0));
    }
}

#[test]
fn a_bias_may_ban_a_token_but_not_break_the_softmax() {
    assert_eq!(refusal(|request| request.sampling.logit_bias = vec![(1, f32::NEG_INFINITY), (2, -100.0)]), None);
    for bad in [f32::INFINITY, f32::NAN] {
        let error = refusal(|request| request.sampling.logit_bias = vec![(1, 0.0), (2, bad)]);
        assert!(matches!(error, Some(RequestError::OutOfRange { field: Field::LogitBias, .. })), "{error:?}");
    }
}

#[test]
fn stops_are_bounded_and_never_empty() {
    assert_eq!(refusal(|request| request.stop = vec!["x".into(); MAX_STOPS]), None);
    let too_many = RequestError::TooMany { field: Field::Stop, count: MAX_STOPS + 1, limit: MAX_STOPS };
    assert_eq!(refusal(|request| request.stop = vec!["x".into(); MAX_STOPS + 1]), Some(too_many));
    assert_eq!(refusal(|request| request.stop = vec![String::new()]), Some(RequestError::Empty { field: Field::Stop }));
    let long = "x".repeat(MAX_STOP_BYTES + 1);
    let too_long = RequestError::TooLong { field: Field::Stop, bytes: MAX_STOP_BYTES + 1, limit: MAX_STOP_BYTES };
    assert_eq!(refusal(|request| request.stop = vec![long]), Some(too_long));
}

#[test]
fn a_grammar_with_a_zero_byte_would_be_cut_short_and_is_refused() {
    let source = GrammarSource::JsonSchema("{\0}".into());
    let grammar = Grammar { source, triggers: vec![], accepted: vec![] };
    assert_eq!(
        refusal(|request| request.grammar = Some(grammar)),
        Some(RequestError::ZeroByte { field: Field::Grammar })
    );
}

#[test]
fn nothing_to_generate_points_to_prefill_only() {
    assert_eq!(refusal(|request| request.max_tokens = Some(0)), Some(RequestError::NothingToGenerate));
    assert_eq!(refusal(|request| (request.max_tokens, request.mode) = (Some(0), Mode::PrefillOnly)), None);
}

#[test]
fn sessions_logprobs_and_exact_are_checked() {
    assert_eq!(refusal(|request| request.mode = Mode::Continue), Some(RequestError::SessionMissing));
    assert_eq!(
        refusal(|request| request.session_id = Some(String::new())),
        Some(RequestError::Empty { field: Field::SessionId })
    );
    assert_eq!(refusal(|request| request.logprobs = Some(20)), None);
    let too_many = RequestError::TooMany { field: Field::Logprobs, count: 21, limit: 20 };
    assert_eq!(refusal(|request| request.logprobs = Some(21)), Some(too_many));
    assert_eq!(refusal(|request| request.exact = true), Some(RequestError::ExactUnavailable));
}

#[test]
fn hints_are_advice_and_are_repaired() {
    let mut request = Request::new(vec![1; 6]);
    request.boundary_hints = vec![5, 0, 3, 9, 3, 6, 7];
    assert_eq!(request.validate(&LIMITS), Ok(()));
    assert_eq!(request.boundary_hints, [3, 5, 6]);
}

#[test]
fn the_context_bounds_the_reply() {
    let mut request = Request::new(vec![1; 5]);
    assert_eq!(request.generation_limit(&LIMITS, 5), 3);
    request.max_tokens = Some(2);
    assert_eq!(request.generation_limit(&LIMITS, 5), 2);
    assert_eq!(request.generation_limit(&LIMITS, 9), 0);
    request.mode = Mode::PrefillOnly;
    assert_eq!(request.generation_limit(&LIMITS, 5), 0);
}

#[test]
fn a_seed_keeps_its_value_and_never_means_choose_yourself() {
    let seeded = |seed| Sampling { seed, ..Sampling::default() }.seed32(77);
    assert_eq!(seeded(Some(42)), 42);
    assert_eq!(seeded(None), 77);
    assert_ne!(seeded(Some(u64::from(u32::MAX))), u32::MAX);
    assert_ne!(seeded(Some(1 << 32)), seeded(Some(0)), "the upper half counts");
}

#[test]
fn the_models_reasoning_fills_only_what_a_request_leaves_open() {
    let filled = |reasoning: Reasoning, thinking, thinking_budget| {
        let mut request = Request { thinking, thinking_budget, ..Request::default() };
        request.fill_reasoning(reasoning);
        (request.thinking, request.thinking_budget)
    };
    let off = Reasoning { is_off: true, budget: Some(7) };
    assert_eq!(filled(off, Thinking::Default, None), (Thinking::Off, Some(7)));
    assert_eq!(filled(off, Thinking::On, Some(3)), (Thinking::On, Some(3)));
    assert_eq!(filled(off, Thinking::On, None), (Thinking::On, Some(7)), "the limit holds for those who ask to think");
    assert_eq!(filled(Reasoning::default(), Thinking::Default, None), (Thinking::Default, None));
}
