//! A short request beside busy programs: all threads, one thread, and as many as the others leave (the default).
//!
//! `cargo bench -p poncho-engine --bench neighbours --profile release` runs it on the default model. The neighbours are
//! processes that do nothing but count. Rounds alternate between the numbers of neighbours, and inside a round every
//! setting has its turn, in another order each time. Quartiles of the time of a request are printed. `-- 2` makes two
//! rounds instead of six, of one to two minutes each.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a benchmark may stop at once")]

use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{Backend, Batch, BatchRow, Context, ContextOptions, DecodeOutcome, Model, ModelOptions};

/// The allocator of the `poncho` binary, for llama.cpp's allocations too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Set for a process that is a neighbour.
const BUSY: &str = "PONCHO_BENCH_BUSY";
/// Tokens of a prompt and of a reply.
const REQUEST: (u32, u32) = (64, 16);
/// Requests of a setting in one round: the default has to notice its neighbours first, as a server does. A setting that has
/// taken this long is not asked again in that round: it is one of those that do not notice anything.
const REQUESTS: usize = 4;
const ENOUGH: Duration = Duration::from_secs(4);
const ROUNDS: usize = 6;

/// A neighbour, ended with the value.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        Self(command.env(BUSY, "1").stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    if std::env::var_os(BUSY).is_some() {
        let mut count = 0_u64;
        loop {
            count = black_box(count.wrapping_add(1));
        }
    }
    let path = model_path();
    let cpus = u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap();
    println!("model {}, {cpus} CPUs", path.file_name().unwrap().to_string_lossy());
    let model = LlamaBackend.load_model(&ModelOptions::new(path)).unwrap();
    let settings = [
        ("all threads, --poll 0", Some(cpus), 0),
        ("all threads, --poll 50", Some(cpus), 50),
        ("all threads, --poll 100", Some(cpus), 100),
        ("one thread", Some(1), 0),
        ("the default", None, 0),
        ("the default, --poll 50", None, 50),
    ];
    let mut contexts = settings.map(|(_, threads, poll)| context(&model, threads, poll));
    let neighbours = [0, 1, cpus];
    let mut times = vec![vec![Vec::new(); settings.len()]; neighbours.len()];
    let rounds = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(ROUNDS);
    for round in 0..rounds {
        for (place, count) in neighbours.iter().enumerate() {
            let busy: Vec<Busy> = (0..*count).map(|_| Busy::start()).collect();
            for turn in 0..settings.len() {
                let setting = (turn + round) % settings.len();
                let took = last_request(&mut *contexts[setting]).as_secs_f64() * 1e3;
                times[place][setting].push(took);
                eprintln!("round {round}, {count} busy programs, {}: {took:.0} ms", settings[setting].0);
            }
            drop(busy);
        }
    }
    for (count, times) in neighbours.iter().zip(times) {
        println!("beside {count} busy programs, ms for a request of {} + {} tokens:", REQUEST.0, REQUEST.1);
        for ((name, ..), mut times) in settings.iter().zip(times) {
            times.sort_unstable_by(f64::total_cmp);
            let [low, middle, high] = [1, 2, 3].map(|quarter| times[(times.len() - 1) * quarter / 4]);
            println!("  {name}: {middle:.0} ({low:.0} to {high:.0})");
        }
    }
}

fn model_path() -> PathBuf {
    std::env::var_os("PONCHO_BENCH_MODEL").map_or_else(poncho_testkit::default_model_path, PathBuf::from)
}

fn context(model: &Arc<dyn Model>, threads: Option<u32>, poll: u32) -> Box<dyn Context> {
    let options = ContextOptions { n_ctx: 512, n_seq_max: 1, threads, poll, ..ContextOptions::default() };
    model.new_context(&options, Arc::new(AtomicBool::new(false))).unwrap()
}

/// The time of the last request of a round.
fn last_request(context: &mut dyn Context) -> Duration {
    let started = Instant::now();
    let mut took = request(context);
    for _ in 1..REQUESTS {
        if started.elapsed() >= ENOUGH {
            break;
        }
        took = request(context);
    }
    took
}

/// A cold prompt and a reply, token by token.
fn request(context: &mut dyn Context) -> Duration {
    context.clear();
    let row = |pos, want_logits| BatchRow { token: 1000 + pos * 37, pos, seq: 0, want_logits };
    let (prompt, reply) = REQUEST;
    let started = Instant::now();
    let batch = Batch { rows: (0..prompt).map(|pos| row(pos, pos + 1 == prompt)).collect() };
    assert_eq!(context.decode(&batch), DecodeOutcome::Done);
    for pos in prompt..prompt + reply {
        assert_eq!(context.decode(&Batch { rows: vec![row(pos, true)] }), DecodeOutcome::Done);
        black_box(context.logits(0));
    }
    started.elapsed()
}
