//! What the server costs on top of the engine: per request, per streamed token, and in throughput, on the stub backend.
//!
//! `make bench` runs it. The stub computes next to nothing, so what is left is the way from the socket to the engine and
//! back. Every figure has its contender in the same run: the engine called directly, with the same tokens and limits, from
//! tasks of the same runtime. Rounds alternate, and so does who goes first. Medians and quartiles are printed.
//! PONCHO_BENCH_ROUNDS shortens a run.

#![expect(clippy::indexing_slicing, clippy::unwrap_used, reason = "a benchmark may stop at once")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::Request as HttpRequest;
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use poncho_api::ChatSettings;
use poncho_cache::{Cache, CacheConfig, Gates};
use poncho_engine::backend::stub::{StubBackend, StubTemplate, vocab};
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{Engine, FingerprintSource, Host, Model, ModelConfig, Request, Sampling};
use poncho_server::{ServerConfig, serve};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

const ROUNDS: usize = 400;
/// Tokens of a reply with per-token timing.
const REPLY: u32 = 256;
const CLIENTS: usize = 8;
/// Requests of each client in a round of throughput.
const EACH: usize = 4;
/// What a decode call of a small model takes on a small machine: the share of a server is measured beside that.
const DECODE: Duration = Duration::from_millis(5);
/// The pace at which single tokens are timed: slow enough that each is sent by itself.
const PACE: Duration = Duration::from_millis(1);
/// What the threads of the server are called.
const SERVER: &str = "server";

type Client = SendRequest<Full<Bytes>>;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_name(SERVER).enable_all().build().unwrap();
    let clients = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let rounds = std::env::var("PONCHO_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    println!("stub backend, loopback, {rounds} rounds, {} cores", std::thread::available_parallelism().unwrap());
    let bench = Bench::start(&runtime, &clients, None);
    bench.requests(rounds);
    bench.tokens(rounds / 4 + 1);
    Bench::start(&runtime, &clients, Some(PACE)).processor_time(rounds / 20 + 2);
    let slow = Bench::start(&runtime, &clients, Some(DECODE));
    slow.throughput(rounds / 20 + 1);
}

struct Bench<'r> {
    /// Of the server, and of direct calls to the engine.
    runtime: &'r Runtime,
    /// Of the clients, on this thread.
    clients: &'r Runtime,
    model: Model,
    address: std::net::SocketAddr,
}

impl<'r> Bench<'r> {
    /// A server with one model; each decode call takes `decode` if it is given.
    fn start(runtime: &'r Runtime, clients: &'r Runtime, decode: Option<Duration>) -> Self {
        let backend = StubBackend::new(MemoryKind::Attention).with_template(StubTemplate::Full);
        if let Some(decode) = decode {
            backend.faults().busy_decodes(decode);
        }
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap());
        let engine = Arc::new(Engine::new(Arc::new(backend), cache));
        let n_seq_max = u32::try_from(CLIENTS).unwrap();
        let context = ContextOptions { n_ctx: 4096, n_cells: Some(65536), n_seq_max, ..ContextOptions::default() };
        let config = ModelConfig {
            context,
            fingerprint: FingerprintSource::FastUnsafe([7; 32]),
            // Nothing is saved: packing a state is the engine's work, not the server's.
            gates: Gates::CLOSED,
            ..ModelConfig::new("stub", Path::new("stub"))
        };
        engine.load(config).unwrap();
        let model = engine.get("stub").unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let node = Arc::new(Host::new(engine, ChatSettings::default()));
        runtime.spawn(serve(listener, node, ServerConfig::default(), std::future::pending()));
        Self { runtime, clients, model, address }
    }

    async fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// The engine alone, called as the server calls it: submitted off the async threads, read on one of them.
    fn engine(&self, asked: &Asked) -> Duration {
        let (model, request) = (self.model.clone(), asked.request());
        let started = Instant::now();
        self.runtime.block_on(self.runtime.spawn(read(model, request))).unwrap();
        started.elapsed()
    }

    /// What a streamed token costs the server's threads, beyond what reading the engine's own stream costs them.
    fn processor_time(&self, rounds: usize) {
        let mut client = self.clients.block_on(self.connect());
        let mut over = Vec::new();
        for round in 0..rounds {
            let long = Asked { round, max_tokens: REPLY, stream: true };
            let mut http = || {
                let before = server_time();
                self.clients.block_on(send(&mut client, &long));
                server_time() - before
            };
            let engine = || {
                let before = server_time();
                self.engine(&long);
                server_time() - before
            };
            let (server, engine) = if round % 2 == 0 {
                let engine = engine();
                (http(), engine)
            } else {
                (http(), engine())
            };
            if round > 0 {
                over.push((micros(server) - micros(engine)) / f64::from(REPLY));
            }
        }
        println!("server on top, processor time of a streamed token sent by itself  {} us", shown(over));
    }

    /// A reply of one token: the whole way there and back, minus the engine's part of it.
    fn requests(&self, rounds: usize) {
        let mut client = self.clients.block_on(self.connect());
        let (mut over, mut alone) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let asked = Asked { round, max_tokens: 1, stream: false };
            let mut http = || {
                let started = Instant::now();
                self.clients.block_on(send(&mut client, &asked));
                started.elapsed()
            };
            let (server, engine) = if round % 2 == 0 {
                let engine = self.engine(&asked);
                (http(), engine)
            } else {
                (http(), self.engine(&asked))
            };
            if round > rounds / 10 {
                over.push(micros(server) - micros(engine));
                alone.push(micros(engine));
            }
        }
        println!("engine alone, one request       {} us", shown(alone));
        println!("server on top, one request      {} us   (target: below 200)", shown(over));
    }

    /// A long reply: what each token costs more over the socket than in the engine's own stream.
    fn tokens(&self, rounds: usize) {
        let mut client = self.clients.block_on(self.connect());
        let (mut over, mut alone) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let long = Asked { round, max_tokens: REPLY, stream: true };
            let short = Asked { round, max_tokens: 1, stream: true };
            let mut http = |asked: &Asked| {
                let started = Instant::now();
                self.clients.block_on(send(&mut client, asked));
                started.elapsed()
            };
            let (server, engine) = if round % 2 == 0 {
                let engine = [self.engine(&short), self.engine(&long)];
                ([http(&short), http(&long)], engine)
            } else {
                ([http(&short), http(&long)], [self.engine(&short), self.engine(&long)])
            };
            let each = |[short, long]: [Duration; 2]| (micros(long) - micros(short)) / f64::from(REPLY - 1);
            if round > 0 {
                over.push(each(server) - each(engine));
                alone.push(each(engine));
            }
        }
        println!("engine alone, one token         {} us", shown(alone));
        println!("server on top, streamed token   {} us   (target: below 10)", shown(over));
    }

    /// Eight clients at once over the server, against eight tasks on the engine.
    fn throughput(&self, rounds: usize) {
        let mut clients: Vec<Client> =
            self.clients.block_on(async { futures_util::future::join_all((0..CLIENTS).map(|_| self.connect())).await });
        let mut ratios = Vec::new();
        for round in 0..rounds {
            let (server, engine) = if round % 2 == 0 {
                let engine = self.engine_round(round);
                (self.server_round(round, &mut clients), engine)
            } else {
                (self.server_round(round, &mut clients), self.engine_round(round))
            };
            if round > 0 {
                ratios.push(micros(engine) / micros(server));
            }
        }
        let decode = DECODE.as_secs_f64() * 1000.0;
        println!(
            "throughput of {CLIENTS} clients, server / engine, decode calls of {decode} ms  {}   (target: at least 0.97)",
            shown(ratios)
        );
    }

    fn engine_round(&self, round: usize) -> Duration {
        let started = Instant::now();
        let callers = (0..CLIENTS).map(|client| {
            let model = self.model.clone();
            self.runtime.spawn(async move {
                for number in 0..EACH {
                    read(model.clone(), work(round, client, number).request()).await;
                }
            })
        });
        let callers: Vec<_> = callers.collect();
        self.runtime.block_on(futures_util::future::join_all(callers));
        started.elapsed()
    }

    fn server_round(&self, round: usize, clients: &mut [Client]) -> Duration {
        let started = Instant::now();
        let clients = clients.iter_mut().enumerate().map(|(place, client)| async move {
            for number in 0..EACH {
                send(client, &work(round, place, number)).await;
            }
        });
        self.clients.block_on(async { futures_util::future::join_all(clients).await });
        started.elapsed()
    }
}

fn work(round: usize, client: usize, number: usize) -> Asked {
    Asked { round: (round * CLIENTS + client) * EACH + number, max_tokens: 32, stream: true }
}

/// The same request for both ways.
struct Asked {
    round: usize,
    max_tokens: u32,
    stream: bool,
}

impl Asked {
    fn text(&self) -> String {
        format!("Question number {} about ponchos, cloaks and capes.", self.round)
    }

    fn body(&self) -> String {
        let Self { max_tokens, stream, .. } = self;
        format!(
            r#"{{"model":"stub","temperature":0,"max_tokens":{max_tokens},"ignore_eos":true,"stream":{stream},"messages":[{{"role":"user","content":"{}"}}]}}"#,
            self.text()
        )
    }

    fn request(&self) -> Request {
        let prompt = format!("<s><|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", self.text());
        let sampling = Sampling::greedy();
        let max_tokens = Some(self.max_tokens);
        Request { max_tokens, sampling, ignore_eos: true, ..Request::new(vocab::tokens(&prompt)) }
    }
}

/// Submits a request and reads its stream to the end.
async fn read(model: Model, request: Request) {
    let mut stream = tokio::task::spawn_blocking(move || model.submit(request).unwrap()).await.unwrap();
    while stream.next().await.is_some() {}
}

/// The processor time of the server's threads, as Linux counts it.
fn server_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let own = tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == SERVER));
    // A thread may end between the two readings.
    let times = own.filter_map(|task| std::fs::read_to_string(task.join("schedstat")).ok());
    Duration::from_nanos(times.map(|text| text.split(' ').next().unwrap().parse::<u64>().unwrap()).sum())
}

async fn send(client: &mut Client, asked: &Asked) {
    let request = HttpRequest::post("/v1/chat/completions")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(asked.body())))
        .unwrap();
    client.ready().await.unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(!asked.stream || body.ends_with(b"data: [DONE]\n\n"));
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The median, and the quartiles behind it.
fn shown(mut values: Vec<f64>) -> String {
    values.sort_unstable_by(f64::total_cmp);
    let [low, middle, high] = [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4]);
    format!("{middle:8.3} ({low:.3} to {high:.3})")
}
