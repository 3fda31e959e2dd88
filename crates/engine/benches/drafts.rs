//! Drafts on recorded conversations: tokens a step with replies forced, and what the index costs.
//!
//! `cargo bench --profile release -p poncho-engine --bench drafts -- MODEL TRACES` reads traces (docs/replay.md describes
//! them) with the tokens of a model; nothing is computed by that model. Each reply is forced: a step draws its own token and
//! those that a draft guessed right. The numbers of rows are chosen as in the engine, with the step times of a graphics card.
//! `-- MODEL TRACES speed 1,4 8` plays one of 8 exchanges through the engine with 1 and 4 streams instead, and prints decode
//! speeds with and without drafts. A third number keeps that many tokens of each prompt, a fourth one sets the rounds of
//! generated exchanges, 16 if it is missing, and a fifth one how often the recorded exchanges are played.
//! `-- MODEL TRACES simulate 1,4,16` plays all exchanges with these numbers of streams by measured times of a graphics card
//! and of a processor; a further number keeps that many tokens of each prompt.
//! `-- MODEL TRACES steps` prints times of calls by their number of rows;
//! `-- MODEL TRACES tokens FILE` writes the tokens, and FILE takes the place of TRACES for a model with another vocabulary.
//! Without arguments, as `make bench` runs it, only the index is measured, on generated rows.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a benchmark may stop at once")]

#[path = "drafts/forced.rs"]
mod forced;
#[path = "drafts/rivals.rs"]
mod rivals;
#[path = "drafts/simulated.rs"]
mod simulated;
#[path = "drafts/speed.rs"]
mod speed;
#[path = "drafts/steps.rs"]
mod steps;
#[path = "drafts/traces.rs"]
mod traces;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_cache::{Cache, CacheConfig, FingerprintMode, Key, PartKind, PayloadPart, SaveReason, SaveRequest};
use poncho_engine::backend::llama::{DeviceSources, LlamaBackend, libraries_in, use_devices};
use poncho_engine::backend::stub::StubBackend;
use poncho_engine::backend::{Backend, MemoryKind, ModelOptions};
use poncho_engine::draft::context::ContextDrafter;
use poncho_engine::draft::corpus::Corpus;
use poncho_engine::draft::{Draft, Drafter, Source};
use poncho_engine::schedule::drafts::{Acceptance, Candidate, DraftPlanner, Joining, LONGEST, Tick};
use poncho_engine::{FingerprintSource, Model, ModelConfig};

use crate::rivals::{SuffixArray, SuffixAutomaton};
use crate::traces::{Exchange, Trace};

/// Milliseconds of a step with 1, 2, 4, 6, 8 and 16 rows: an 8B-shaped Q4_0 model on an H200 with a context of 8192.
const STEPS: [(usize, f64); 6] = [(1, 4.13), (2, 4.38), (4, 5.09), (6, 5.87), (8, 6.93), (16, 9.42)];

/// What a run of replies came to.
#[derive(Debug, Clone, Default)]
struct Sum {
    tokens: usize,
    steps: usize,
    drafted: usize,
    accepted: usize,
    from_stored: usize,
    millis: f64,
    /// Nanoseconds of each lookup.
    lookups: Vec<u64>,
}

impl Sum {
    fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.steps += other.steps;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.from_stored += other.from_stored;
        self.millis += other.millis;
        self.lookups.extend(&other.lookups);
    }

    fn per_step(&self) -> f64 {
        self.tokens as f64 / self.steps.max(1) as f64
    }

    fn speed_up(&self) -> f64 {
        self.tokens as f64 * STEPS[0].1 / self.millis
    }

    /// Microseconds that this percentage of all lookups does not exceed.
    fn lookup_micros(&self, percent: usize) -> f64 {
        let mut sorted = self.lookups.clone();
        sorted.sort_unstable();
        let place = (sorted.len() - 1) * percent / 100;
        sorted[place] as f64 / 1e3
    }
}

fn step_millis(rows: usize) -> f64 {
    interpolated(&STEPS, rows)
}

/// The milliseconds of this number of rows, by a table of measured ones.
fn interpolated(table: &[(usize, f64)], rows: usize) -> f64 {
    let after = table.iter().position(|(known, _)| *known >= rows).unwrap_or(table.len() - 1);
    let (high, late) = table[after];
    if high == rows || after == 0 {
        return late;
    }
    let (low, early) = table[after - 1];
    early + (late - early) * (rows - low) as f64 / (high - low) as f64
}

fn planner() -> DraftPlanner {
    let mut planner = DraftPlanner::default();
    for (rows, millis) in STEPS {
        planner.times.record(rows, millis / 1000.0);
    }
    planner
}

/// Forces one reply, with the engine's choice of the numbers of rows.
fn force(exchange: &Exchange, planner: &mut DraftPlanner, mut look: impl FnMut(&[u32], usize) -> Option<Draft>) -> Sum {
    let mut sum = Sum { tokens: exchange.reply.len(), ..Sum::default() };
    let tick = Tick { decodes: 1, prefill_seconds: 0.0, room: 64, joining: Joining::Together };
    let mut tokens = exchange.prompt.clone();
    let mut own = Acceptance::NONE;
    let mut left = exchange.reply.as_slice();
    // The first token is drawn from the logits of the prompt.
    while let Some((drawn, rest)) = left.split_first() {
        tokens.push(*drawn);
        left = rest;
        if left.is_empty() {
            break;
        }
        let began = Instant::now();
        let draft = look(&tokens, LONGEST.min(left.len()));
        sum.lookups.push(u64::try_from(began.elapsed().as_nanos()).unwrap());
        let found = draft
            .as_ref()
            .map_or(Candidate::NONE, |draft| planner.acceptance.candidate(&own, draft.matched, draft.tokens.len()));
        let rows = planner.plan(&tick, &[found])[0];
        let mut accepted = 0;
        if let Some(draft) = draft.filter(|_| rows > 0) {
            accepted = draft.tokens.iter().take(rows).zip(left).take_while(|(guess, token)| guess == token).count();
            planner.acceptance.record(draft.matched, accepted, accepted < rows);
            own.record(draft.matched, accepted, accepted < rows);
            sum.from_stored += if draft.source == Source::Stored { accepted } else { 0 };
        }
        let millis = step_millis(1 + rows);
        planner.record(&tick, &[rows], accepted, millis / 1000.0);
        sum.steps += 1;
        sum.drafted += rows;
        sum.accepted += accepted;
        sum.millis += millis;
        tokens.extend(left.iter().take(accepted));
        left = &left[accepted..];
    }
    sum.steps += 1;
    sum.millis += STEPS[0].1;
    sum
}

/// Forces all replies of a trace; what it sent and received is stored before the next request.
fn play(trace: &Trace, source: Option<Source>, corpus: &mut Corpus, planner: &mut DraftPlanner, next: &mut u64) -> Sum {
    let mut sum = Sum::default();
    for exchange in &trace.exchanges {
        let mut context = filed(exchange);
        let stored = &*corpus;
        sum.add(&force(exchange, planner, |tokens, most| {
            let own = context.draft(tokens, most);
            match (source?, own) {
                (Source::Context, own) => own,
                (Source::Stored, None) => stored.draft(tokens, most),
                (Source::Stored, Some(own)) => Some(own.or(stored.draft(tokens, most))),
            }
        }));
        *next += 1;
        corpus.add(key(*next), &exchange.whole());
    }
    sum
}

/// The drafter of a request with all of its prompt filed, as after the first steps of its reply.
fn filed(exchange: &Exchange) -> ContextDrafter {
    let mut drafter = ContextDrafter::default();
    for _ in 0..exchange.prompt.len().div_ceil(1024) {
        let _ = drafter.draft(&exchange.prompt, 1);
    }
    drafter
}

fn key(number: u64) -> Key {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Key::from_bytes(bytes)
}

fn table(traces: &[Trace]) {
    println!("| trace | reply tokens | context | stored | stored, again | drafted a step | right | of these stored |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut sums = [Sum::default(), Sum::default(), Sum::default()];
    let row = |name: &str, [context, stored, again]: &[Sum; 3]| {
        println!(
            "| {name} | {} | {:.2} | {:.2} | {:.2} | {:.1} | {:.0} % | {:.0} % |",
            context.tokens,
            context.per_step(),
            stored.per_step(),
            again.per_step(),
            stored.drafted as f64 / stored.steps as f64,
            100.0 * stored.accepted as f64 / stored.drafted.max(1) as f64,
            100.0 * stored.from_stored as f64 / stored.accepted.max(1) as f64,
        );
    };
    let (mut corpus, mut unused, mut next) = (Corpus::default(), Corpus::default(), 0);
    let (mut of_context, mut of_stored) = (planner(), planner());
    let mut first = Vec::new();
    for trace in traces {
        let context = play(trace, Some(Source::Context), &mut unused, &mut of_context, &mut next);
        let stored = play(trace, Some(Source::Stored), &mut corpus, &mut of_stored, &mut next);
        first.push((context, stored));
    }
    for (trace, (context, stored)) in traces.iter().zip(first) {
        let again = play(trace, Some(Source::Stored), &mut corpus, &mut of_stored, &mut next);
        let own = [context, stored, again];
        row(&trace.name, &own);
        sums.iter_mut().zip(own).for_each(|(sum, own)| sum.add(&own));
    }
    row("all", &sums);
    let [context, stored, again] = sums;
    println!(
        "speed by these step times: context {:.2}x, stored {:.2}x, again {:.2}x; lookup {:.2} us, 99 % within {:.2} us",
        context.speed_up(),
        stored.speed_up(),
        again.speed_up(),
        stored.lookup_micros(50),
        stored.lookup_micros(99),
    );
    println!(
        "corpus: {} tokens of {} rows, {:.1} bytes a token\n",
        corpus.len(),
        corpus.keys().count(),
        corpus.heap_bytes() as f64 / corpus.len() as f64
    );
}

/// The same replies with other indexes, all of which hold everything that was stored before the request.
fn compare(traces: &[Trace]) {
    println!("| index | tokens a step | lookup us | 99 % within us | bytes a token | build ms |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let row = |name: &str, sum: &Sum, bytes: f64, built: Duration| {
        println!(
            "| {name} | {:.2} | {:.2} | {:.2} | {bytes:.0} | {:.0} |",
            sum.per_step(),
            sum.lookup_micros(50),
            sum.lookup_micros(99),
            built.as_secs_f64() * 1e3
        );
    };
    let (mut sum, mut built, mut plans) = (Sum::default(), Duration::ZERO, planner());
    let (mut corpus, mut number) = (Corpus::default(), 0);
    for exchange in traces.iter().flat_map(|trace| &trace.exchanges) {
        let mut context = filed(exchange);
        sum.add(&force(exchange, &mut plans, |tokens, most| {
            let own = context.draft(tokens, most);
            let stored = corpus.draft(tokens, most);
            match own {
                Some(own) => Some(own.or(stored)),
                None => stored,
            }
        }));
        number += 1;
        let began = Instant::now();
        corpus.add(key(number), &exchange.whole());
        built += began.elapsed();
    }
    row("hashed n-grams", &sum, corpus.heap_bytes() as f64 / corpus.len() as f64, built);

    let (mut sum, mut built, mut plans) = (Sum::default(), Duration::ZERO, planner());
    let mut stored = SuffixAutomaton::default();
    for exchange in traces.iter().flat_map(|trace| &trace.exchanges) {
        let began = Instant::now();
        let mut own = SuffixAutomaton::default();
        let mut place = stored.start();
        for token in &exchange.prompt {
            own.push(*token);
            stored.follow(&mut place, *token);
        }
        built += began.elapsed();
        let mut fed = exchange.prompt.len();
        sum.add(&force(exchange, &mut plans, |tokens, most| {
            for token in &tokens[fed..] {
                own.push(*token);
                stored.follow(&mut place, *token);
            }
            fed = tokens.len();
            match own.draft(most) {
                Some(draft) => Some(draft.or(stored.draft_at(&place, most))),
                None => stored.draft_at(&place, most),
            }
        }));
        let began = Instant::now();
        stored.add_new(&exchange.whole());
        built += began.elapsed();
    }
    row("suffix automaton", &sum, stored.heap_bytes() as f64 / stored.len() as f64, built);

    let (mut sum, mut built, mut plans) = (Sum::default(), Duration::ZERO, planner());
    let mut text = Vec::new();
    let mut array = SuffixArray::default();
    for exchange in traces.iter().flat_map(|trace| &trace.exchanges) {
        let began = Instant::now();
        let mut all = text.clone();
        all.extend(&exchange.prompt);
        array = SuffixArray::new(all);
        built += began.elapsed();
        sum.add(&force(exchange, &mut plans, |tokens, most| array.draft(tokens, most)));
        rivals::append_new(&mut text, &exchange.whole());
    }
    row("suffix array, built for each request", &sum, array.heap_bytes() as f64 / array.len() as f64, built);
    println!();
}

/// Build time of a model's index with this number of stored rows, as after a restart.
fn build(rows: u32) {
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 30)).unwrap());
    let config =
        || ModelConfig { fingerprint: FingerprintSource::FastUnsafe([7; 32]), ..ModelConfig::new("bench", "stub") };
    let backend = || Arc::new(StubBackend::new(MemoryKind::Attention));
    let namespace = Model::load(config(), backend(), Arc::clone(&cache)).unwrap().namespace();
    // Conversations of ten rows, each of which adds 300 tokens.
    let mut total = 0;
    for number in 0..rows {
        let (conversation, turn) = (u64::from(number / 10), number % 10);
        let tokens: Vec<u32> = (0..u64::from(turn + 1) * 300)
            .map(|place| u32::try_from((conversation * 7919 + place * place * 31 + place / 7) % 32_000).unwrap())
            .collect();
        let parts = vec![PayloadPart { kind: PartKind::Attention, bytes: vec![0; 64].into() }];
        let request = SaveRequest {
            namespace,
            mode: FingerprintMode::Safe,
            tokens: &tokens,
            base: None,
            parts,
            reason: SaveReason::Finish,
            flags: 0,
            context_size: 0,
            text: String::new(),
            tier: None,
            owner: None,
        };
        cache.save(request).unwrap();
        total += if turn == 9 { tokens.len() } else { 0 };
    }
    let began = Instant::now();
    let model = Model::load(config(), backend(), Arc::clone(&cache)).unwrap();
    let loaded = began.elapsed();
    let expected = u64::try_from(total).unwrap();
    while model.status().drafts.index_tokens < expected {
        std::thread::sleep(Duration::from_millis(1));
    }
    let drafts = model.status().drafts;
    println!(
        "{rows} rows, {total} tokens: model loaded after {:.0} ms, index complete after {:.0} ms; {:.1} MB, {:.1} bytes a stored token",
        loaded.as_secs_f64() * 1e3,
        began.elapsed().as_secs_f64() * 1e3,
        drafts.index_bytes as f64 / 1e6,
        drafts.index_bytes as f64 / total as f64,
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let [path, traces, more @ ..] = words.as_slice() {
        if let Some(folder) = std::env::var_os("PONCHO_BACKENDS") {
            let found = libraries_in(Path::new(&folder)).into_iter();
            let libraries = found.filter_map(|(path, verdict)| verdict.is_ok().then_some(path)).collect();
            use_devices(DeviceSources { libraries, workers: Vec::new() }).unwrap();
        }
        let traces = traces::read(Path::new(traces), || {
            let options = ModelOptions { vocab_only: true, ..ModelOptions::new(path) };
            LlamaBackend.load_model(&options).unwrap()
        });
        match more {
            ["simulate", streams, rest @ ..] => {
                let streams: Vec<usize> = streams.split(',').map(|count| count.parse().unwrap()).collect();
                let prompt = rest.first().map_or(usize::MAX, |prompt| prompt.parse().unwrap());
                return simulated::print(traces, &streams, prompt);
            }
            ["steps"] => return steps::print(Path::new(path)),
            ["tokens", file] => return traces::write(Path::new(file), &traces),
            ["speed", streams, share, rest @ ..] => {
                let streams = streams.split(',').map(|count| count.parse().unwrap()).collect();
                let number = |place: usize| rest.get(place).map(|number| number.parse().unwrap());
                let (prompt, rounds) = (number(0), number(1).unwrap_or(speed::ROUNDS));
                let times = number(2).map_or(1, |times| u8::try_from(times).unwrap());
                let plan = speed::Plan { streams, share: share.parse().unwrap(), prompt, rounds, times };
                return speed::print(Path::new(path), traces, &plan);
            }
            _ => {
                table(&traces);
                compare(&traces);
            }
        }
    }
    build(10_000);
}
