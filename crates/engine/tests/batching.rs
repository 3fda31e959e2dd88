//! Many requests at once: each says what it says alone, they are taken in order, and none stops the others.

mod bridges;
mod drafts;
mod waits;

use std::num::NonZeroUsize;

use poncho_engine::backend::stub::{DecodeFault, StubBackend};
use poncho_engine::backend::{Batch, ContextOptions, MemoryKind};
use poncho_engine::{
    EngineError, Grammar, GrammarSource, Mode, Model, ModelConfig, PrefillChunk, Request, Sampling, Stream, StreamEvent,
};

use crate::stub::{
    Bench, KINDS, LONG, assert_idle, bench, bench_with, roomy, roomy_with, solo, submit_together, until_first_token,
};
use crate::support::{greedy, memory_cache, prompt};

/// Sixteen requests that have nothing in common: prompts, lengths, samplers, seeds, grammars, stops.
fn sixteen() -> Vec<Request> {
    let gbnf = |text: &str| {
        let source = GrammarSource::Gbnf { text: text.to_owned(), root: "root".to_owned() };
        Some(Grammar { source, triggers: Vec::new(), accepted: Vec::new() })
    };
    (0..16_u32)
        .map(|number| {
            let sampling = match number % 4 {
                0 => Sampling::greedy(),
                1 => Sampling { seed: Some(number.into()), ..Sampling::default() },
                2 => Sampling {
                    seed: Some(7),
                    temperature: 1.5,
                    top_k: 0,
                    frequency_penalty: 0.7,
                    ..Sampling::default()
                },
                _ => Sampling { seed: Some(7), min_p: 0.2, repetition_penalty: 1.3, ..Sampling::default() },
            };
            Request {
                sampling,
                max_tokens: Some(3 + number * 7 % 40),
                stop: if number % 3 == 0 { vec!["e".to_owned(), "q ".to_owned()] } else { Vec::new() },
                grammar: match number % 5 {
                    0 => gbnf("root ::= [0-9]+ \".\" [a-f]*"),
                    1 => gbnf("root ::= (\"yes\" | \"no\") \", \" [a-z ]+"),
                    _ => None,
                },
                logprobs: (number % 2 == 0).then_some(3),
                ignore_eos: number % 4 == 1,
                ..Request::new(prompt(number, 5 + number as usize * 13 % 90))
            }
        })
        .collect()
}

#[test]
fn sixteen_requests_over_four_sequences_say_what_each_says_alone() {
    for kind in KINDS {
        let bench = bench(kind);
        bench.faults.record_batches();
        let requests = sixteen();
        for (request, stream) in requests.iter().zip(submit_together(&bench, &requests)) {
            let alone = solo(kind, request);
            let (mut text, mut tokens, mut done) = (String::new(), Vec::new(), None);
            for event in stream {
                match event {
                    StreamEvent::Started { prompt, .. } => assert_eq!(prompt, request.tokens.len()),
                    StreamEvent::Progress { prompt, processed_tokens, .. } => assert!(processed_tokens < prompt),
                    StreamEvent::Text(more) => text.push_str(&more),
                    StreamEvent::Token { id, logprob, .. } => tokens.push((id, logprob)),
                    StreamEvent::Done(completion) => done = Some(*completion),
                    other => panic!("{other:?}"),
                }
            }
            let done = done.unwrap();
            assert_eq!(done.generated, alone.generated, "{kind:?}");
            assert_eq!((&done.reply, done.finish_reason), (&alone.reply, alone.finish_reason), "{kind:?}");
            assert_eq!((&done.stop_sequence, &done.logprobs), (&alone.stop_sequence, &alone.logprobs), "{kind:?}");
            assert_eq!(done.context_tokens, alone.context_tokens, "{kind:?}");
            assert_eq!(text, done.reply, "the events say the same");
            assert_eq!(tokens.iter().map(|(id, _)| *id).collect::<Vec<_>>(), done.generated);
            assert_eq!(tokens.into_iter().filter_map(|(_, logprob)| logprob).collect::<Vec<_>>(), done.logprobs);
        }
        let widest = bench.faults.take_batches().iter().map(sequences).max_by_key(Vec::len).unwrap();
        assert_eq!(widest.len(), 4, "all sequences were used at once");
        assert_idle(&bench);
    }
}

/// The sequences that have a row in a batch.
fn sequences(batch: &Batch) -> Vec<u32> {
    let mut sequences: Vec<u32> = batch.rows.iter().map(|row| row.seq).collect();
    sequences.sort_unstable();
    sequences.dedup();
    sequences
}

#[test]
fn requests_are_taken_in_the_order_they_came() {
    let bench = bench(MemoryKind::Attention);
    bench.faults.record_batches();
    let requests = sixteen();
    for stream in submit_together(&bench, &requests) {
        stream.wait().unwrap();
    }
    // No two prompts begin with the same token, so the rows at position 0 tell who started when.
    let batches = bench.faults.take_batches();
    let started: Vec<u32> =
        batches.iter().flat_map(|batch| &batch.rows).filter(|row| row.pos == 0).map(|row| row.token).collect();
    assert_eq!(started, requests.iter().map(|request| request.tokens[0]).collect::<Vec<_>>());
}

/// llama.cpp computes neighbouring sequences together only if their rows come in order.
#[test]
fn rows_of_decoders_come_in_the_order_of_their_sequences() {
    let bench = bench_with(roomy_with(3), &StubBackend::new(MemoryKind::Attention), &memory_cache());
    // The fourth takes the place of the second, between the other two.
    let requests = [40, 3, 40, 20].map(|reply| greedy(&prompt(reply, 10), reply));
    let streams = submit_together(&bench, &requests);
    streams.into_iter().for_each(|stream| drop(stream.wait().unwrap()));
    let is_all_decoders = |batch: &Batch| batch.rows.len() == 3 && sequences(batch).len() == 3;
    let decoding: Vec<Batch> = bench.faults.take_batches().into_iter().filter(is_all_decoders).collect();
    assert!(decoding.len() > 15, "the last one ran beside two others");
    for batch in decoding {
        assert!(batch.rows.is_sorted_by_key(|row| row.seq), "{batch:?}");
    }
}

#[test]
fn a_long_prompt_does_not_stop_a_decoder() {
    let chunks = [
        // The last 32 tokens go along with a slice of 64.
        (PrefillChunk::Default, 96),
        (PrefillChunk::Tokens(NonZeroUsize::new(20).unwrap()), 20),
        (PrefillChunk::Unlimited, 127),
    ];
    for (prefill_chunk, most) in chunks {
        let config = ModelConfig { prefill_chunk, ..roomy() };
        let bench = bench_with(config, &StubBackend::new(MemoryKind::Attention), &memory_cache());
        bench.faults.record_batches();
        bench.faults.on_decode(3, DecodeFault::Block);
        let (short, long) = (greedy(&prompt(1, 10), 60), greedy(&prompt(2, 480), 4));
        let decoder = bench.model.submit(short.clone()).unwrap();
        assert!(bench.faults.wait_until_held(LONG));
        let reader = bench.model.submit(long.clone()).unwrap();
        bench.faults.release();
        assert_eq!(decoder.wait().unwrap().generated, solo(MemoryKind::Attention, &short).generated);
        assert_eq!(reader.wait().unwrap().generated, solo(MemoryKind::Attention, &long).generated);
        let batches = bench.faults.take_batches();
        let is_decoding = |batch: &Batch| sequences(batch).contains(&0);
        let prefill: Vec<usize> =
            batches.iter().map(|batch| batch.rows.iter().filter(|row| row.seq != 0).count()).collect();
        let first = prefill.iter().position(|rows| *rows > 0).unwrap();
        let last_decode = batches.iter().rposition(is_decoding).unwrap();
        assert!(batches[..=last_decode].iter().all(is_decoding), "a tick went by without the decoder");
        assert!(last_decode > first, "the two overlapped");
        assert_eq!(prefill.iter().max(), Some(&most), "{prefill_chunk:?}");
        let shared = batches[..=last_decode].iter().filter(|batch| batch.rows.len() > 1).count();
        assert!(shared > 480 / most, "{shared} ticks with both");
    }
}

#[test]
fn several_prompts_are_read_at_the_same_time() {
    let config = ModelConfig { prefill_chunk: PrefillChunk::Tokens(NonZeroUsize::new(64).unwrap()), ..roomy() };
    let bench = bench_with(config, &StubBackend::new(MemoryKind::Attention), &memory_cache());
    bench.faults.record_batches();
    let requests: Vec<Request> = (0..3).map(|number| greedy(&prompt(number, 300), 2)).collect();
    for (request, stream) in requests.iter().zip(submit_together(&bench, &requests)) {
        assert_eq!(stream.wait().unwrap().generated, solo(MemoryKind::Attention, request).generated);
    }
    let batches = bench.faults.take_batches();
    assert!(batches.iter().all(|batch| batch.rows.len() <= 128));
    assert!(batches.iter().any(|batch| sequences(batch).len() > 1 && batch.rows.len() == 128));
}

#[test]
fn a_batch_that_cannot_hold_all_sequences_is_refused_by_name() {
    let context = ContextOptions { n_batch: 3, n_ubatch: 3, ..roomy().context };
    let config = ModelConfig { context, ..roomy() };
    let backend = StubBackend::new(MemoryKind::Attention);
    let refused = Model::load(config, std::sync::Arc::new(backend.clone()), memory_cache()).unwrap_err();
    assert!(matches!(refused, EngineError::Config { .. }), "{refused:?}");
    assert!(refused.to_string().contains("n_batch"), "{refused}");
    assert_eq!(backend.faults().counts().contexts, 0);
}

#[test]
fn a_full_queue_says_how_full_it_is() {
    let config = ModelConfig { queue_limit: 2, ..roomy_with(2) };
    let bench = bench_with(config, &StubBackend::new(MemoryKind::Attention), &memory_cache());
    let requests: Vec<Request> = (0..4).map(|number| greedy(&prompt(number, 12), 5)).collect();
    bench.faults.on_decode(1, DecodeFault::Block);
    let streams: Vec<Stream> = requests.iter().map(|request| bench.model.submit(request.clone()).unwrap()).collect();
    assert!(bench.faults.wait_until_held(LONG));
    let refused = bench.model.submit(greedy(&prompt(9, 12), 5)).unwrap_err();
    assert_eq!(refused, EngineError::Overloaded { queued: 2, limit: 2 });
    assert_eq!(bench.model.status().queue_depth, 4);
    bench.faults.release();
    for (request, stream) in requests.iter().zip(streams) {
        assert_eq!(stream.wait().unwrap().generated, solo(MemoryKind::Attention, request).generated);
    }
    assert_idle(&bench);
    bench.model.complete(greedy(&prompt(9, 12), 5)).unwrap();
}

#[test]
fn a_prompt_that_cannot_fit_is_refused_at_once_with_the_numbers() {
    let bench = bench(MemoryKind::Attention);
    let refused = bench.model.submit(greedy(&prompt(1, 512), 5)).unwrap_err();
    assert_eq!(refused, EngineError::PromptTooLong { tokens: 512, limit: 511 });
    let refused = bench.model.prefill_only(prompt(1, 513)).unwrap_err();
    assert_eq!(refused, EngineError::PromptTooLong { tokens: 513, limit: 512 });
    assert_eq!(bench.faults.counts().decodes, 0);
    assert_eq!(bench.model.prefill_only(prompt(1, 512)).unwrap().committed_tokens, 512);
    let pinned = Request { session_id: Some("chat".to_owned()), ..greedy(&prompt(2, 500), 2) };
    bench.model.complete(pinned.clone()).unwrap();
    let more = Request { mode: Mode::Continue, tokens: prompt(3, 10), ..pinned.clone() };
    assert_eq!(bench.model.complete(more), Err(EngineError::PromptTooLong { tokens: 512, limit: 511 }));
    let fits = Request { mode: Mode::Continue, tokens: prompt(3, 9), ..pinned };
    assert_eq!(bench.model.complete(fits).unwrap().completion_tokens, 1, "the refused one left the session as it was");
    assert_idle(&bench);
}

#[test]
fn seeds_reproduce_whatever_else_runs() {
    let drawn = |seed: Option<u64>, bench: &Bench| {
        let sampling = Sampling { seed, temperature: 1.4, top_k: 0, min_p: 0.0, ..Sampling::default() };
        let request = Request { sampling, ..greedy(&prompt(5, 20), 40) };
        bench.model.complete(request).unwrap().generated
    };
    let (quiet, busy) = (bench(MemoryKind::Hybrid), bench(MemoryKind::Hybrid));
    let mut others: Vec<Stream> =
        (0..2).map(|number| busy.model.submit(greedy(&prompt(number, 40), 300)).unwrap()).collect();
    others.iter_mut().for_each(until_first_token);
    let first = drawn(Some(11), &quiet);
    assert_eq!(first, drawn(Some(11), &busy));
    assert_eq!(first, drawn(Some(11), &busy), "also when the prompt is found again");
    assert_ne!(first, drawn(Some(12), &quiet));
    assert_ne!(drawn(None, &quiet), drawn(None, &quiet), "without a seed each draw is its own");
}
