//! Decode times with drafts beside those without, on forced replies.
//!
//! Each exchange is played without drafts, with drafts from its own context and with drafts from all that was stored, in
//! turn. The three have models of their own, so that none learns from the steps of another, and tenants of their own: what
//! one of them stored is never a source for another, and no reply is played twice for a tenant.

use std::path::Path;
use std::sync::Arc;

use poncho_cache::{Cache, CacheConfig, OwnerId};
use poncho_engine::backend::{ContextOptions, KvLayout, Token};
use poncho_engine::{Drafts, Mode, Model, ModelConfig, Privacy, Request, Sampling, Tenant};

use crate::forced::ForcedBackend;
use crate::traces::{Exchange, Trace};

/// Tokens of a context, and the least with shorter prompts: those of the generated exchanges, and the longest reply.
const CONTEXT: usize = 16384;
const SHORTEST: usize = 1024;
const REPLY: usize = 512;
/// Lengths that cut prompts have.
const DISTINCT: usize = 128;
/// Rounds of generated exchanges, and the tokens of each reply.
pub(crate) const ROUNDS: usize = 16;
const GENERATED_REPLY: u32 = 128;
const SOURCES: [Drafts; 3] = [Drafts::Off, Drafts::Context, Drafts::Stored];

/// What is played.
pub(crate) struct Plan {
    /// Numbers of streams.
    pub(crate) streams: Vec<usize>,
    /// One exchange of this many.
    pub(crate) share: usize,
    /// The last tokens of a prompt that are kept; `None` for all, without the exchanges that do not fit.
    pub(crate) prompt: Option<usize>,
    /// Rounds of each kind of generated exchanges.
    pub(crate) rounds: usize,
    /// How often the recorded exchanges are played, each time by other tenants.
    pub(crate) times: u8,
}

/// Tokens after the first one, steps and seconds of one source of drafts.
#[derive(Debug, Clone, Copy, Default)]
struct Played {
    tokens: usize,
    steps: usize,
    /// Until the last reply was there.
    seconds: f64,
    /// The times of all replies together.
    waited: f64,
    /// The times until the first tokens, all together: of prompts that are sent for the first time, which other plays may have
    /// left in the cache, and of the same ones again.
    sent_first: f64,
    sent_again: f64,
    replies: usize,
    /// Of the processor: what other programs take of it does not count.
    busy: f64,
}

impl Played {
    fn rate(self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    /// Tokens for each second of a reply: what its reader sees.
    fn reply_rate(self) -> f64 {
        self.tokens as f64 / self.waited
    }

    /// Tokens for each second of the processor.
    fn busy_rate(self) -> f64 {
        self.tokens as f64 / self.busy.max(f64::MIN_POSITIVE)
    }

    /// Milliseconds until the first token, of a prompt that is sent for the first time and of the same one again.
    fn first(self) -> String {
        let millis = |seconds: f64| seconds * 1e3 / self.replies.max(1) as f64;
        format!("{:.1} and {:.2}", millis(self.sent_first), millis(self.sent_again))
    }

    /// Tokens a step, and milliseconds of a step.
    fn steps(self) -> String {
        let steps = self.steps.max(1) as f64;
        format!("{:.2} in {:.2} ms", self.tokens as f64 / steps, self.seconds * 1e3 / steps)
    }
}

/// The plays of a trace, by source.
#[derive(Default)]
struct Sums {
    all: [Played; 3],
    /// For each group the speeds with drafts as factors of that without.
    factors: [Vec<f64>; 2],
}

impl Sums {
    fn add(&mut self, played: [Played; 3]) {
        self.add_times(played);
        let [off, drafted @ ..] = played;
        self.factors.iter_mut().zip(drafted).for_each(|(all, one)| all.push(one.reply_rate() / off.reply_rate()));
    }

    fn add_times(&mut self, played: [Played; 3]) {
        for (sum, played) in self.all.iter_mut().zip(played) {
            sum.tokens += played.tokens;
            sum.steps += played.steps;
            sum.seconds += played.seconds;
            sum.waited += played.waited;
            sum.sent_first += played.sent_first;
            sum.sent_again += played.sent_again;
            sum.replies += played.replies;
            sum.busy += played.busy;
        }
    }

    fn extend(&mut self, other: Self) {
        self.add_times(other.all);
        self.factors.iter_mut().zip(other.factors).for_each(|(all, own)| all.extend(own));
    }

    fn row(&self, name: &str) {
        let [off, drafted @ ..] = self.all;
        if off.tokens == 0 {
            return;
        }
        let factor = |source: usize| {
            let mut sorted = self.factors[source].clone();
            sorted.sort_unstable_by(f64::total_cmp);
            let [least, low, median, high] = [0, 1, 2, 3].map(|quarter| sorted[(sorted.len() - 1) * quarter / 4]);
            let whole = drafted[source].reply_rate() / off.reply_rate();
            format!("{whole:.3} (median {median:.3}, {low:.2} to {high:.2}, least {least:.2})")
        };
        let steps = self.all.map(Played::steps).join(" | ");
        let busy = drafted.map(|drafted| format!("{:.3}", drafted.busy_rate() / off.busy_rate())).join(" | ");
        let last = drafted.map(|drafted| format!("{:.3}", drafted.rate() / off.rate())).join(" | ");
        let first = self.all.map(Played::first).join(" | ");
        let (tokens, rate) = (off.tokens, off.reply_rate());
        let factors = [factor(0), factor(1)].join(" | ");
        println!("| {name} | {tokens} | {rate:.1} | {factors} | {last} | {busy} | {first} | {steps} |");
    }
}

/// Prints the speeds of all traces. What a trace has too few exchanges for is played together with that of others.
pub(crate) fn print(path: &Path, traces: Vec<Trace>, plan: &Plan) {
    assert!(plan.prompt.is_none_or(|prompt| prompt > 2 * DISTINCT), "a prompt needs more than {} tokens", 2 * DISTINCT);
    let context = plan.prompt.map_or(CONTEXT, |prompt| (prompt + REPLY).max(SHORTEST));
    let mut chosen: Vec<(String, Vec<Exchange>)> = Vec::new();
    let mut played = 0;
    for Trace { name, exchanges } in traces {
        let numbered = exchanges.into_iter().zip(played..);
        let fitting = numbered.map(|(exchange, number)| cut(exchange, plan.prompt, number));
        let fitting = fitting.filter(|exchange| exchange.prompt.len() + exchange.reply.len() < context);
        chosen.push((name, fitting.step_by(plan.share).collect()));
        played += 1 + chosen.last().map_or(0, |(_, exchanges)| exchanges.len() * plan.share);
    }
    for &streams in &plan.streams {
        println!(
            "| {streams} at once | reply tokens | off, tokens/s of a reply | context | stored | until the last reply: context | stored \
             | by processor time: context | stored | first token, ms, sent first and again: off | context | stored \
             | a step: off | context | stored |"
        );
        println!("|{}", " --- |".repeat(15));
        // Two thousand steps: what a model that was just loaded tries first must not be all that is seen.
        let generated = u32::try_from(plan.rounds * streams.max(4)).unwrap();
        let kinds = [("nothing repeats", noise as fn(u32) -> Exchange), ("always wrong", wrong)];
        for (name, make) in kinds.into_iter().filter(|_| generated > 0) {
            let exchanges: Vec<Exchange> = (0..generated).map(make).collect();
            let mut models = Models::load(path, context, streams);
            models.play(&exchanges.iter().collect::<Vec<_>>(), 0).row(name);
        }
        let mut models = Models::load(path, context, streams);
        let groups = Group::of_traces(&chosen, streams);
        let mut sums: Vec<Sums> = groups.iter().map(|_| Sums::default()).collect();
        for time in 0..plan.times {
            for (group, sums) in groups.iter().zip(&mut sums) {
                sums.extend(models.play(&group.exchanges, time));
                if time + 1 == plan.times {
                    sums.row(group.name);
                }
            }
        }
        let mut all = Sums::default();
        sums.into_iter().for_each(|sums| all.extend(sums));
        all.row("all traces");
        println!();
    }
}

/// Exchanges of which as many as there are streams are played at once.
struct Group<'a> {
    name: &'a str,
    exchanges: Vec<&'a Exchange>,
}

impl<'a> Group<'a> {
    /// One for each trace, and one with what they have too few exchanges for.
    fn of_traces(traces: &'a [(String, Vec<Exchange>)], streams: usize) -> Vec<Self> {
        let mut rest = Vec::new();
        let mut groups: Vec<Self> = Vec::new();
        for (name, exchanges) in traces {
            let whole = exchanges.len() - exchanges.len() % streams;
            groups.push(Self { name, exchanges: exchanges[..whole].iter().collect() });
            rest.extend(&exchanges[whole..]);
        }
        groups.push(Self { name: "several traces", exchanges: rest });
        groups
    }
}

/// A model for each source, with a planner that knows nothing yet.
struct Models {
    streams: usize,
    backend: ForcedBackend,
    models: [Model; 3],
    turns: usize,
}

impl Models {
    fn load(path: &Path, context: usize, streams: usize) -> Self {
        let backend = ForcedBackend::default();
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(16 << 30)).unwrap());
        let models = SOURCES.map(|drafts| load(path, context, streams, drafts, &backend, &cache));
        Self { streams, backend, models, turns: 0 }
    }

    /// Plays as many exchanges at once as there are streams, and leaves a last group out that is not full.
    fn play(&mut self, exchanges: &[&Exchange], time: u8) -> Sums {
        let mut sums = Sums::default();
        for group in exchanges.chunks_exact(self.streams) {
            let mut played = [Played::default(); 3];
            // Another one first each time.
            self.turns += 1;
            for source in (0..3).map(|turn| (self.turns + turn) % 3) {
                played[source] = play(&self.models[source], &self.backend, group, (source, time));
            }
            sums.add(played);
        }
        sums
    }
}

fn load(
    path: &Path,
    context: usize,
    streams: usize,
    drafts: Drafts,
    backend: &ForcedBackend,
    cache: &Arc<Cache>,
) -> Model {
    let config = ModelConfig {
        context: ContextOptions {
            n_ctx: u32::try_from(context).unwrap(),
            n_seq_max: u32::try_from(streams).unwrap(),
            // As `poncho serve` has it.
            kv: if streams > 1 { KvLayout::Split } else { KvLayout::Unified },
            spare_busy_cpus: false,
            ..ContextOptions::default()
        },
        drafts,
        ..ModelConfig::new("bench", path)
    };
    Model::load(config, Arc::new(backend.clone()), Arc::clone(cache)).unwrap()
}

/// An exchange with the last tokens of its prompt. Prompts of one group have different lengths, so that each finds its reply.
fn cut(mut exchange: Exchange, prompt: Option<usize>, number: usize) -> Exchange {
    let most = |prompt: usize| prompt.saturating_sub(2 * (number % DISTINCT));
    let surplus = prompt.map_or(0, |prompt| exchange.prompt.len().saturating_sub(most(prompt)));
    exchange.prompt.drain(..surplus);
    exchange
}

/// Plays exchanges at once. The clock starts with the first token of a reply.
fn play(model: &Model, backend: &ForcedBackend, group: &[&Exchange], tenant: (usize, u8)) -> Played {
    let requests: Vec<Request> = group.iter().map(|exchange| request(exchange, tenant)).collect();
    let mut sent_first = 0.0;
    for (request, exchange) in requests.iter().zip(group) {
        backend.play(&[exchange]);
        let done = model.complete(Request { mode: Mode::PrefillOnly, ..request.clone() }).unwrap();
        sent_first += done.prefill_time.as_secs_f64();
    }
    backend.play(group);
    let before = busy();
    let streams: Vec<_> = requests.into_iter().map(|request| model.submit(request).unwrap()).collect();
    let done: Vec<_> = streams.into_iter().map(|stream| stream.wait().unwrap()).collect();
    let busy = busy() - before;
    for (done, exchange) in done.iter().zip(group) {
        assert_eq!(done.generated, exchange.reply, "the reply was not the recorded one");
    }
    let times = || done.iter().map(|done| done.generation_time.as_secs_f64());
    let (seconds, waited) = (times().fold(0.0, f64::max), times().sum());
    let sent_again = done.iter().map(|done| done.prefill_time.as_secs_f64()).sum();
    let replies = done.len();
    let tokens = done.iter().map(|done| done.generated.len().saturating_sub(1)).sum();
    let steps = done.iter().map(|done| done.drafts.steps).sum();
    Played { tokens, steps, seconds, waited, sent_first, sent_again, replies, busy }
}

/// Seconds that this process has taken of the processor, in steps of 10 ms; 0 where the system does not say.
fn busy() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
    // User and system time, after state, parent, group, session, terminal, its group, flags and four counts of faults.
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn request(exchange: &Exchange, (source, time): (usize, u8)) -> Request {
    let mut owner = [0; 16];
    (owner[0], owner[1]) = (u8::try_from(source + 1).unwrap(), time);
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
pub(crate) fn noise(number: u32) -> Exchange {
    Exchange { prompt: (0..128).map(|place| token(number, place)).collect(), reply: reply(number) }
}

/// An exchange in which the last tokens of the reply, up to five, are always found in the prompt, with a wrong one after
/// them.
pub(crate) fn wrong(number: u32) -> Exchange {
    let reply = reply(number + 1000);
    let mut prompt = Vec::new();
    // The latest match counts, so the shortest comes last.
    for matched in reply.windows(5).chain([4, 3, 2, 1].map(|length| &reply[..length])) {
        prompt.extend_from_slice(matched);
        prompt.push(token(number + 1000, 2000 + u32::try_from(prompt.len()).unwrap()));
    }
    Exchange { prompt, reply }
}

fn reply(number: u32) -> Vec<Token> {
    (600..600 + GENERATED_REPLY).map(|place| token(number, place)).collect()
}

/// No exchange has a token at two places, and what follows a token differs from exchange to exchange.
fn token(number: u32, place: u32) -> Token {
    // The places of an exchange are different multiples of its number modulo a prime.
    const PRIME: u32 = 40_009;
    1000 + place * (number + 1) % PRIME
}
