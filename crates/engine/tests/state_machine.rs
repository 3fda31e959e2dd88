//! Ten thousand random operations: whatever is asked, cancelled, dropped, attached and broken, every reply that comes is
//! the one a fresh computation gives, and nothing is lost at the end.

use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use poncho_cache::{Gates, HitKind, Key};
use poncho_engine::backend::stub::{DecodeFault, StubBackend, StubCall};
use poncho_engine::backend::{
    Adapter, AdapterUse, Backend, Batch, BatchRow, Context, ContextOptions, DecodeOutcome, MemoryKind, ModelOptions,
};
use poncho_engine::reply::sampler::{Draw, Sampler};
use poncho_engine::{AdapterId, Completion, EngineError, FinishReason, Mode, ModelConfig, Request, Sampling, Stream};
use tempfile::NamedTempFile;

use crate::stub::{Bench, KINDS, assert_serves, bench_with, roomy_with};
use crate::support::{memory_cache, prompt};

const RUNS: u64 = 40;
const OPERATIONS: u32 = 250;
const N_CTX: usize = 96;
const SESSIONS: [&str; 3] = ["one", "two", "three"];

/// Adapters in use, by their number, with their scales.
type Adapters = Vec<(usize, f32)>;

/// The next word of a sequence that depends on its seed only (SplitMix64).
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.word() % end.max(1) as u64).unwrap()
    }

    fn one_in(&mut self, odds: usize) -> bool {
        self.below(odds) == 0
    }

    fn small(&mut self, end: u32) -> u32 {
        u32::try_from(self.below(end as usize)).unwrap()
    }
}

/// The stub's own computation, without worker, cache or batching.
struct Oracle {
    context: Box<dyn Context>,
    adapters: Vec<Arc<dyn Adapter>>,
}

impl Oracle {
    fn new(kind: MemoryKind, files: &[NamedTempFile]) -> Self {
        let model = StubBackend::new(kind).load_model(&ModelOptions::new("stub")).unwrap();
        let options = ContextOptions { n_ctx: 4096, ..ContextOptions::default() };
        let context = model.new_context(&options, Arc::default()).unwrap();
        Self { context, adapters: files.iter().map(|file| model.load_adapter(file.path()).unwrap()).collect() }
    }

    fn read(&mut self, from: usize, tokens: &[u32]) -> Vec<f32> {
        let last = from + tokens.len() - 1;
        let rows = (from..).zip(tokens).map(|(pos, token)| BatchRow {
            token: *token,
            pos: u32::try_from(pos).unwrap(),
            seq: 0,
            want_logits: pos == last,
        });
        assert_eq!(self.context.decode(&Batch { rows: rows.collect() }), DecodeOutcome::Done);
        self.context.logits(tokens.len() - 1).unwrap().to_vec()
    }

    /// Whether these tokens are what the model says to the prompt.
    fn says(&mut self, prompt: &[u32], generated: &[u32], sampling: &Sampling, adapters: &Adapters) -> bool {
        let uses = adapters.iter().map(|(number, scale)| {
            let adapter = Arc::clone(&self.adapters[*number]);
            AdapterUse { adapter, scale: *scale }
        });
        self.context.set_adapters(&uses.collect::<Vec<_>>()).unwrap();
        self.context.clear();
        let mut sampler = Sampler::new(sampling, 0, None, prompt);
        let mut logits = self.read(0, prompt);
        for (place, token) in generated.iter().enumerate() {
            if sampler.sample(&logits, Draw::Own) != Ok(*token) {
                return false;
            }
            sampler.accept(*token).unwrap();
            logits = self.read(prompt.len() + place, &[*token]);
        }
        true
    }
}

/// A request that has not ended yet, as far as the test has seen.
struct Open {
    stream: Stream,
    request: Request,
    cancelled: bool,
    /// The adapters of all moments since it was sent: it has those of its admission.
    since: usize,
}

struct Run<'a> {
    seed: u64,
    random: Random,
    bench: Bench,
    oracle: Oracle,
    files: &'a [NamedTempFile],
    open: Vec<Open>,
    /// What was said, to go on from.
    contexts: Vec<Vec<u32>>,
    keys: Vec<Key>,
    attached: Vec<(AdapterId, usize)>,
    history: Vec<Adapters>,
    hits: HashSet<HitKind>,
    replies: usize,
    failures: usize,
}

impl<'a> Run<'a> {
    fn new(seed: u64, files: &'a [NamedTempFile]) -> Self {
        let kind = KINDS[usize::try_from(seed).unwrap() % KINDS.len()];
        let config = roomy_with(3);
        let n_ctx = u32::try_from(N_CTX).unwrap();
        // Cells for two full sequences: lack of room happens by itself too.
        let context =
            ContextOptions { n_ctx, n_cells: Some(2 * n_ctx), n_batch: 32, n_ubatch: 8, ..config.context.clone() };
        let gates = Gates { session_resume_wait_ms: 2, ..config.gates };
        let restart_pause_limit = Duration::from_millis(1);
        let config = ModelConfig { context, gates, queue_limit: 3, restart_pause_limit, ..config };
        Self {
            seed,
            random: Random(seed),
            bench: bench_with(config, &StubBackend::new(kind), &memory_cache()),
            oracle: Oracle::new(kind, files),
            files,
            open: Vec::new(),
            contexts: Vec::new(),
            keys: Vec::new(),
            attached: Vec::new(),
            history: vec![Vec::new()],
            hits: HashSet::new(),
            replies: 0,
            failures: 0,
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..40 => self.submit(),
            40..62 => self.finish(),
            62..68 => self.cancel(),
            68..72 => drop(self.take_open()),
            72..75 => drop(self.bench.model.end_session(SESSIONS[self.random.below(3)]).unwrap()),
            75..77 => drop(self.bench.model.evict().unwrap()),
            77..79 => drop((self.bench.model.sessions(), self.bench.model.requests())),
            79..85 => self.change_adapters(),
            85..88 => self.draft(),
            88..90 => drop(self.bench.cache.clear()),
            _ => self.break_something(),
        }
    }

    fn submit(&mut self) {
        let random = &mut self.random;
        let mut tokens = match self.contexts.len() {
            known if known > 0 && !random.one_in(3) => {
                let context = &self.contexts[random.below(known)];
                let kept = if random.one_in(3) { 1 + random.below(context.len()) } else { context.len() };
                context[..kept].to_vec()
            }
            _ => prompt(random.small(5), 1 + random.below(40)),
        };
        if !random.one_in(4) {
            tokens.extend(prompt(random.small(5), 1 + random.below(12)));
        }
        tokens.truncate(N_CTX - 1);
        let session_id = random.one_in(2).then(|| SESSIONS[random.below(3)].to_owned());
        let mode = match random.below(8) {
            0 => Mode::PrefillOnly,
            1 | 2 if session_id.is_some() => Mode::Continue,
            _ => Mode::Complete,
        };
        if mode == Mode::Continue {
            tokens.truncate(1 + random.below(10));
        }
        let sampling = match random.below(3) {
            0 => Sampling::greedy(),
            1 => Sampling { seed: Some(random.word()), ..Sampling::default() },
            _ => Sampling { seed: Some(1), repetition_penalty: 1.4, penalty_last_n: None, ..Sampling::default() },
        };
        let request = Request {
            mode,
            sampling,
            max_tokens: Some(1 + random.small(8)),
            stop: if random.one_in(4) { vec!["e".to_owned(), "is".to_owned()] } else { Vec::new() },
            parent_key: (!self.keys.is_empty() && random.one_in(3)).then(|| self.keys[random.below(self.keys.len())]),
            boundary_hints: (0..random.below(3)).map(|_| random.below(60)).collect(),
            ignore_eos: random.one_in(2),
            session_id,
            ..Request::new(tokens)
        };
        match self.bench.model.submit(request.clone()) {
            Ok(stream) => {
                let since = self.history.len() - 1;
                self.open.push(Open { stream, request, cancelled: false, since });
            }
            Err(error) => {
                assert!(matches!(error, EngineError::Overloaded { limit: 3, .. }), "seed {}: {error:?}", self.seed)
            }
        }
        if self.open.len() > 8 {
            self.finish();
        }
    }

    fn take_open(&mut self) -> Option<Open> {
        if self.open.is_empty() { None } else { Some(self.open.swap_remove(self.random.below(self.open.len()))) }
    }

    fn cancel(&mut self) {
        if !self.open.is_empty() {
            let place = self.random.below(self.open.len());
            self.open[place].cancelled = true;
            self.bench.model.cancel(self.open[place].stream.id());
        }
    }

    fn finish(&mut self) {
        let Some(Open { stream, request, cancelled, since }) = self.take_open() else { return };
        match stream.wait() {
            Ok(done) => self.check(&request, &done, cancelled, since),
            Err(error) => {
                self.failures += 1;
                let session = request.session_id.is_some();
                let expected = match &error {
                    EngineError::Decode { code } => [-2, -3].contains(code),
                    EngineError::NoRoom { .. } | EngineError::WorkerDied { .. } | EngineError::Overloaded { .. } => {
                        true
                    }
                    EngineError::Backend { call, .. } => call == "attaching adapters",
                    EngineError::StickyBusy { .. } => session,
                    EngineError::NoSession { .. } | EngineError::PromptTooLong { .. } => request.mode == Mode::Continue,
                    _ => false,
                };
                assert!(expected, "seed {}: {error:?}", self.seed);
            }
        }
    }

    fn check(&mut self, request: &Request, done: &Completion, cancelled: bool, since: usize) {
        let at = format!("seed {}, {request:?}, {done:?}", self.seed);
        let (said, generated) = done.context_tokens.split_at(done.prompt_tokens);
        assert_eq!(generated, done.generated, "{at}");
        match request.mode {
            Mode::Continue => assert!(said.ends_with(&request.tokens), "{at}"),
            Mode::Complete | Mode::PrefillOnly => assert_eq!(said, request.tokens, "{at}"),
        }
        let most = match request.mode {
            Mode::PrefillOnly => 0,
            _ => (request.max_tokens.unwrap() as usize).min(N_CTX - said.len()),
        };
        match done.finish_reason {
            FinishReason::Cancelled => assert!(cancelled && generated.len() <= most, "{at}"),
            FinishReason::Length => assert_eq!(generated.len(), most, "{at}"),
            FinishReason::Stop => {
                let ended = generated.last().is_some_and(|token| self.bench.model.is_end_of_generation(*token));
                assert!((ended && !request.ignore_eos) || done.stop_sequence.is_some(), "{at}");
            }
        }
        if done.finish_reason != FinishReason::Cancelled {
            let drawn = usize::from(request.mode != Mode::PrefillOnly);
            assert_eq!(done.committed_tokens, done.context_tokens.len() - drawn, "{at}");
        }
        assert!(request.stop.iter().all(|stop| !done.reply.contains(stop)), "{at}");
        let states: Vec<Adapters> = self.history[since..].to_vec();
        let is_right = states.iter().any(|state| self.oracle.says(said, generated, &request.sampling, state));
        assert!(is_right, "{at}");
        self.hits.insert(done.hit);
        self.replies += 1;
        self.keys.extend(done.finish_key);
        if done.context_tokens.len() + 12 < N_CTX {
            self.contexts.push(done.context_tokens.clone());
        }
        forget_oldest(&mut self.contexts);
        forget_oldest(&mut self.keys);
    }

    fn change_adapters(&mut self) {
        let model = &self.bench.model;
        match self.random.below(3) {
            0 if self.attached.len() < 3 => {
                let number = self.random.below(self.files.len());
                self.attached.push((model.load_adapter(self.files[number].path()).unwrap(), number));
            }
            1 if !self.attached.is_empty() => {
                let (id, _) = self.attached[self.random.below(self.attached.len())];
                let scale = [0.0, 0.5, 1.0, 2.0][self.random.below(4)];
                model.set_adapter_scale(id, scale).unwrap();
            }
            _ if !self.attached.is_empty() => {
                let (id, _) = self.attached.swap_remove(self.random.below(self.attached.len()));
                model.unload_adapter(id).unwrap();
            }
            _ => return,
        }
        let number_of = |id: AdapterId| self.attached.iter().find(|(known, _)| *known == id).unwrap().1;
        let now = model.adapters().into_iter().map(|info| (number_of(info.id), info.scale)).collect();
        self.history.push(now);
    }

    fn draft(&mut self) {
        let prefix = prompt(self.random.small(5), 1 + self.random.below(40));
        match self.bench.model.draft(prefix.clone(), 1 + self.random.below(5)) {
            Ok(drafted) => {
                let now = self.history.last().unwrap().clone();
                let is_right = self.oracle.says(&prefix, &drafted, &Sampling::greedy(), &now);
                assert!(is_right, "seed {}: {prefix:?} {drafted:?}", self.seed);
                let checked = self.bench.model.verify(prefix, drafted.clone());
                assert!(checked.is_err() || checked.unwrap().accepted == drafted.len(), "seed {}", self.seed);
            }
            Err(error) => assert!(
                matches!(
                    error,
                    EngineError::Decode { .. }
                        | EngineError::NoRoom { .. }
                        | EngineError::WorkerDied { .. }
                        | EngineError::Backend { .. }
                        | EngineError::Overloaded { .. }
                ),
                "seed {}: {error:?}",
                self.seed
            ),
        }
    }

    fn break_something(&mut self) {
        let faults = &self.bench.faults;
        let soon = 1 + self.random.below(6) as u64;
        match self.random.below(16) {
            0..3 => faults.on_decode(soon, DecodeFault::NoRoom),
            3..6 => faults.on_decode(soon, DecodeFault::Aborted),
            6 | 7 => faults.on_decode(soon, DecodeFault::Fatal(-2)),
            8 => {
                faults.on_decode(soon, DecodeFault::Fatal(-3));
                faults.on_decode(soon + 1, DecodeFault::Fatal(-3));
            }
            9 if self.random.one_in(3) => {
                faults.on_decode(soon, DecodeFault::Panic);
                faults.fail_next(StubCall::NewContext, self.random.small(2));
            }
            10 => faults.fail_next(StubCall::SetAdapters, 1),
            call => {
                let calls = [
                    StubCall::Pack,
                    StubCall::StateRead,
                    StubCall::RestoreBegin,
                    StubCall::RestoreSegment,
                    StubCall::RestoreFinish,
                ];
                faults.fail_next(calls[(call + self.random.below(5)) % 5], 1 + self.random.small(3));
            }
        }
    }

    fn drain(&mut self) {
        self.bench.faults.clear();
        while !self.open.is_empty() {
            self.finish();
        }
        for (id, _) in self.attached.drain(..) {
            self.bench.model.unload_adapter(id).unwrap();
        }
    }
}

/// Keeps the list short.
fn forget_oldest<T>(list: &mut Vec<T>) {
    if list.len() > 12 {
        list.remove(0);
    }
}

#[test]
fn ten_thousand_random_operations_leave_no_trace() {
    let files: Vec<NamedTempFile> = [&b"one adapter"[..], b"another adapter"]
        .into_iter()
        .map(|content| {
            let mut file = NamedTempFile::new().unwrap();
            file.write_all(content).unwrap();
            file
        })
        .collect();
    let (mut hits, mut replies, mut failures) = (HashSet::<HitKind>::new(), 0, 0);
    for seed in 0..RUNS {
        let mut run = Run::new(seed, &files);
        for _ in 0..OPERATIONS {
            run.step();
        }
        run.drain();
        assert_serves(&run.bench, KINDS[usize::try_from(seed).unwrap() % KINDS.len()]);
        hits.extend(&run.hits);
        replies += run.replies;
        failures += run.failures;
    }
    assert_eq!(hits.len(), HitKind::ALL.len(), "every way of finding a prompt was taken: {hits:?}");
    assert!(replies > 1500 && failures > 100, "{replies} replies, {failures} failures");
}
