//! What the engine costs on top of llama.cpp, and what a stored prefix saves: ratios inside one run, on the default model.
//!
//! `make bench` runs it. Every figure has its contender in the same run: the engine beside a bare loop over the same
//! context, a hit beside the copy of its bytes, a hit beside the cold prompt. Rounds alternate, and so does who goes first;
//! each round yields one ratio, of which the quartiles are printed.

#![expect(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "a benchmark may stop at once")]

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use poncho_cache::{Cache, CacheConfig, Gates, HitKind, Needs, PartKind};
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{
    Backend, Batch, BatchRow, Context, ContextOptions, DecodeOutcome, KvLayout, ModelOptions,
};
use poncho_engine::reply::sampler::argmax;
use poncho_engine::{Model, ModelConfig, Request, Sampling, StreamEvent};

/// The allocator of the `poncho` binary, for llama.cpp's allocations too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PROMPT: usize = 2000;
/// As agents send them.
const LONG: usize = 8000;
const REPLY: u32 = 64;
/// What a turn adds to a conversation.
const TURN: u32 = 50;
/// Prompt, reply and rounds where many streams run beside llama.cpp's own batched loop.
const STREAMS: (usize, u32, usize) = (32, 128, 4);
/// A prompt that is read in rounds: short enough for many of them, because single rounds differ by a tenth here.
const READ: usize = 600;
/// Rounds of prompts, of exact replies, of replies, and of hits.
const PREFILLS: usize = 12;
const EXACT: usize = 5;
const REPLIES: usize = 16;
const HITS: usize = 30;

/// What layouts are called on the command line.
const LAYOUTS: [(&str, KvLayout); 2] = [("unified", KvLayout::Unified), ("split", KvLayout::Split)];

fn main() {
    let path = model_path();
    println!("model {}, {} threads", path.file_name().unwrap().to_string_lossy(), threads());
    // `cargo bench ... -- chains unified` runs one part with one pool of cells; cargo adds `--bench` itself.
    let named: Vec<String> = words().filter(|word| !LAYOUTS.iter().any(|(name, _)| name == word)).collect();
    let wanted = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    if wanted("throughput") {
        throughput(&path, 1, READ, PREFILLS);
        throughput(&path, 1, 64, REPLIES);
        throughput(&path, 4, 64, REPLIES);
    }
    if wanted("streams") {
        [1, 4, 8, 16].into_iter().for_each(|count| streams(&path, count));
    }
    if wanted("hits") {
        hits(&path);
    }
    if wanted("chains") {
        // What a row costs beside its bytes is the same for short and for long ones.
        chains(&path, PROMPT, &["ram", "disk"]);
        chains(&path, LONG, &["ram"]);
    }
    if wanted("saves") {
        saves(&path);
    }
    if wanted("exactness") {
        exactness(&path);
    }
}

fn model_path() -> PathBuf {
    std::env::var_os("PONCHO_BENCH_MODEL").map_or_else(poncho_testkit::default_model_path, PathBuf::from)
}

fn words() -> impl Iterator<Item = String> {
    std::env::args().skip(1).filter(|word| !word.starts_with('-'))
}

/// How sequences share cells: as named on the command line, or as the engine does by itself.
fn layout() -> KvLayout {
    let named = words().find_map(|word| LAYOUTS.iter().find(|(name, _)| *name == word).map(|(_, layout)| *layout));
    named.unwrap_or_default()
}

fn threads() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1))
}

fn context_options(n_seq_max: u32) -> ContextOptions {
    ContextOptions { n_ctx: 4096, n_seq_max, threads: Some(threads()), kv: layout(), ..ContextOptions::default() }
}

fn config(path: &std::path::Path, n_seq_max: u32) -> ModelConfig {
    ModelConfig {
        context: context_options(n_seq_max),
        prefill_chunk: poncho_engine::PrefillChunk::Unlimited,
        ..ModelConfig::new("bench", path)
    }
}

/// Tokens without meaning, different for each number.
fn prompt(number: u32, count: usize) -> Vec<u32> {
    (0..u32::try_from(count).unwrap()).map(|position| 1000 + (position * 7919 + number * 104_729) % 40_000).collect()
}

fn request(tokens: Vec<u32>, max_tokens: u32) -> Request {
    Request { max_tokens: Some(max_tokens), sampling: Sampling::greedy(), ignore_eos: true, ..Request::new(tokens) }
}

/// First quartile, median and third quartile.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_unstable_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

fn shown(values: Vec<f64>) -> String {
    let [low, middle, high] = quartiles(values);
    format!("{middle:.3} ({low:.3} to {high:.3})")
}

/// A cache that keeps nothing, so that every prompt is cold.
fn no_saves(config: ModelConfig) -> ModelConfig {
    ModelConfig { gates: Gates::CLOSED, ..config }
}

/// The bare loop: prefill in full batches, then one row per sequence and step, greedily.
fn bare_loop(context: &mut dyn Context, prompts: &[Vec<u32>], reply: u32) -> (Duration, Duration) {
    context.clear();
    let n_batch = context.info().n_batch as usize;
    let mut next = Vec::new();
    let started = Instant::now();
    for (seq, tokens) in (0_u32..).zip(prompts) {
        let mut position = 0_u32;
        for chunk in tokens.chunks(n_batch) {
            let rows = chunk.iter().enumerate().map(|(place, token)| BatchRow {
                token: *token,
                pos: position + u32::try_from(place).unwrap(),
                seq,
                want_logits: position as usize + place + 1 == tokens.len(),
            });
            let batch = Batch { rows: rows.collect() };
            assert_eq!(context.decode(&batch), DecodeOutcome::Done);
            position += u32::try_from(chunk.len()).unwrap();
            if position as usize == tokens.len() {
                next.push(argmax(context.logits(chunk.len() - 1).unwrap()).unwrap());
            }
        }
    }
    let prefill = started.elapsed();
    let started = Instant::now();
    let mut batch = Batch::default();
    for step in 0..reply - 1 {
        batch.rows.clear();
        for ((seq, tokens), token) in (0_u32..).zip(prompts).zip(&next) {
            let pos = u32::try_from(tokens.len()).unwrap() + step;
            batch.rows.push(BatchRow { token: *token, pos, seq, want_logits: true });
        }
        assert_eq!(context.decode(&batch), DecodeOutcome::Done);
        for (row, token) in next.iter_mut().enumerate() {
            *token = argmax(context.logits(row).unwrap()).unwrap();
        }
    }
    black_box(&next);
    (prefill, started.elapsed())
}

/// Engine against bare loop, `count` sequences at once, each with a prompt of `length` tokens.
fn throughput(path: &std::path::Path, count: u32, length: usize, rounds: usize) {
    let backend: Arc<dyn Backend> = Arc::new(LlamaBackend);
    let loaded = backend.load_model(&ModelOptions::new(path)).unwrap();
    let mut context = loaded.new_context(&context_options(count), Arc::new(AtomicBool::new(false))).unwrap();
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap());
    let model = Model::load(no_saves(config(path, count)), backend, cache).unwrap();
    let (mut prefills, mut replies, mut overheads, mut rates) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut reads = Vec::new();
    for round in 0..=rounds {
        let number = |seq: u32| u32::try_from(round).unwrap() * 16 + seq;
        let prompts: Vec<Vec<u32>> = (0..count).map(|seq| prompt(number(seq), length)).collect();
        let (bare, ours) = if round % 2 == 0 {
            let bare = bare_loop(&mut *context, &prompts, REPLY);
            (bare, engine_loop(&model, &prompts, REPLY))
        } else {
            let ours = engine_loop(&model, &prompts, REPLY);
            (bare_loop(&mut *context, &prompts, REPLY), ours)
        };
        // The first round warms caches and threads up.
        if round > 0 {
            prefills.push(bare.0.as_secs_f64() / ours.prefill.as_secs_f64());
            reads.push(prompts.iter().map(Vec::len).sum::<usize>() as f64 / ours.prefill.as_secs_f64());
            replies.push(bare.1.as_secs_f64() / ours.generation.as_secs_f64());
            rates.push(f64::from(count * (REPLY - 1)) / ours.generation.as_secs_f64());
            overheads.push(ours.overhead * 100.0);
        }
    }
    if length == READ {
        let (of_bare, reads) = (shown(prefills), shown(reads));
        println!("prefill of {length} tokens, {count} request: {of_bare} of the bare loop; tokens/s {reads}");
    } else {
        println!("decode, {count} requests: {} of the bare loop; tokens/s {}", shown(replies), shown(rates));
        println!("worker's own time, {count} requests: {} % of the decode time", shown(overheads));
    }
}

/// Decoding streams at once, the engine with either layout of the cells beside llama.cpp's own batched loop, which has split cells.
fn streams(path: &std::path::Path, count: u32) {
    let (length, reply, rounds) = STREAMS;
    let split = || ContextOptions { kv: KvLayout::Split, n_ctx: 512, ..context_options(count) };
    let backend: Arc<dyn Backend> = Arc::new(LlamaBackend);
    let loaded = backend.load_model(&ModelOptions::new(path)).unwrap();
    let mut context = loaded.new_context(&split(), Arc::new(AtomicBool::new(false))).unwrap();
    let engine = |options: ContextOptions| {
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap());
        let config = ModelConfig { context: options, ..config(path, count) };
        Model::load(no_saves(config), Arc::clone(&backend), cache).unwrap()
    };
    let unified = ContextOptions { kv: KvLayout::Unified, n_ctx: 512, n_cells: Some(512 * count), ..split() };
    let contenders = [("unified", engine(unified)), ("split", engine(split()))];
    let mut ratios = [Vec::new(), Vec::new()];
    let mut rates = Vec::new();
    for round in 0..=rounds {
        let number = |seq: u32| u32::try_from(round).unwrap() * 16 + seq;
        let prompts: Vec<Vec<u32>> = (0..count).map(|seq| prompt(number(seq), length)).collect();
        let bare_first = (round % 2 == 0).then(|| bare_loop(&mut *context, &prompts, reply).1);
        let ours = [0, 1].map(|place| engine_loop(&contenders[place].1, &prompts, reply).generation);
        let bare = bare_first.unwrap_or_else(|| bare_loop(&mut *context, &prompts, reply).1);
        if round > 0 {
            ratios.iter_mut().zip(ours).for_each(|(all, ours)| all.push(bare.as_secs_f64() / ours.as_secs_f64()));
            rates.push(f64::from(count * (reply - 1)) / bare.as_secs_f64());
        }
    }
    println!("{count} streams, the bare loop: {} tokens/s", shown(rates));
    for ((name, _), ratios) in contenders.iter().zip(ratios) {
        println!("{count} streams, {name} cells: {} of the bare loop", shown(ratios));
    }
}

struct Ours {
    prefill: Duration,
    generation: Duration,
    overhead: f64,
}

/// The same through the engine.
fn engine_loop(model: &Model, prompts: &[Vec<u32>], reply: u32) -> Ours {
    // Several decoders are compared from the moment on at which all their prompts are read.
    if prompts.len() > 1 {
        let reading = prompts.iter().map(|tokens| {
            let mode = poncho_engine::Mode::PrefillOnly;
            model.submit(Request { mode, ..request(tokens.clone(), reply) }).unwrap()
        });
        let reading: Vec<_> = reading.collect();
        reading.into_iter().for_each(|stream| drop(stream.wait().unwrap()));
    }
    let before = model.status();
    let streams: Vec<_> = prompts.iter().map(|tokens| model.submit(request(tokens.clone(), reply)).unwrap()).collect();
    let done: Vec<_> = streams.into_iter().map(|stream| stream.wait().unwrap()).collect();
    let after = model.status();
    let spent = (after.overhead_nanos - before.overhead_nanos) as f64;
    Ours {
        prefill: done.iter().map(|done| done.prefill_time).max().unwrap(),
        generation: done.iter().map(|done| done.generation_time).max().unwrap(),
        overhead: spent / (after.decode_nanos - before.decode_nanos) as f64,
    }
}

/// A prompt stored as 40 rows against the same prompt stored as one.
fn chains(path: &std::path::Path, length: usize, tiers: &[&str]) {
    const ROWS: usize = 40;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for name in tiers.iter().copied() {
        let open = |kind: &str| {
            let config = match name {
                "ram" => CacheConfig::in_memory(4 << 30),
                _ => CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(folder.path().join(kind), 4 << 30) },
            };
            Arc::new(Cache::open(config).unwrap())
        };
        let (tokens, other) = (prompt(1, length), prompt(2, 600));
        let model = |cache: &Arc<Cache>| {
            let mut config = ModelConfig { chain_limit: 0, ..config(path, 1) };
            config.context.n_ctx = u32::try_from(length + 1024).unwrap();
            (config.gates.min_tokens, config.gates.cold_min_tokens) = (1, 1);
            Model::load(config, Arc::new(LlamaBackend), Arc::clone(cache)).unwrap()
        };
        let (cache_of_many, cache_of_one) = (open("many"), open("one"));
        let (many, one) = (model(&cache_of_many), model(&cache_of_one));
        let read = |model: &Model, tokens: &[u32]| {
            let mode = poncho_engine::Mode::PrefillOnly;
            model.submit(Request { mode, ..request(tokens.to_vec(), 1) }).unwrap().wait().unwrap();
        };
        (1..=ROWS).for_each(|row| read(&many, &tokens[..length * row / ROWS]));
        read(&one, &tokens);
        cache_of_many.flush();
        cache_of_one.flush();
        let rows = |cache: &Cache, model: &Model| {
            cache.lookup(&model.namespace(), &tokens, Needs::ATTENTION).unwrap().rows().len()
        };
        let counts = (rows(&cache_of_many, &many), rows(&cache_of_one, &one));
        let mut ratios = Vec::new();
        for round in 0..HITS {
            let hit = |model: &Model| {
                first_token(model, &other);
                first_token(model, &tokens).0.as_secs_f64()
            };
            let (whole, chained) = if round % 2 == 0 {
                let whole = hit(&one);
                (whole, hit(&many))
            } else {
                let chained = hit(&many);
                (hit(&one), chained)
            };
            ratios.push(whole / chained);
        }
        println!(
            "restore of {} rows of {length} tokens from {name}: {} of the speed of {}",
            counts.0,
            shown(ratios),
            counts.1
        );
    }
}

/// What it takes to pack the end of a conversation, short and long, and to copy as many bytes.
fn saves(path: &std::path::Path) {
    let loaded = LlamaBackend.load_model(&ModelOptions::new(path)).unwrap();
    let options = ContextOptions { n_ctx: 8192, ..context_options(4) };
    let mut context = loaded.new_context(&options, Arc::new(AtomicBool::new(false))).unwrap();
    for length in [PROMPT, LONG] {
        bare_loop(&mut *context, &[prompt(1, length)], 1);
        let end = u32::try_from(length).unwrap();
        let mut packed = vec![1_u8; context.pack_size(0, end - TURN..end).unwrap()];
        let mut copy = packed.clone();
        let (mut times, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..HITS {
            let started = Instant::now();
            context.pack_range(0, end - TURN..end, &mut packed).unwrap();
            let time = started.elapsed().as_secs_f64();
            let started = Instant::now();
            copy.copy_from_slice(black_box(&packed));
            black_box(&copy);
            times.push(time * 1e3);
            ratios.push(time / started.elapsed().as_secs_f64());
        }
        println!(
            "packing the last {TURN} of {length} tokens: ms {}, {} times as long as copying the bytes",
            shown(times),
            shown(ratios)
        );
        // A first save has all tokens, and fresh memory to make.
        let size = context.pack_size(0, 0..end).unwrap();
        let mut kept = std::collections::VecDeque::new();
        let mut speeds = Vec::new();
        for _ in 0..HITS {
            let started = Instant::now();
            let mut fresh = LlamaBackend.host_buffer(size);
            context.pack_range(0, 0..end, fresh.as_mut()).unwrap();
            speeds.push(started.elapsed().as_secs_f64() * 1e3 / (size as f64 / 1e6));
            kept.push_back(fresh);
            if kept.len() > 4 {
                kept.pop_front();
            }
        }
        println!("packing all of {length} tokens into fresh memory: ms per MB {}", shown(speeds));
    }
}

/// What exact replies cost: the same four requests, exact and not, on a context that can do both.
fn exactness(path: &std::path::Path) {
    let exactness = poncho_engine::Exactness::OnRequest;
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap());
    let exact = ModelConfig { exactness, ..no_saves(config(path, 4)) };
    let exact = Model::load(exact, Arc::new(LlamaBackend), Arc::clone(&cache)).unwrap();
    let plain = Model::load(no_saves(config(path, 4)), Arc::new(LlamaBackend), cache).unwrap();
    let (mut against_plain, mut rates) = (Vec::new(), Vec::new());
    for round in 0..=EXACT {
        let run = |model: &Model, exact: bool| {
            let started = Instant::now();
            let number = |seq: u32| u32::try_from(round).unwrap() * 16 + seq;
            let request = |seq| Request { exact, ..request(prompt(number(seq), 256), REPLY) };
            let streams: Vec<_> = (0..4).map(|seq| model.submit(request(seq)).unwrap()).collect();
            streams.into_iter().for_each(|stream| drop(stream.wait().unwrap()));
            started.elapsed().as_secs_f64()
        };
        let (with, without) = if round % 2 == 0 {
            let with = run(&exact, true);
            (with, run(&plain, false))
        } else {
            let without = run(&plain, false);
            (run(&exact, true), without)
        };
        if round > 0 {
            against_plain.push(without / with);
            rates.push(4.0 * (256.0 + f64::from(REPLY)) / with);
        }
    }
    println!(
        "exact replies, 4 requests of 256 + {REPLY} tokens: {} of the throughput without; tokens/s {}",
        shown(against_plain),
        shown(rates)
    );
}

fn first_token(model: &Model, tokens: &[u32]) -> (Duration, HitKind) {
    let started = Instant::now();
    let mut stream = model.submit(request(tokens.to_vec(), 1)).unwrap();
    let mut first = None;
    loop {
        match stream.next_blocking().unwrap() {
            StreamEvent::Token { .. } => first = first.or(Some(started.elapsed())),
            StreamEvent::Done(done) => return (first.unwrap(), done.hit),
            StreamEvent::Error(error) => panic!("{error}"),
            _ => {}
        }
    }
}

/// An exact hit against the copy of its bytes and against the cold prompt, from memory and from the page cache.
fn hits(path: &std::path::Path) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (name, cache) in [
        ("ram", CacheConfig::in_memory(4 << 30)),
        ("disk", CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(folder.path(), 4 << 30) }),
    ] {
        let cache = Arc::new(Cache::open(cache).unwrap());
        let model = Model::load(config(path, 1), Arc::new(LlamaBackend), Arc::clone(&cache)).unwrap();
        let (tokens, other) = (prompt(1, PROMPT), prompt(2, 600));
        let (cold, kind) = first_token(&model, &tokens);
        assert_eq!(kind, HitKind::Cold);
        cache.flush();
        let (mut ratios, mut times, mut speedups) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..HITS {
            // Another prompt takes the sequence, so that the next hit comes from the cache and not from what is live.
            first_token(&model, &other);
            let before = (round % 2 == 0).then(|| copy_time(&cache, &model, &tokens));
            let (time, kind) = first_token(&model, &tokens);
            assert_eq!(kind, HitKind::Exact);
            let copy = before.unwrap_or_else(|| copy_time(&cache, &model, &tokens));
            ratios.push(time.as_secs_f64() / copy.as_secs_f64());
            times.push(time.as_secs_f64() * 1e3);
            speedups.push(cold.as_secs_f64() / time.as_secs_f64());
        }
        println!(
            "exact hit from {name}, {PROMPT} tokens: ms to the first token {}, ratio to the bytes alone {}, cold : exact {} : 1",
            shown(times),
            shown(ratios),
            shown(speedups),
        );
        let counters = cache.counters();
        println!(
            "packing: {:.2} ms per MB, {:.1} MB packed",
            counters.pack_nanos as f64 / 1e6 / (counters.pack_bytes as f64 / 1e6),
            counters.pack_bytes as f64 / 1e6
        );
    }
}

/// The least that a hit can cost: reading the parts (or nothing, if they are in memory) and copying them once.
fn copy_time(cache: &Cache, model: &Model, tokens: &[u32]) -> Duration {
    let plan = cache.lookup(&model.namespace(), tokens, Needs::ATTENTION).unwrap();
    let kinds = [PartKind::Attention, PartKind::Logits];
    let lengths = plan.rows().iter().flat_map(|segment| kinds.iter().filter_map(|kind| segment.length(*kind)));
    let mut target = vec![1_u8; usize::try_from(lengths.max().unwrap()).unwrap()];
    let mut read = vec![1_u8; target.len()];
    let mut time = Duration::ZERO;
    for segment in plan.rows() {
        for kind in kinds {
            let Some(length) = segment.length(kind).map(|length| usize::try_from(length).unwrap()) else { continue };
            let started = Instant::now();
            match segment.bytes(kind) {
                Some(bytes) => target[..length].copy_from_slice(&bytes),
                None => {
                    segment.read(kind, &mut read[..length]).unwrap();
                    target[..length].copy_from_slice(&read[..length]);
                }
            }
            time += started.elapsed();
            black_box(&target);
        }
    }
    time
}
