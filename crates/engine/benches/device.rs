//! What a GPU gains from stored states: cold, from memory, from the page cache and after a restart, beside the bare copy of
//! the bytes and beside llama.cpp's own loop.
//!
//! `scripts/gpu/run.py` runs it with `PONCHO_BENCH_MODEL` and `PONCHO_BACKENDS`; without a GPU it measures the processor.
//! Rounds alternate; quartiles are printed.

#![expect(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "a benchmark may stop at once")]

#[path = "device/exactness.rs"]
mod exactness;
#[path = "../tests/llama/invariance/table.rs"]
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use poncho_cache::{Cache, CacheConfig, HitKind, Needs, PartKind};
use poncho_engine::backend::llama::{DeviceSources, LlamaBackend, copy_times, devices, libraries_in, use_devices};
use poncho_engine::backend::{Backend, Batch, BatchRow, Context, ContextOptions, DecodeOutcome, ModelOptions};
use poncho_engine::reply::sampler::argmax;
use poncho_engine::{Drafts, Mode, Model, ModelConfig, Request, Sampling, StreamEvent};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HITS: usize = 9;
const COLD: usize = 3;
const TURNS: usize = 40;
const REPLY: u32 = 128;
/// Another prompt, which takes the sequence away.
const OTHER: usize = 600;
/// An idle time that is long enough to lock memory for a prompt: locking begins after half a second.
const REST: Duration = Duration::from_millis(700);
const REST_PER_TOKEN: Duration = Duration::from_micros(120);

fn main() {
    let folders = std::env::var_os("PONCHO_BACKENDS").map(PathBuf::from);
    let found = folders.iter().flat_map(|folder| libraries_in(folder));
    let libraries = found.filter_map(|(path, verdict)| verdict.is_ok().then_some(path)).collect();
    use_devices(DeviceSources { libraries, workers: Vec::new() }).unwrap();
    let path = std::env::var_os("PONCHO_BENCH_MODEL").map_or_else(poncho_testkit::default_model_path, PathBuf::from);
    let lengths = std::env::var("PONCHO_BENCH_LENGTHS").unwrap_or_else(|_| "2048,8192,32768".to_owned());
    let lengths: Vec<usize> = lengths.split(',').map(|length| length.parse().unwrap()).collect();
    for device in devices() {
        println!("device {} ({}), {} MiB free", device.name, device.description, device.free >> 20);
    }
    println!("model {}", path.file_name().unwrap().to_string_lossy());
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    let folder = std::env::var_os("PONCHO_BENCH_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from);
    if wanted("exactness") {
        exactness::print(&path);
    }
    if wanted("loop") {
        beside_bare_loop(&path, lengths[0]);
    }
    for length in lengths {
        if wanted("rows") {
            one_row(&path, &folder, length);
        }
        if wanted("turns") {
            conversation(&path, length);
        }
        if wanted("pauses") {
            pauses(&path, length);
        }
    }
}

fn config(path: &Path, length: usize) -> ModelConfig {
    let n_ctx = u32::try_from(length + 1024).unwrap();
    let mut config = ModelConfig {
        context: ContextOptions { n_ctx, n_seq_max: 1, ..ContextOptions::default() },
        prefill_chunk: poncho_engine::PrefillChunk::Unlimited,
        // The benchmark `drafts` measures those.
        drafts: Drafts::Off,
        ..ModelConfig::new("bench", path)
    };
    (config.gates.min_tokens, config.gates.cold_min_tokens) = (1, 1);
    config.gates.cold_max_tokens = u32::MAX;
    config
}

fn load(path: &Path, length: usize, cache: &Arc<Cache>) -> Model {
    Model::load(ModelConfig { chain_limit: 0, ..config(path, length) }, Arc::new(LlamaBackend), Arc::clone(cache))
        .unwrap()
}

/// Tokens without meaning, different for each number.
fn prompt(number: u32, count: usize) -> Vec<u32> {
    (0..u32::try_from(count).unwrap()).map(|position| 1000 + (position * 7919 + number * 104_729) % 40_000).collect()
}

fn request(tokens: &[u32], max_tokens: u32) -> Request {
    Request {
        max_tokens: Some(max_tokens),
        sampling: Sampling::greedy(),
        ignore_eos: true,
        ..Request::new(tokens.to_vec())
    }
}

fn first_token(model: &Model, tokens: &[u32]) -> (f64, HitKind) {
    let started = Instant::now();
    let mut stream = model.submit(request(tokens, 1)).unwrap();
    let mut first = None;
    loop {
        match stream.next_blocking().unwrap() {
            StreamEvent::Token { .. } => first = first.or(Some(started.elapsed())),
            StreamEvent::Done(done) => return (first.unwrap().as_secs_f64() * 1e3, done.hit),
            StreamEvent::Error(error) => panic!("{error}"),
            _ => {}
        }
    }
}

fn shown(mut values: Vec<f64>) -> String {
    values.sort_unstable_by(f64::total_cmp);
    let at = |quarter: usize| values[(values.len() - 1) * quarter / 4];
    format!("{:.2} ({:.2} to {:.2})", at(2), at(1), at(3))
}

fn middle(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The idle time between two prompts.
fn rest(length: usize) {
    std::thread::sleep(REST + REST_PER_TOKEN * u32::try_from(length).unwrap());
}

/// Cold, from memory, from memory on a machine that never rests, from the page cache, after a restart.
fn one_row(path: &Path, folder: &Path, length: usize) {
    let other = prompt(9, OTHER);
    for (name, rests, on_disk) in
        [("memory without a rest", false, false), ("memory", true, false), ("page cache", false, true)]
    {
        let between = || {
            if rests {
                rest(length)
            }
        };
        let store = tempfile::tempdir_in(folder).unwrap();
        let open = || {
            let config = if on_disk {
                CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(store.path().join("kv"), 64 << 30) }
            } else {
                CacheConfig::in_memory(64 << 30)
            };
            Arc::new(Cache::open(config).unwrap())
        };
        let cache = open();
        let model = load(path, length, &cache);
        first_token(&model, &other);
        let cold = |round: usize| {
            between();
            first_token(&model, &prompt(20 + u32::try_from(round).unwrap(), length)).0
        };
        let cold: Vec<f64> = (0..COLD).map(cold).collect();
        let tokens = prompt(1, length);
        between();
        first_token(&model, &tokens);
        cache.flush();
        let bytes = stored_bytes(&cache, &model, &tokens);
        let copies = copy_times(bytes, HITS);
        let (mut times, mut hits) = (Vec::new(), 0);
        for _ in 0..HITS {
            first_token(&model, &other);
            let (time, hit) = first_token(&model, &tokens);
            hits += usize::from(hit == HitKind::Exact);
            times.push(time);
        }
        let rate = bytes as f64 / 1e6 / middle(&times);
        println!("{length} tokens, {:.1} MB: cold ms {}", bytes as f64 / 1e6, shown(cold.clone()));
        println!(
            "{length} tokens from {name} ({hits} of {HITS} restored): ms {}, {rate:.1} GB/s, cold : hit {:.0} : 1{}",
            shown(times.clone()),
            middle(&cold) / middle(&times),
            beside_copy(copies.as_deref(), middle(&times))
        );
        if on_disk {
            drop(model);
            drop(cache);
            let cache = open();
            let model = load(path, length, &cache);
            let (time, hit) = first_token(&model, &tokens);
            println!("{length} tokens after a restart, first request: ms {time:.2}, {hit:?}");
        }
    }
}

fn beside_copy(copies: Option<&[Duration]>, time: f64) -> String {
    let Some(copies) = copies else { return String::new() };
    let copies: Vec<f64> = copies.iter().map(|copy| copy.as_secs_f64() * 1e3).collect();
    format!("; page-locked copy of the bytes ms {}, {:.2} of it", shown(copies.clone()), middle(&copies) / time)
}

fn stored_bytes(cache: &Cache, model: &Model, tokens: &[u32]) -> usize {
    let plan = cache.lookup(&model.namespace(), tokens, Needs::ATTENTION).unwrap();
    let kinds = [PartKind::Attention, PartKind::Logits];
    let lengths = plan.rows().iter().flat_map(|row| kinds.iter().filter_map(|kind| row.length(*kind)));
    usize::try_from(lengths.sum::<u64>()).unwrap()
}

/// A conversation of many turns, each stored as a row of its own, from memory.
fn conversation(path: &Path, length: usize) {
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(64 << 30)).unwrap());
    let model = load(path, length, &cache);
    let (tokens, other) = (prompt(1, length), prompt(9, OTHER));
    rest(length);
    for turn in 1..=TURNS {
        let asked = Request { mode: Mode::PrefillOnly, ..request(&tokens[..length * turn / TURNS], 1) };
        model.submit(asked).unwrap().wait().unwrap();
    }
    cache.flush();
    let rows = cache.lookup(&model.namespace(), &tokens, Needs::ATTENTION).unwrap().rows().len();
    let bytes = stored_bytes(&cache, &model, &tokens);
    let copies = copy_times(bytes, HITS);
    let mut times = Vec::new();
    for _ in 0..HITS {
        first_token(&model, &other);
        times.push(first_token(&model, &tokens).0);
    }
    println!(
        "{length} tokens in {rows} rows from memory: ms {}{}",
        shown(times.clone()),
        beside_copy(copies.as_deref(), middle(&times))
    );
}

/// The longest gap between tokens of a reply, which is saved while it runs, beside the median gap: without time between the
/// replies, so that most of what is saved lies in plain memory, and with it. Page-locked memory is never freed, so this part
/// uses what earlier parts locked; run it alone, with one length, to see the worst case.
fn pauses(path: &Path, length: usize) {
    for rests in [false, true] {
        pauses_of(path, length, rests);
    }
}

fn pauses_of(path: &Path, length: usize, rests: bool) {
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(64 << 30)).unwrap());
    let model = load(path, length, &cache);
    let (mut longest, mut usual, mut prefill) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..5 {
        if rests {
            rest(length);
        }
        let mut stream = model.submit(request(&prompt(40 + round, length), REPLY)).unwrap();
        let (mut last, mut gaps): (Option<Instant>, Vec<f64>) = (None, Vec::new());
        loop {
            match stream.next_blocking().unwrap() {
                StreamEvent::Token { .. } => {
                    let now = Instant::now();
                    gaps.extend(last.replace(now).map(|last| (now - last).as_secs_f64() * 1e3));
                }
                StreamEvent::Done(done) => {
                    prefill.push(done.prefill_time.as_secs_f64() * 1e3);
                    break;
                }
                StreamEvent::Error(error) => panic!("{error}"),
                _ => {}
            }
        }
        longest.push(gaps.iter().copied().fold(0.0, f64::max));
        usual.push(middle(&gaps));
    }
    let time = if rests { "with" } else { "without" };
    let most = longest.iter().copied().fold(0.0, f64::max);
    println!(
        "{length} tokens, {time} time between replies: prefill ms {}, gaps {}, the longest {}, at most {most:.1}",
        shown(prefill),
        shown(usual),
        shown(longest)
    );
}

/// Prefill and decode of one request beside the same calls without the engine.
fn beside_bare_loop(path: &Path, length: usize) {
    let loaded = LlamaBackend.load_model(&ModelOptions::new(path)).unwrap();
    let options = config(path, length).context;
    let mut context = loaded.new_context(&options, Arc::new(AtomicBool::new(false))).unwrap();
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap());
    let mut settings = config(path, length);
    settings.gates.min_tokens = u32::MAX;
    settings.gates.cold_min_tokens = u32::MAX;
    settings.gates.boundary_align_tokens = u32::MAX;
    settings.gates.boundary_trim_tokens = 0;
    let model = Model::load(settings, Arc::new(LlamaBackend), cache).unwrap();
    let (mut prefill, mut decode, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=8_u32 {
        let tokens = prompt(round, length);
        let ours = |model: &Model| {
            let done = model.submit(request(&tokens, REPLY)).unwrap().wait().unwrap();
            (done.prefill_time.as_secs_f64(), done.generation_time.as_secs_f64())
        };
        let (bare, engine) = if round % 2 == 0 {
            let bare = bare_loop(&mut *context, &tokens);
            (bare, ours(&model))
        } else {
            let engine = ours(&model);
            (bare_loop(&mut *context, &tokens), engine)
        };
        if round > 0 {
            prefill.push(bare.0 / engine.0);
            decode.push(bare.1 / engine.1);
            rates.push(f64::from(REPLY - 1) / engine.1);
        }
    }
    println!("prefill of {length} tokens: {} of the bare loop", shown(prefill));
    println!("decode after {length} tokens: {} of the bare loop; tokens/s {}", shown(decode), shown(rates));
}

fn bare_loop(context: &mut dyn Context, tokens: &[u32]) -> (f64, f64) {
    context.clear();
    let n_batch = context.info().n_batch as usize;
    let started = Instant::now();
    let mut position = 0;
    for chunk in tokens.chunks(n_batch) {
        let last = position as usize + chunk.len() == tokens.len();
        let rows = chunk.iter().enumerate().map(|(index, token)| BatchRow {
            token: *token,
            pos: position + u32::try_from(index).unwrap(),
            seq: 0,
            want_logits: last && index + 1 == chunk.len(),
        });
        assert_eq!(context.decode(&Batch { rows: rows.collect() }), DecodeOutcome::Done);
        position += u32::try_from(chunk.len()).unwrap();
    }
    let mut next = argmax(context.logits((tokens.len() - 1) % n_batch).unwrap()).unwrap();
    let prefill = started.elapsed().as_secs_f64();
    let started = Instant::now();
    for step in 0..REPLY - 1 {
        let row = BatchRow { token: next, pos: position + step, seq: 0, want_logits: true };
        assert_eq!(context.decode(&Batch { rows: vec![row] }), DecodeOutcome::Done);
        next = argmax(context.logits(0).unwrap()).unwrap();
    }
    (prefill, started.elapsed().as_secs_f64())
}
