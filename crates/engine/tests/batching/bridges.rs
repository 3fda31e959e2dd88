//! Rows of resting sequences between two requests: they are in the batches, and nowhere in a reply or in what is kept.

use std::num::NonZeroUsize;

use poncho_engine::backend::stub::{DecodeFault, StubBackend};
use poncho_engine::backend::{Batch, BatchRow, ContextOptions, KvLayout, MemoryKind};
use poncho_engine::{DraftRule, Drafts, Exactness, ModelConfig, Request};

use crate::stub::{Bench, assert_idle, assert_serves, bench_with, roomy_with, solo, submit_together};
use crate::support::{greedy, memory_cache, prompt};

/// The sequence between the two that go on.
const MIDDLE: u32 = 1;
/// Tokens of a prompt, and of the reply that ends first. The last token of a reply is not computed.
const PROMPT: usize = 10;
const SHORT: u32 = 3;
const HELD: u32 = 12;
const LONG: u32 = 40;

/// A batch holds a step of it beside all sequences.
const GRID: NonZeroUsize = NonZeroUsize::MIN.saturating_add(31);

/// On a device, where reading the weights is all that counts.
fn device() -> StubBackend {
    StubBackend::new(MemoryKind::Attention).on_device(0)
}

fn config(kv: KvLayout) -> ModelConfig {
    let config = roomy_with(3);
    ModelConfig { context: ContextOptions { kv, ..config.context.clone() }, ..config }
}

/// Three requests side by side, of which the second ends first.
fn requests() -> [Request; 3] {
    [(1, LONG), (2, SHORT), (3, LONG)].map(|(number, reply)| greedy(&prompt(number, PROMPT), reply))
}

/// Plays the requests, compares each reply with that of a model of its own, and returns the batches.
fn play(bench: &Bench, requests: &[Request]) -> Vec<Batch> {
    play_on(MemoryKind::Attention, bench, requests)
}

fn play_on(kind: MemoryKind, bench: &Bench, requests: &[Request]) -> Vec<Batch> {
    for (request, stream) in requests.iter().zip(submit_together(bench, requests)) {
        let alone = Request { exact: false, ..request.clone() };
        assert_eq!(stream.wait().unwrap().generated, solo(kind, &alone).generated);
    }
    assert_idle(bench);
    bench.faults.take_batches()
}

fn rows_of(batch: &Batch, seq: u32) -> Vec<&BatchRow> {
    batch.rows.iter().filter(|row| row.seq == seq).collect()
}

/// The batches in which the resting sequence has rows beside the other two.
fn bridged(batches: &[Batch]) -> Vec<&Batch> {
    let rests = |batch: &&Batch| rows_of(batch, MIDDLE).first().is_some_and(|row| row.pos == HELD && !row.want_logits);
    batches.iter().filter(rests).collect()
}

/// The next turn of the conversation that ended first, with nothing of it computed again.
fn assert_kept(bench: &Bench) {
    let [_, ended, _] = requests();
    let said = solo(MemoryKind::Attention, &ended).generated;
    let next = greedy(&[ended.tokens, said, prompt(9, 4)].concat(), 5);
    drop(bench.faults.take_batches());
    let done = bench.model.complete(next.clone()).unwrap();
    assert_eq!(done.generated, solo(MemoryKind::Attention, &next).generated);
    assert_eq!(bench.faults.take_batches().first().unwrap().rows.first().unwrap().pos, HELD, "it resumed in place");
}

#[test]
fn a_gap_is_closed_and_what_rests_there_stays() {
    let bench = bench_with(config(KvLayout::Split), &device(), &memory_cache());
    let batches = play(&bench, &requests());
    let bridged = bridged(&batches);
    assert!(bridged.len() > 30, "{} of {} calls", bridged.len(), batches.len());
    for batch in bridged {
        let sequences: Vec<u32> = batch.rows.iter().map(|row| row.seq).collect();
        assert_eq!(sequences, [0, 1, 2], "in their order, one row each");
    }
    assert_kept(&bench);
    assert_serves(&bench, MemoryKind::Attention);
}

#[test]
fn a_sequence_without_room_for_a_draft_is_left_alone() {
    let bench = bench_with(config(KvLayout::Split), &device(), &memory_cache());
    let [first, _, last] = requests();
    let full = greedy(&prompt(2, 490), 12);
    let batches = play(&bench, &[first, full, last]);
    let mut latest = batches.iter().rev().take(20);
    assert!(latest.all(|batch| rows_of(batch, MIDDLE).is_empty()), "{:?}", batches.last());
}

#[test]
fn a_gap_stays_where_a_row_could_change_or_cost_something() {
    let exact = config(KvLayout::Split);
    let exact = ModelConfig { exactness: Exactness::OnRequest, exact_grid: GRID, ..exact };
    let moe = config(KvLayout::Split);
    let moe = ModelConfig { model: poncho_engine::backend::ModelOptions { n_cpu_moe: 1, ..moe.model }, ..moe };
    let sliding = MemoryKind::Window { size: 256 };
    let window = StubBackend::new(sliding).on_device(0);
    let heavy = StubBackend::new(MemoryKind::Attention).on_device(1 << 20);
    let cases = [
        ("one pool of cells", config(KvLayout::Unified), device(), false),
        ("on the processor", config(KvLayout::Split), StubBackend::new(MemoryKind::Attention), false),
        ("experts on the processor", moe, device(), false),
        ("a window", config(KvLayout::Split), window, false),
        ("cells that cost more than weights", config(KvLayout::Split), heavy, false),
        ("exact replies", exact, device(), true),
    ];
    for (name, config, backend, exact) in cases {
        let bench = bench_with(config, &backend, &memory_cache());
        let requests = requests().map(|request| Request { exact, ..request });
        let kind = if name == "a window" { sliding } else { MemoryKind::Attention };
        let batches = play_on(kind, &bench, &requests);
        assert_eq!(bridged(&batches).len(), 0, "{name}");
    }
}

#[test]
fn a_resting_sequence_has_as_many_rows_as_the_longest_draft() {
    let config = config(KvLayout::Split);
    let config = ModelConfig { drafts: Drafts::Context, draft_rule: DraftRule::Always, ..config };
    let bench = bench_with(config, &device(), &memory_cache());
    // Prompts that repeat themselves, so that something is found in them.
    let requests =
        [(1, LONG), (2, SHORT), (3, LONG)].map(|(number, reply)| greedy(&prompt(number, PROMPT / 2).repeat(2), reply));
    let batches = play(&bench, &requests);
    let rests = |batch: &&Batch| rows_of(batch, MIDDLE).first().is_some_and(|row| !row.want_logits && row.pos == HELD);
    let bridged: Vec<&Batch> = batches.iter().filter(rests).collect();
    let longest = |batch: &Batch| rows_of(batch, 0).len().max(rows_of(batch, 2).len());
    assert!(bridged.iter().any(|batch| longest(batch) > 1), "some calls had drafts");
    for batch in bridged {
        assert_eq!(rows_of(batch, MIDDLE).len(), longest(batch), "{batch:?}");
        assert!(batch.rows.is_sorted_by_key(|row| row.seq));
    }
    assert_serves(&bench, MemoryKind::Attention);
}

#[test]
fn a_call_that_fails_leaves_no_row_behind() {
    let bench = bench_with(config(KvLayout::Split), &device(), &memory_cache());
    (12..20).for_each(|nth| bench.faults.on_decode(nth, DecodeFault::Aborted));
    assert!(!bridged(&play(&bench, &requests())).is_empty());
    assert_kept(&bench);
    // Without room, what rests leaves first.
    let bench = bench_with(config(KvLayout::Split), &device(), &memory_cache());
    bench.faults.on_decode(12, DecodeFault::NoRoom);
    play(&bench, &requests());
    assert_serves(&bench, MemoryKind::Attention);
    let bench = bench_with(config(KvLayout::Split), &device(), &memory_cache());
    bench.faults.on_decode(12, DecodeFault::Fatal(-3));
    let streams = submit_together(&bench, &requests());
    let failed: Vec<bool> = streams.into_iter().map(|stream| stream.wait().is_err()).collect();
    assert_eq!(failed, [true, false, true]);
    assert_kept(&bench);
}
