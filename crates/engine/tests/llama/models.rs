//! What is asked of a model besides a reply, on real llama.cpp: adapters, grammars, verifying, embeddings, loading.

use std::sync::Arc;

use poncho_cache::{HitKind, QuantType};
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{ChatRequest, FlashAttention, KvLayout, SpecialText, TokenizeMode};
use poncho_engine::{
    Engine, EngineError, FingerprintSource, FinishReason, Grammar, GrammarSource, Model, ModelConfig, Request,
    Sampling, StreamEvent,
};
use poncho_testkit::{ModelKind, ModelSpec, adapter_path, model_path, write_split_model};

use crate::llama::real::{KINDS, config, load, trace, traced};
use crate::support::{greedy, memory_cache, prompt};

#[test]
fn adapters_split_the_namespace_and_a_request_in_flight_keeps_its_own() {
    let cache = memory_cache();
    let model = load(config(ModelKind::Attention, KvLayout::Split, 4), &cache);
    let tokens = prompt(1, 80);
    let plain = model.complete(traced(&tokens, 6)).unwrap();

    // A long reply is under way while the adapter is attached.
    let mut under_way = model.submit(traced(&prompt(2, 60), 200)).unwrap();
    while !matches!(under_way.next_blocking(), Some(StreamEvent::Token { .. })) {}
    let adapter = model.load_adapter(&adapter_path()).unwrap();
    let adapted = model.complete(traced(&tokens, 6)).unwrap();
    assert_eq!(adapted.hit, HitKind::Cold, "rows without the adapter are not its rows");
    assert_ne!(trace(&adapted), trace(&plain));
    let again = model.complete(traced(&tokens, 6)).unwrap();
    assert_ne!(again.hit, HitKind::Cold);
    assert_eq!(trace(&again), trace(&adapted));

    model.set_adapter_scale(adapter, 0.5).unwrap();
    let scaled = model.complete(traced(&tokens, 6)).unwrap();
    assert_eq!(scaled.hit, HitKind::Cold, "another strength, other rows");
    assert_ne!(trace(&scaled), trace(&adapted));
    assert_eq!(model.adapters().len(), 1);
    model.unload_adapter(adapter).unwrap();
    model.unload_adapter(adapter).unwrap();
    assert!(matches!(model.set_adapter_scale(adapter, 1.0), Err(EngineError::UnknownAdapter { .. })));
    let back = model.complete(traced(&tokens, 6)).unwrap();
    assert_ne!(back.hit, HitKind::Cold);
    assert_eq!(trace(&back), trace(&plain));

    let undisturbed = load(config(ModelKind::Attention, KvLayout::Split, 4), &memory_cache());
    let expected = undisturbed.complete(traced(&prompt(2, 60), 200)).unwrap().generated;
    assert_eq!(under_way.wait().unwrap().generated, expected, "the request in flight never saw the adapter");
}

#[test]
fn a_grammar_constrains_every_kind_to_valid_output() {
    let digits = Grammar {
        source: GrammarSource::Gbnf { text: "root ::= [0-9]+ \"-\" [a-f]+ \".\"".to_owned(), root: "root".to_owned() },
        triggers: Vec::new(),
        accepted: Vec::new(),
    };
    for kind in KINDS {
        let model = load(config(kind, KvLayout::Unified, 2), &memory_cache());
        for seed in 0..4 {
            let request = Request {
                max_tokens: Some(60),
                sampling: Sampling { seed: Some(seed), ..Sampling::default() },
                grammar: Some(digits.clone()),
                ..Request::new(prompt(1, 40))
            };
            let reply = model.complete(request).unwrap();
            let (number, rest) = reply.reply.split_once('-').unwrap_or((&reply.reply, ""));
            assert!(number.bytes().all(|byte| byte.is_ascii_digit()), "{kind:?}: {}", reply.reply);
            assert!(rest.trim_end_matches('.').bytes().all(|byte| (b'a'..=b'f').contains(&byte)), "{}", reply.reply);
            if reply.finish_reason == FinishReason::Stop {
                assert!(rest.ends_with('.'), "a grammar that cannot go on ends the reply: {}", reply.reply);
            }
        }
    }
}

/// Found by fuzzing: the text of a prompt ended at a zero byte of a message, its tokens did not.
#[test]
fn a_zero_byte_in_a_message_does_not_end_the_text_of_its_prompt() {
    let model = load(config(ModelKind::Attention, KvLayout::Split, 2), &memory_cache());
    let messages_json = r#"[{"role": "user", "content": "before\u0000after"}]"#.to_owned();
    let prompt = model.apply_chat_template(&ChatRequest { messages_json, ..ChatRequest::default() }).unwrap();
    assert!(prompt.text.contains("before\0after"), "{:?}", prompt.text);
    let joined: String = prompt.parts.iter().map(|part| part.text.as_str()).collect();
    assert_eq!(prompt.text, joined);
}

#[test]
fn a_schema_constrains_random_weights_to_json() {
    let schema = r#"{"type":"object","properties":{"name":{"enum":["ab","cd"]},"ok":{"type":"boolean"}},"required":["name","ok"],"additionalProperties":false}"#;
    for kind in KINDS {
        let model = load(config(kind, KvLayout::Unified, 1), &memory_cache());
        let grammar = Grammar {
            source: GrammarSource::JsonSchema(schema.to_owned()),
            triggers: Vec::new(),
            accepted: Vec::new(),
        };
        let request = Request {
            max_tokens: Some(200),
            sampling: Sampling { seed: Some(3), ..Sampling::default() },
            grammar: Some(grammar),
            ..Request::new(prompt(1, 40))
        };
        let reply = model.complete(request).unwrap();
        assert_eq!(reply.finish_reason, FinishReason::Stop, "{kind:?}: {}", reply.reply);
        let squeezed: String = reply.reply.chars().filter(|character| !character.is_whitespace()).collect();
        let valid =
            ["ab", "cd"].iter().flat_map(|name| [true, false].map(|ok| format!("{{\"name\":\"{name}\",\"ok\":{ok}}}")));
        assert!(valid.into_iter().any(|valid| valid == squeezed), "{kind:?}: {}", reply.reply);
    }
    let model = load(config(ModelKind::Attention, KvLayout::Unified, 1), &memory_cache());
    for source in [
        GrammarSource::Gbnf { text: "root ::= (".to_owned(), root: "root".to_owned() },
        GrammarSource::JsonSchema("{not json".to_owned()),
    ] {
        let grammar = Some(Grammar { source, triggers: Vec::new(), accepted: Vec::new() });
        let refused = model.submit(Request { grammar, ..Request::new(prompt(1, 10)) });
        assert!(matches!(refused, Err(EngineError::GrammarInvalid { .. })));
    }
}

#[test]
fn a_draft_longer_than_a_batch_is_verified_in_parts() {
    for kind in KINDS {
        let mut config = config(kind, KvLayout::Unified, 1);
        config.context.n_batch = 8;
        config.context.n_ubatch = 8;
        let model = load(config, &memory_cache());
        let reply = model.complete(greedy(&prompt(2, 50), 30)).unwrap().generated;
        let verify = |draft: &[u32]| {
            let verified = model.verify(prompt(2, 50), draft.to_vec()).unwrap();
            (verified.accepted, verified.next)
        };
        // The ends of parts, and places before and after them.
        for wrong in [0, 7, 8, 9, 15, 16, 23] {
            let mut draft = reply[..24].to_vec();
            draft[wrong] = (draft[wrong] + 1) % 200;
            assert_eq!(verify(&draft), (wrong, reply[wrong]), "{kind:?}");
        }
        for len in [8, 16, 17, 24] {
            assert_eq!(verify(&reply[..len]), (len, reply[len]), "{kind:?}");
        }
    }
}

#[test]
fn verifying_agrees_with_generating_and_leaves_sequences_as_they_were() {
    for kind in KINDS {
        let model = load(config(kind, KvLayout::Split, 3), &memory_cache());
        let session = |tokens: &[u32]| Request { session_id: Some("chat".to_owned()), ..traced(tokens, 6) };
        let tokens = prompt(1, 60);
        let first = model.complete(session(&tokens)).unwrap();

        let reply = model.complete(greedy(&prompt(2, 50), 8)).unwrap().generated;
        let mut draft = reply[..5].to_vec();
        assert_eq!(model.draft(prompt(2, 50), 8).unwrap(), reply, "{kind:?}");
        draft[3] = (draft[3] + 1) % 200;
        let verified = model.verify(prompt(2, 50), draft).unwrap();
        assert_eq!((verified.accepted, verified.next), (3, reply[3]), "{kind:?}");
        let all = model.verify(prompt(2, 50), reply[..5].to_vec()).unwrap();
        assert_eq!((all.accepted, all.next), (5, reply[5]), "{kind:?}");

        let mut next = first.context_tokens.clone();
        next.extend(prompt(3, 10));
        let after = model.complete(session(&next)).unwrap();
        assert_eq!(after.hit, HitKind::Sticky);
        let untouched = load(config(kind, KvLayout::Split, 3), &memory_cache());
        untouched.complete(session(&tokens)).unwrap();
        assert_eq!(trace(&untouched.complete(session(&next)).unwrap()), trace(&after), "{kind:?}");
    }
}

/// With split KV and without flash attention a row does not depend on its neighbours, so equality is to the token.
#[test]
fn sixteen_requests_over_four_sequences_do_not_mix() {
    for kind in KINDS {
        let mut config = config(kind, KvLayout::Split, 4);
        config.context.flash_attention = FlashAttention::Off;
        let model = load(config.clone(), &memory_cache());
        let request = |number: u32| Request {
            max_tokens: Some(6 + number % 7),
            sampling: if number.is_multiple_of(2) {
                Sampling::greedy()
            } else {
                Sampling { seed: Some(u64::from(number)), temperature: 0.9, ..Sampling::default() }
            },
            stop: if number.is_multiple_of(5) { vec!["e".to_owned()] } else { Vec::new() },
            ignore_eos: true,
            ..Request::new(prompt(number, 20 + number as usize * 9))
        };
        let streams: Vec<_> = (0..16).map(|number| model.submit(request(number)).unwrap()).collect();
        let together: Vec<_> = streams.into_iter().map(|stream| stream.wait().unwrap()).collect();
        for (number, done) in (0..).zip(&together) {
            let alone = load(config.clone(), &memory_cache()).complete(request(number)).unwrap();
            assert_eq!(done.generated, alone.generated, "{kind:?} request {number}");
            assert_eq!((&done.reply, done.finish_reason), (&alone.reply, alone.finish_reason), "{kind:?} {number}");
        }
        let status = model.status();
        assert_eq!((status.active, status.pending, status.queue_depth), (0, 0, 0));
    }
}

/// The state machine of the stub's tests, shorter, on the real library: after a few hundred random operations nothing is
/// held and replies are what a fresh model says.
#[test]
fn random_operations_leave_no_trace() {
    for kind in KINDS {
        let cache = memory_cache();
        let model = load(config(kind, KvLayout::Split, 3), &cache);
        let mut state = 12_345_u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        let mut open = Vec::new();
        for _ in 0..250 {
            match random(8) {
                0..=3 => {
                    let session = (random(3) == 0).then(|| format!("session {}", random(4)));
                    let tokens = prompt(random(5), 10 + random(60) as usize);
                    // A session that is busy or a full queue is a right answer.
                    open.extend(model.submit(Request { session_id: session, ..greedy(&tokens, 1 + random(6)) }));
                }
                4 if !open.is_empty() => drop(open.swap_remove(random(u32::try_from(open.len()).unwrap()) as usize)),
                5 if !open.is_empty() => {
                    let stream = open.swap_remove(0);
                    model.cancel(stream.id());
                    drop(stream.wait());
                }
                6 => drop(model.end_session(&format!("session {}", random(4)))),
                7 => drop(model.evict()),
                _ => {}
            }
        }
        open.into_iter().for_each(|stream| drop(stream.wait()));
        model.evict().unwrap();
        cache.flush();
        let status = model.status();
        assert_eq!((status.active, status.pending, status.queue_depth), (0, 0, 0), "{kind:?}");
        assert_eq!(cache.pinned_rows(), 0, "{kind:?}");
        let tokens = prompt(77, 50);
        let fresh = load(config(kind, KvLayout::Split, 3), &memory_cache()).complete(traced(&tokens, 8)).unwrap();
        assert_eq!(trace(&model.complete(traced(&tokens, 8)).unwrap()), trace(&fresh), "{kind:?}");
    }
}

#[test]
fn embeddings_are_the_same_in_a_batch_and_one_by_one() {
    let model = load(config(ModelKind::Attention, KvLayout::Unified, 2), &memory_cache());
    let inputs = vec![prompt(1, 12), prompt(2, 40), prompt(3, 5)];
    let together = model.embed(inputs.clone(), true).unwrap();
    for (input, vector) in inputs.into_iter().zip(&together) {
        assert_eq!(&model.embed(vec![input], true).unwrap()[0], vector);
        assert_eq!(vector.len(), model.info().n_embd as usize);
        let length: f32 = vector.iter().map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-3);
    }
    assert_ne!(together[0], together[1]);
}

#[test]
fn a_file_that_is_no_model_is_an_error_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read(model_path(ModelKind::Attention)).unwrap();
    let mut swapped = good.clone();
    swapped[8] = 0xff;
    let files: [(&str, &[u8]); 5] = [
        ("empty.gguf", &[]),
        ("text.gguf", b"hello, I am not a model"),
        ("header.gguf", &good[..40]),
        ("half.gguf", &good[..good.len() / 2]),
        ("counts.gguf", &swapped),
    ];
    for (name, bytes) in files {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = Model::load(ModelConfig::new("bad", &path), Arc::new(LlamaBackend), memory_cache()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, EngineError::Load { .. }), "{text}");
        assert!(text.contains(name), "{text}");
    }
    for path in [folder.path().join("missing.gguf"), folder.path().to_path_buf()] {
        let error = Model::load(ModelConfig::new("bad", &path), Arc::new(LlamaBackend), memory_cache()).unwrap_err();
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
}

#[test]
fn concurrent_loads_do_not_mix_their_errors() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for number in 0..6 {
            let path = folder.path().join(format!("broken-{number}.gguf"));
            std::fs::write(&path, vec![b'x'; 100 + number]).unwrap();
            scope.spawn(move || {
                let config = ModelConfig::new("bad", &path);
                let error = Model::load(config, Arc::new(LlamaBackend), memory_cache()).unwrap_err().to_string();
                assert!(error.contains(&format!("broken-{number}.gguf")), "{error}");
                for other in (0..6).filter(|other| *other != number) {
                    assert!(!error.contains(&format!("broken-{other}.gguf")), "{error}");
                }
            });
        }
    });
}

#[test]
fn several_models_serve_at_once_and_names_are_plain_strings() {
    let engine = Engine::new(Arc::new(LlamaBackend), memory_cache());
    let named = |kind, id: &str| ModelConfig { id: id.to_owned(), ..config(kind, KvLayout::Unified, 1) };
    engine.load(named(ModelKind::Attention, "one/../two")).unwrap();
    engine.load(named(ModelKind::Recurrent, "b")).unwrap();
    assert!(matches!(engine.load(named(ModelKind::Hybrid, "b")), Err(EngineError::Config { .. })));
    let replies: Vec<_> =
        engine.models().iter().map(|model| model.submit(greedy(&prompt(1, 30), 5)).unwrap()).collect();
    for stream in replies {
        assert_eq!(stream.wait().unwrap().generated.len(), 5);
    }
    engine.unload("b").unwrap();
    assert!(matches!(engine.get("b"), Err(EngineError::UnknownModel { .. })));
    assert_eq!(engine.get("one/../two").unwrap().complete(greedy(&prompt(1, 30), 5)).unwrap().generated.len(), 5);
}

#[test]
fn the_identity_comes_from_the_files() {
    let model = load(config(ModelKind::Attention, KvLayout::Unified, 1), &memory_cache());
    assert_eq!(model.file().quant, QuantType::F16);
    let chunked = ModelConfig {
        fingerprint: FingerprintSource::GgufChunked,
        ..config(ModelKind::Attention, KvLayout::Unified, 1)
    };
    let other = load(chunked, &memory_cache());
    assert_ne!(model.file().fingerprint, other.file().fingerprint);
    let split = load(config(ModelKind::Attention, KvLayout::Split, 1), &memory_cache());
    assert_eq!(model.namespace(), split.namespace(), "a state means the same in both layouts");

    let folder = tempfile::tempdir().unwrap();
    let parts = write_split_model(&ModelSpec::tiny(ModelKind::Attention), folder.path(), "tiny", 3).unwrap();
    let config = ModelConfig {
        model: poncho_engine::backend::ModelOptions::new(&parts[0]),
        ..config(ModelKind::Attention, KvLayout::Unified, 1)
    };
    let from_parts = load(config.clone(), &memory_cache());
    assert_eq!(from_parts.config().model.split_paths, parts[1..], "everything sees all of them");
    let tokens = prompt(1, 40);
    assert_eq!(
        from_parts.complete(greedy(&tokens, 8)).unwrap().generated,
        model.complete(greedy(&tokens, 8)).unwrap().generated
    );
}

/// Hardening 18: checks and identity of a split model saw its first part only.
#[test]
fn every_part_of_a_split_model_is_checked_and_identified() {
    let folder = tempfile::tempdir().unwrap();
    let parts = write_split_model(&ModelSpec::tiny(ModelKind::Attention), folder.path(), "tiny", 3).unwrap();
    let config = || ModelConfig {
        model: poncho_engine::backend::ModelOptions::new(&parts[0]),
        ..config(ModelKind::Attention, KvLayout::Unified, 1)
    };
    let refused = || {
        let error = Model::load(config(), Arc::new(LlamaBackend), memory_cache()).unwrap_err();
        assert!(matches!(error, EngineError::Load { .. }), "{error}");
        error.to_string()
    };
    let before = load(config(), &memory_cache()).file().fingerprint;
    let last = std::fs::read(&parts[2]).unwrap();

    let mut changed = last.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&parts[2], changed).unwrap();
    assert_ne!(load(config(), &memory_cache()).file().fingerprint, before, "a weight in the last part");

    std::fs::write(&parts[2], &last[..last.len() / 2]).unwrap();
    let error = refused();
    assert!(error.contains("tiny-00003-of-00003.gguf"), "{error}");
    std::fs::remove_file(&parts[2]).unwrap();
    let error = refused();
    assert!(error.contains("tiny-00003-of-00003.gguf is missing") && error.contains("3 parts"), "{error}");
    std::fs::copy(&parts[1], &parts[2]).unwrap();
    let error = refused();
    assert!(error.contains("should be part 3 of 3"), "{error}");
    std::fs::write(&parts[2], last).unwrap();
    assert_eq!(load(config(), &memory_cache()).file().fingerprint, before);
}

#[test]
fn text_becomes_tokens_and_back_and_special_text_stays_text() {
    let model = load(config(ModelKind::Attention, KvLayout::Unified, 1), &memory_cache());
    let text = "Hello, world! 你好 <|im_end|>";
    let plain = model.tokenize(text, TokenizeMode::default()).unwrap();
    assert_eq!(model.detokenize(&plain, SpecialText::Hide), text);
    let parsed = model.tokenize(text, TokenizeMode { parse_special: true, ..TokenizeMode::default() }).unwrap();
    assert!(parsed.len() < plain.len());
    assert!(parsed.iter().any(|token| model.is_end_of_generation(*token)));
    assert!(
        !plain.iter().any(|token| model.is_end_of_generation(*token)),
        "a user cannot end a turn by writing about it"
    );
}
