//! Decode times with drafts beside those without, on forced replies.
//!
//! Each exchange is played without drafts, with drafts from its own context and with drafts from all that was stored, in
//! turn. The three have tenants of their own: what one of them stored is never a source for another, and no reply is played
//! twice for a tenant.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use poncho_cache::{Cache, CacheConfig, OwnerId};
use poncho_engine::backend::{ContextOptions, Token};
use poncho_engine::{Drafts, Mode, Model, ModelConfig, Privacy, Request, Sampling, Tenant};

use crate::forced::ForcedBackend;
use crate::traces::{Exchange, Trace};

/// Tokens of a context.
const CONTEXT: u32 = 8192;
const SOURCES: [Drafts; 3] = [Drafts::Off, Drafts::Context, Drafts::Stored];

/// Tokens, steps and seconds of one source of drafts.
#[derive(Debug, Clone, Copy, Default)]
struct Played {
    tokens: usize,
    seconds: f64,
}

impl Played {
    fn rate(self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// Prints the speeds of all traces, at these numbers of streams. `share` leaves exchanges out: one of that many is played.
pub(crate) fn print(path: &Path, traces: &[Trace], streams: &[usize], share: usize) {
    let noise = Trace { name: "nothing repeats".to_owned(), exchanges: (0..4).map(noise).collect() };
    for &streams in streams {
        let backend = ForcedBackend::default();
        let config = ModelConfig {
            context: ContextOptions {
                // All streams share the cells.
                n_ctx: CONTEXT * u32::try_from(streams).unwrap(),
                n_seq_max: u32::try_from(streams).unwrap(),
                ..ContextOptions::default()
            },
            drafts: Drafts::Stored,
            ..ModelConfig::new("bench", path)
        };
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(16 << 30)).unwrap());
        let model = Model::load(config, Arc::new(backend.clone()), cache).unwrap();
        println!("| {streams} at once | reply tokens | off, tokens/s | context | stored |");
        println!("| --- | --- | --- | --- | --- |");
        let mut all = [Played::default(); 3];
        for trace in traces.iter().chain([&noise]) {
            let fitting = |exchange: &&Exchange| exchange.prompt.len() + exchange.reply.len() < CONTEXT as usize;
            let chosen: Vec<&Exchange> = trace.exchanges.iter().filter(fitting).step_by(share).collect();
            let mut sums = [Played::default(); 3];
            for (number, group) in chosen.chunks(streams).filter(|group| group.len() == streams).enumerate() {
                // Another one first each time.
                for turn in 0..3 {
                    let source = (number + turn) % 3;
                    let played = play(&model, &backend, group, source);
                    for sum in [&mut sums[source], &mut all[source]] {
                        sum.tokens += played.tokens;
                        sum.seconds += played.seconds;
                    }
                }
            }
            row(&trace.name, &sums);
        }
        row("all", &all);
        println!();
    }
}

fn row(name: &str, [off, context, stored]: &[Played; 3]) {
    if off.tokens > 0 {
        let (context, stored) = (context.rate() / off.rate(), stored.rate() / off.rate());
        println!("| {name} | {} | {:.1} | {context:.2} | {stored:.2} |", off.tokens, off.rate());
    }
}

/// Plays exchanges at once. Their prompts are computed before the clock starts.
fn play(model: &Model, backend: &ForcedBackend, group: &[&Exchange], source: usize) -> Played {
    let requests: Vec<Request> = group.iter().map(|exchange| request(exchange, source)).collect();
    for (request, exchange) in requests.iter().zip(group) {
        backend.play(&[exchange]);
        model.complete(Request { mode: Mode::PrefillOnly, ..request.clone() }).unwrap();
    }
    backend.play(group);
    let started = Instant::now();
    let streams: Vec<_> = requests.into_iter().map(|request| model.submit(request).unwrap()).collect();
    let done: Vec<_> = streams.into_iter().map(|stream| stream.wait().unwrap()).collect();
    let seconds = started.elapsed().as_secs_f64();
    for (done, exchange) in done.iter().zip(group) {
        assert_eq!(done.generated, exchange.reply, "the reply was not the recorded one");
    }
    Played { tokens: done.iter().map(|done| done.generated.len()).sum(), seconds }
}

fn request(exchange: &Exchange, source: usize) -> Request {
    let mut owner = [0; 16];
    owner[0] = u8::try_from(source + 1).unwrap();
    Request {
        max_tokens: Some(u32::try_from(exchange.reply.len()).unwrap()),
        sampling: Sampling::greedy(),
        ignore_eos: true,
        drafts: SOURCES[source],
        tenant: Some(Tenant { id: OwnerId::from_bytes(owner), privacy: Privacy::default() }),
        ..Request::new(exchange.prompt.clone())
    }
}

/// An exchange in which nothing comes twice.
fn noise(number: u32) -> Exchange {
    let token = |place: u32| -> Token { 1000 + (place.wrapping_mul(7919) + number * 104_729) % 40_000 };
    Exchange { prompt: (0..600).map(token).collect(), reply: (600..728).map(token).collect() }
}
