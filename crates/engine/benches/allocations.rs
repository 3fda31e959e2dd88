//! How often the engine allocates for a drawn token, beyond what it sends.
//!
//! `make bench` runs it, on a tiny generated model: what llama.cpp allocates does not pass Rust's allocator and is not
//! counted. Two runs that differ only in the length of their replies are subtracted, so that what a request costs once
//! drops out. With `PONCHO_ALLOCATIONS=FILE` the call sites are written there, for the viewer of `dhat`.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a benchmark may stop at once")]

use std::sync::Arc;

use poncho_cache::{Cache, CacheConfig, Gates};
use poncho_engine::backend::ContextOptions;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::{Model, ModelConfig, Request, Sampling, StreamEvent};
use poncho_testkit::{ModelKind, model_path};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const SHORT: u32 = 64;
const LONG: u32 = 64 + 960;
/// A channel of tokio's takes a new block for this many events.
const EVENTS_IN_A_BLOCK: f64 = 32.0;

fn main() {
    let file = std::env::var_os("PONCHO_ALLOCATIONS");
    let profiler = match &file {
        Some(path) => dhat::Profiler::builder().file_name(path).trim_backtraces(Some(24)).build(),
        None => dhat::Profiler::builder().testing().build(),
    };
    for (name, stop, sampling) in [
        ("greedy", "", Sampling::greedy()),
        ("greedy with a stop sequence", "never said", Sampling::greedy()),
        (
            "top_k, top_p and penalties",
            "",
            Sampling {
                temperature: 0.8,
                top_k: 40,
                top_p: 0.95,
                repetition_penalty: 1.1,
                seed: Some(1),
                ..Sampling::greedy()
            },
        ),
    ] {
        for streams in [1, 4] {
            let stop = if stop.is_empty() { Vec::new() } else { vec![stop.to_owned()] };
            let request = Request { stop, sampling: sampling.clone(), ignore_eos: true, ..Request::new(Vec::new()) };
            measure(name, &request, streams);
        }
    }
    drop(profiler);
}

/// What a run allocated and sent.
#[derive(Clone, Copy)]
struct Run {
    blocks: f64,
    bytes: f64,
    events: f64,
    texts: f64,
}

fn measure(name: &str, request: &Request, streams: u32) {
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap());
    let n_cells = Some(2048 * streams);
    let context =
        ContextOptions { n_ctx: 2048, n_cells, n_seq_max: streams, threads: Some(1), ..ContextOptions::default() };
    // Saves allocate, and are not part of drawing a token.
    let gates = Gates::CLOSED;
    let config = ModelConfig { context, gates, ..ModelConfig::new("bench", model_path(ModelKind::Attention)) };
    let model = Model::load(config, Arc::new(LlamaBackend), cache).unwrap();
    run(&model, request, streams, LONG);
    let short = run(&model, request, streams, SHORT);
    let long = run(&model, request, streams, LONG);
    let tokens = f64::from(LONG - SHORT) * f64::from(streams);
    let per_token = |figure: fn(&Run) -> f64| (figure(&long) - figure(&short)) / tokens;
    let (blocks, bytes) = (per_token(|run| run.blocks), per_token(|run| run.bytes));
    let texts = per_token(|run| run.texts);
    // The channel uses blocks again once they are read, so it may need fewer.
    let channel = per_token(|run| run.events) / EVENTS_IN_A_BLOCK;
    println!(
        "{name}, {streams} streams: {blocks:.3} allocations ({bytes:.0} bytes) for a token, {texts:.3} of them texts that are \
         sent; the other {:.3} are {} the {channel:.3} that the channel may need",
        blocks - texts,
        if blocks - texts <= channel { "within" } else { "MORE THAN" },
    );
}

fn run(model: &Model, request: &Request, streams: u32, max_tokens: u32) -> Run {
    let before = dhat::HeapStats::get();
    let submit = |stream: u32| {
        let tokens = (0..32).map(|place| 40 + (place * 7 + stream) % 60).collect();
        model.submit(Request { tokens, max_tokens: Some(max_tokens), ..request.clone() }).unwrap()
    };
    let running: Vec<_> = (0..streams).map(submit).collect();
    let (mut events, mut texts) = (0_u32, 0_u32);
    for mut stream in running {
        loop {
            let event = stream.next_blocking().unwrap();
            events += 1;
            match event {
                StreamEvent::Text(_) => texts += 1,
                StreamEvent::Done(_) => break,
                StreamEvent::Error(error) => panic!("{error}"),
                _ => {}
            }
        }
    }
    let after = dhat::HeapStats::get();
    Run {
        blocks: (after.total_blocks - before.total_blocks) as f64,
        bytes: (after.total_bytes - before.total_bytes) as f64,
        events: f64::from(events),
        texts: f64::from(texts),
    }
}
