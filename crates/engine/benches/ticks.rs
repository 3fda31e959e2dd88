//! A run of a fixed number of ticks on the stub, for counting instructions.
//!
//! `scripts/count_instructions.sh` runs it twice under callgrind with different lengths and subtracts, which leaves what one
//! tick costs. Alone, as `make bench` runs it, it prints the time of a tick. The stub computes next to nothing, so what is
//! left is the engine's own work; the stub's share is printed by the script. `PONCHO_PARSE=1` prints instead what taking
//! a long reply apart costs: bytes parsed and time for each token, and how both grow with the reply.

#![expect(clippy::unwrap_used, reason = "a benchmark may stop at once")]

use std::sync::Arc;
use std::time::Instant;

use poncho_cache::{Cache, CacheConfig, Gates};
use poncho_engine::backend::stub::{StubBackend, vocab};
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{Model, ModelConfig, ParseCost, ReplyShape, Request, Sampling, parse_cost};

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// Cost of replies of growing length; the ratios are to the shortest, so that a linear cost stays near 1.
fn parse_costs() {
    for shape in [ReplyShape::Content, ReplyShape::Thinking, ReplyShape::Call] {
        let mut first = None;
        for tokens in [1000, 2000, 4000, 8000] {
            // The fastest of several: the machine may be busy.
            let runs = (0..9).map(|_| parse_cost(shape, tokens));
            let ParseCost { parsed_bytes, parses, time, .. } = runs.min_by_key(|cost| cost.time).unwrap();
            let bytes = parsed_bytes as f64 / tokens as f64;
            let nanos = time.as_secs_f64() * 1e9 / tokens as f64;
            let (first_bytes, first_nanos) = *first.get_or_insert((bytes, nanos));
            println!(
                "{shape:?} {tokens} tokens: {parses} parses, {bytes:.1} bytes parsed a token ({:.2}x), {nanos:.0} ns a token ({:.2}x)",
                bytes / first_bytes,
                nanos / first_nanos
            );
        }
    }
}

fn main() {
    if number("PONCHO_PARSE", 0) != 0 {
        return parse_costs();
    }
    let (tokens, streams) = (number("PONCHO_TICKS", 2000), number("PONCHO_STREAMS", 1));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stub.gguf");
    std::fs::copy(poncho_testkit::model_path(poncho_testkit::ModelKind::Attention), &path).unwrap();
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap());
    let n_cells = Some(8192 * streams);
    let context =
        ContextOptions { n_ctx: 8192, n_cells, n_seq_max: streams, threads: Some(1), ..ContextOptions::default() };
    let config = ModelConfig { context, gates: Gates::CLOSED, ..ModelConfig::new("bench", path) };
    let backend = Arc::new(StubBackend::new(MemoryKind::Attention));
    let model = Model::load(config, backend, cache).unwrap();
    let before = model.status().ticks;
    let began = Instant::now();
    let submit = |stream: u32| {
        let prompt = vocab::tokens(&format!("Count the ticks of stream {stream}."));
        let request = Request { max_tokens: Some(tokens), ignore_eos: true, ..Request::new(prompt) };
        model.submit(Request { sampling: Sampling::greedy(), ..request }).unwrap()
    };
    let running: Vec<_> = (0..streams).map(submit).collect();
    running.into_iter().for_each(|stream| drop(stream.wait().unwrap()));
    let (time, ticks) = (began.elapsed(), model.status().ticks - before);
    println!("{streams} streams: {ticks} ticks, {:.2} us a tick", time.as_secs_f64() * 1e6 / ticks as f64);
}
