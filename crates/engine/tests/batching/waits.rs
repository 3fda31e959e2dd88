//! Everyday use 1: nobody waits for a neighbour's long prompt, and no long prompt waits for its neighbours. Everything is
//! counted in decode calls, so that no clock decides.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use poncho_cache::{HitKind, Needs};
use poncho_engine::backend::stub::{DecodeFault, StubBackend};
use poncho_engine::backend::{Batch, ContextOptions, MemoryKind};
use poncho_engine::{Exactness, Model, ModelConfig, PrefillChunk, Request, RestoreRule};

use crate::stub::{Bench, KINDS, LONG, assert_idle, bench_with, roomy, submit_together};
use crate::support::{greedy, memory_cache, prompt, stub_config};

/// The last token of a short request; no other prompt has it.
const LAST: u32 = 251;
/// Ticks that a short request may take.
const TICKS: usize = 4;
/// The tick during which short requests arrive.
const ARRIVAL: u64 = 3;

fn config() -> ModelConfig {
    let config = roomy();
    let context =
        ContextOptions { n_ctx: 8192, n_cells: Some(40_000), n_batch: 192, n_ubatch: 192, ..config.context.clone() };
    // A fixed slice: the default one follows the clock.
    ModelConfig { context, prefill_chunk: PrefillChunk::Tokens(NonZeroUsize::new(64).unwrap()), ..config }
}

fn model(config: ModelConfig, kind: MemoryKind) -> Bench {
    bench_with(config, &StubBackend::new(kind), &memory_cache())
}

/// A request with this number of tokens that no other prompt begins with.
fn short(number: u32, tokens: usize) -> Request {
    let mut prompt = prompt(100 + number, tokens);
    *prompt.last_mut().unwrap() = LAST;
    greedy(&prompt, 4)
}

/// Submits long prompts, then the short requests while the third tick is held. Returns the batches after that tick.
fn ticks_after_arrival(bench: &Bench, longs: &[Request], shorts: &[Request]) -> Vec<Batch> {
    bench.faults.record_batches();
    drop(bench.faults.take_batches());
    let before = bench.faults.counts().decodes;
    bench.faults.on_decode(1, DecodeFault::Block);
    let mut running = Vec::new();
    for long in longs {
        running.push(bench.model.submit(long.clone()).unwrap());
        if running.len() == 1 {
            assert!(bench.faults.wait_until_held(LONG));
        }
    }
    bench.faults.on_decode(ARRIVAL - 1, DecodeFault::Block);
    bench.faults.release();
    assert!(bench.faults.wait_for_decodes(before + ARRIVAL, LONG) && bench.faults.wait_until_held(LONG));
    let waiting: Vec<_> = shorts.iter().map(|short| bench.model.submit(short.clone()).unwrap()).collect();
    bench.faults.release();
    waiting.into_iter().for_each(|stream| drop(stream.wait().unwrap()));
    running.into_iter().for_each(|stream| drop(stream.wait().unwrap()));
    assert_idle(bench);
    bench.faults.take_batches().split_off(usize::try_from(ARRIVAL).unwrap())
}

/// After how many ticks the prompts of all short requests, of this length, were computed.
fn ticks_of_shorts(batches: &[Batch], tokens: u32) -> usize {
    let has_last = |batch: &Batch| batch.rows.iter().any(|row| row.token == LAST && row.pos + 1 == tokens);
    batches.iter().rposition(has_last).unwrap() + 1
}

#[test]
fn a_short_request_has_its_first_token_within_four_ticks_whatever_is_being_read() {
    for kind in KINDS {
        for longs in 1..4_u32 {
            let bench = model(config(), kind);
            let long: Vec<Request> = (0..longs).map(|number| greedy(&prompt(number, 3000), 2)).collect();
            let short: Vec<Request> = (0..4 - longs).map(|number| short(number, 64)).collect();
            let ticks = ticks_of_shorts(&ticks_after_arrival(&bench, &long, &short), 64);
            assert!(ticks <= TICKS, "{ticks} ticks beside {longs} long prompts, {kind:?}");
        }
    }
}

#[test]
fn a_short_request_with_many_messages_does_not_pause_at_each_of_them() {
    for kind in KINDS {
        let bench = model(config(), kind);
        let short = Request { boundary_hints: (1..9).map(|message| message * 8).collect(), ..short(1, 64) };
        let ticks = ticks_of_shorts(&ticks_after_arrival(&bench, &[greedy(&prompt(0, 3000), 2)], &[short]), 64);
        assert!(ticks <= TICKS, "{ticks} ticks, {kind:?}");
    }
}

#[test]
fn what_is_new_in_a_known_prompt_decides_whether_it_is_short() {
    for kind in KINDS {
        let bench = model(config(), kind);
        let known = prompt(7, 1000);
        bench.model.complete(greedy(&known, 1)).unwrap();
        // The reply of the first turn is not replayed, so only states saved at the end of the prompt serve all kinds.
        let next: Vec<u32> = known.iter().copied().chain([250, LAST]).collect();
        let batches = ticks_after_arrival(&bench, &[greedy(&prompt(0, 3000), 2)], &[greedy(&next, 4)]);
        let computed = batches.iter().flat_map(|batch| &batch.rows).filter(|row| row.pos == 1000 && row.token == 250);
        assert_eq!(computed.count(), 1, "{kind:?}");
        assert!(ticks_of_shorts(&batches, 1002) <= 2, "{kind:?}");
    }
}

#[test]
fn a_long_prompt_beside_a_stream_of_short_requests_takes_at_most_a_tenth_more_ticks() {
    let reads = |batch: &Batch| batch.rows.iter().filter(|row| row.seq == 0).count();
    let ends = |batch: &Batch| batch.rows.iter().any(|row| row.seq == 0 && row.pos == 2999);
    for kind in KINDS {
        let long = greedy(&prompt(0, 3000), 1);
        let alone = model(config(), kind);
        alone.faults.record_batches();
        alone.model.complete(long.clone()).unwrap();
        let alone = alone.faults.take_batches().len();
        let bench = model(config(), kind);
        let shorts = (0..60).map(|number| short(number, 1 + (number as usize * 37) % 64));
        let requests: Vec<Request> = std::iter::once(long).chain(shorts).collect();
        submit_together(&bench, &requests).into_iter().for_each(|stream| drop(stream.wait().unwrap()));
        let batches = bench.faults.take_batches();
        let ticks = batches.iter().position(ends).unwrap() + 1;
        assert!(
            batches[..ticks].iter().all(|batch| reads(batch) > 0),
            "a tick went by without the long prompt, {kind:?}"
        );
        assert!(ticks * 10 <= alone * 11, "{ticks} ticks instead of {alone}, {kind:?}");
        let shared = batches[..ticks].iter().filter(|batch| batch.rows.len() > reads(batch)).count();
        assert!(shared > 40, "they ran side by side in {shared} ticks only, {kind:?}");
        assert_idle(&bench);
    }
}

#[test]
fn exact_prompts_keep_their_chunks_and_short_ones_get_every_other_tick() {
    for kind in KINDS {
        let exact = |request: Request| Request { exact: true, ..request };
        let config = ModelConfig { exactness: Exactness::OnRequest, ..config() };
        let grid = config.exact_grid.get();
        let bench = model(config, kind);
        let longs: Vec<Request> = (0..3).map(|number| exact(greedy(&prompt(number, 3000), 2))).collect();
        let batches = ticks_after_arrival(&bench, &longs, &[exact(short(1, 64))]);
        let ticks = ticks_of_shorts(&batches, 64);
        assert!(ticks <= TICKS, "{ticks} ticks, {kind:?}");
        for batch in batches.iter().filter(|batch| batch.rows.len() > 4) {
            let (first, last) = (&batch.rows[0], batch.rows.last().unwrap());
            assert!(batch.rows.iter().all(|row| row.seq == first.seq), "a chunk is computed alone");
            assert_eq!(first.pos as usize % grid, 0);
            assert!((last.pos as usize + 1).is_multiple_of(grid) || last.want_logits, "{kind:?}: {last:?}");
        }
    }
}

/// The state of a long prompt on a device was copied at once after the first token, and the second one waited for it.
#[test]
fn a_prompt_on_a_device_is_saved_in_slices_between_the_tokens_of_its_reply() {
    const SLICE: u32 = 8;
    for reply in [1, 2, 40] {
        let cache = memory_cache();
        let backend = StubBackend::new(MemoryKind::Attention).on_device((64 << 20) / u64::from(SLICE));
        let config = ModelConfig { chain_limit: 0, restore_rule: RestoreRule::Always, ..stub_config("stub") };
        let model = Model::load(config, Arc::new(backend), Arc::clone(&cache)).unwrap();
        let tokens = prompt(1, 100);
        let first = model.submit(greedy(&tokens, reply)).unwrap().wait().unwrap();
        cache.flush();
        let plan = cache.lookup(&model.namespace(), &tokens, Needs::ATTENTION).unwrap();
        assert_eq!((plan.reach(), plan.has_logits()), (100, true), "a reply of {reply}");
        let longest = plan.rows().iter().map(|row| row.range().len()).max();
        if reply == 40 {
            assert!(longest.is_some_and(|longest| longest <= SLICE as usize), "rows of up to {longest:?} tokens");
        }
        drop(plan);
        // Others take the sequences.
        for other in 2..8 {
            model.submit(greedy(&prompt(other, 60), 1)).unwrap().wait().unwrap();
        }
        let again = model.submit(greedy(&tokens, reply)).unwrap().wait().unwrap();
        assert_eq!((again.hit, again.reply), (HitKind::Exact, first.reply), "a reply of {reply}");
    }
}

/// A prompt that is alone is read in large slices, and a request that arrives does not wait for the end of one.
#[test]
fn a_prompt_that_is_alone_gives_way_to_a_request_that_arrives() {
    let config = ModelConfig { prefill_chunk: PrefillChunk::Default, ..config() };
    let context = ContextOptions { n_batch: 2048, n_ubatch: 2048, ..config.context.clone() };
    let bench = model(ModelConfig { context, ..config }, MemoryKind::Attention);
    bench.faults.busy_decodes(Duration::from_millis(200));
    // Two smallest slices: 320 tokens a second, or fewer on a busy machine. So the call gives way for more than a second, and a
    // test that is held up meanwhile does not miss that.
    bench.model.submit(greedy(&prompt(1, 128), 1)).unwrap().wait().unwrap();
    bench.faults.record_batches();
    let (long, short) = (greedy(&prompt(2, 7000), 1), short(3, 20));
    bench.faults.on_decode(2, DecodeFault::Block);
    let reader = bench.model.submit(long.clone()).unwrap();
    assert!(bench.faults.wait_until_held(LONG));
    let alone: Vec<usize> = bench.faults.take_batches().iter().map(|batch| batch.rows.len()).collect();
    assert!(alone.iter().all(|rows| *rows >= 256), "{alone:?} rows");
    // The held call is never released: it ends because the request arrives.
    let newcomer = bench.model.submit(short.clone()).unwrap().wait().unwrap();
    let next = bench.faults.take_batches();
    let has_short = |batch: &Batch| batch.rows.iter().any(|row| row.token == LAST);
    assert!(next.first().is_some_and(has_short), "it is in the very next call");
    bench.faults.busy_decodes(Duration::ZERO);
    let undisturbed = model(self::config(), MemoryKind::Attention);
    let alone = |request: &Request| undisturbed.model.submit(request.clone()).unwrap().wait().unwrap().generated;
    assert_eq!(newcomer.generated, alone(&short));
    assert_eq!(reader.wait().unwrap().generated, alone(&long), "the slice was computed again");
}
