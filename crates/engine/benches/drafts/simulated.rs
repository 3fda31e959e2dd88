//! Recorded replies with several streams, in the time of a machine that is not there.
//!
//! The planner is the engine's, and so are the guesses; what a call takes comes from a table of measured times, so every run
//! has the same result. It shows what drafts lose on a trace, which is less than calls on a real machine vary by.

use poncho_engine::draft::Drafter;
use poncho_engine::draft::context::ContextDrafter;
use poncho_engine::draft::corpus::Corpus;
use poncho_engine::schedule::drafts::{Acceptance, Candidate, DraftPlanner, Joining, LONGEST, Tick};
use poncho_engine::{Drafts, backend::SeqId};

use crate::speed::{noise, wrong};
use crate::traces::{Exchange, Trace};
use crate::{filed, interpolated, key};

/// Generated exchanges of each kind.
const GENERATED: u32 = 64;

/// Measured times.
#[derive(Clone, Copy)]
struct Machine {
    name: &'static str,
    /// Milliseconds of a pass by its rows.
    passes: &'static [(usize, f64)],
    /// What a call takes longer after one with other passes.
    change: f64,
}

const MACHINES: [Machine; 2] = [
    Machine {
        name: "H200, 8B-shaped Q4_0",
        passes: &[(1, 3.95), (2, 4.4), (4, 5.0), (8, 6.8), (16, 10.4), (32, 13.9), (64, 21.5), (256, 67.0)],
        change: 0.35,
    },
    Machine {
        name: "two cores, SmolLM2 Q4_1",
        passes: &[(1, 24.7), (2, 41.0), (3, 53.0), (4, 67.0), (8, 150.0), (16, 305.0), (256, 4880.0)],
        change: 0.0,
    },
];
/// Times vary by this part.
const SPREAD: f64 = 0.05;

/// A server: one planner, and what was stored.
struct Server {
    machine: Machine,
    drafts: Drafts,
    planner: DraftPlanner,
    corpus: Corpus,
    stored: u64,
    last: Vec<usize>,
    calls: u64,
}

/// A reply that is being written.
struct Reply<'a> {
    exchange: &'a Exchange,
    tokens: Vec<u32>,
    left: &'a [u32],
    context: ContextDrafter,
    own: Acceptance,
}

impl<'a> Reply<'a> {
    /// The first token is drawn from the logits of the prompt.
    fn new(exchange: &'a Exchange) -> Self {
        let (tokens, left) = ([exchange.prompt.as_slice(), &exchange.reply[..1]].concat(), &exchange.reply[1..]);
        Self { exchange, tokens, left, context: filed(exchange), own: Acceptance::NONE }
    }
}

impl Server {
    fn new(machine: Machine, drafts: Drafts) -> Self {
        let (planner, corpus) = (DraftPlanner::default(), Corpus::default());
        Self { machine, drafts, planner, corpus, stored: 0, last: Vec::new(), calls: 0 }
    }

    fn store(&mut self, tokens: &[u32]) {
        if self.drafts == Drafts::Stored {
            self.stored += 1;
            self.corpus.add(key(self.stored), tokens);
        }
    }

    /// Plays exchanges. Returns the milliseconds of all replies together: what their readers wait for.
    fn play(&mut self, exchanges: &[Exchange], streams: usize) -> f64 {
        let mut waiting = exchanges.iter().filter(|exchange| exchange.reply.len() > 1);
        let mut running: Vec<Option<Reply<'_>>> = (0..streams).map(|_| None).collect();
        let mut waited = 0.0;
        loop {
            for place in &mut running {
                if place.as_ref().is_none_or(|reply| reply.left.is_empty()) {
                    if let Some(over) = place.take() {
                        self.store(&over.exchange.whole());
                    }
                    if let Some(exchange) = waiting.next() {
                        self.store(&exchange.prompt);
                        *place = Some(Reply::new(exchange));
                    }
                }
            }
            let mut active: Vec<(SeqId, &mut Reply<'_>)> =
                (0..).zip(&mut running).filter_map(|(seq, reply)| Some((seq, reply.as_mut()?))).collect();
            if active.is_empty() {
                return waited;
            }
            let count = active.len() as f64;
            waited += count * self.call(&mut active);
        }
    }

    /// One call; returns its milliseconds.
    fn call(&mut self, active: &mut [(SeqId, &mut Reply<'_>)]) -> f64 {
        let requests: Vec<SeqId> = active.iter().map(|(seq, _)| *seq).collect();
        let between = requests[0]..requests[requests.len() - 1];
        let bridges: Vec<SeqId> = between.filter(|seq| !requests.contains(seq)).collect();
        let joining = Joining::Neighbours { requests, bridges };
        let tick = Tick { decodes: active.len(), prefill_seconds: 0.0, room: 64, joining };
        let mut guesses = Vec::new();
        let mut lengths = vec![0; active.len()];
        if self.drafts != Drafts::Off {
            if self.planner.is_worth_looking(&tick) {
                let mut candidates = Vec::new();
                for (_, reply) in active.iter_mut() {
                    let most = LONGEST.min(reply.left.len());
                    let own = reply.context.draft(&reply.tokens, most);
                    let stored = if self.stored > 0 { self.corpus.draft(&reply.tokens, most) } else { None };
                    let guess = match own {
                        Some(own) => Some(own.or(stored)),
                        None => stored,
                    };
                    let found = |guess: &poncho_engine::draft::Draft| {
                        self.planner.acceptance.candidate(&reply.own, guess.matched, guess.tokens.len())
                    };
                    candidates.push(guess.as_ref().map_or(Candidate::NONE, found));
                    guesses.push(guess);
                }
                lengths.copy_from_slice(self.planner.plan(&tick, &candidates));
            } else {
                self.planner.plan(&tick, &[]);
            }
        }
        guesses.resize_with(active.len(), || None);
        let mut right = 0;
        for (((_, reply), rows), guess) in active.iter_mut().zip(&lengths).zip(guesses) {
            let mut accepted = 0;
            if let Some(guess) = guess.filter(|_| *rows > 0) {
                let same = guess.tokens.iter().take(*rows).zip(reply.left);
                accepted = same.take_while(|(guess, token)| guess == token).count();
                // What follows the last token of a reply was not compared with a draw.
                let is_refused = accepted < *rows && accepted < reply.left.len();
                self.planner.acceptance.record(guess.matched, accepted, is_refused);
                reply.own.record(guess.matched, accepted, is_refused);
            }
            right += accepted;
            let (drawn, left) = reply.left.split_at((accepted + 1).min(reply.left.len()));
            reply.tokens.extend_from_slice(drawn);
            reply.left = left;
        }
        let passes = tick.passes(&lengths);
        let mut millis: f64 = passes.iter().map(|rows| interpolated(self.machine.passes, *rows)).sum();
        if passes != self.last {
            millis += self.machine.change;
        }
        self.last = passes;
        self.calls += 1;
        millis *= 1.0 + SPREAD * ((self.calls * 7919 % 101) as f64 / 50.0 - 1.0);
        if self.drafts != Drafts::Off {
            self.planner.record(&tick, &lengths, right, millis / 1e3);
        }
        millis
    }
}

/// Prints the factors of all traces for these numbers of streams: while there are always as many replies, and in groups that
/// all begin at once and end one after the other. The last `prompt` tokens of each prompt are kept.
pub(crate) fn print(mut traces: Vec<Trace>, streams: &[usize], prompt: usize) {
    for exchange in traces.iter_mut().flat_map(|trace| &mut trace.exchanges) {
        exchange.prompt.drain(..exchange.prompt.len().saturating_sub(prompt));
    }
    for (machine, &streams) in MACHINES.iter().flat_map(|machine| streams.iter().map(move |count| (*machine, count))) {
        println!("{}\n", machine.name);
        println!("| {streams} at once | reply tokens | context | stored | in groups: context | stored |");
        println!("|{}", " --- |".repeat(6));
        let servers = || [Drafts::Off, Drafts::Context, Drafts::Stored].map(|drafts| Server::new(machine, drafts));
        let (mut always, mut grouped) = (servers(), servers());
        let (mut sums, mut all) = ([[0.0; 3]; 2], 0);
        for trace in &traces {
            let tokens: usize = trace.exchanges.iter().map(|exchange| exchange.reply.len()).sum();
            let times = play_both(&trace.exchanges, streams, &mut always, &mut grouped);
            row(&trace.name, tokens, times);
            sums.iter_mut().flatten().zip(times.into_iter().flatten()).for_each(|(sum, time)| *sum += time);
            all += tokens;
        }
        row("all", all, sums);
        for (name, make) in [("nothing repeats", noise as fn(u32) -> Exchange), ("always wrong", wrong)] {
            let exchanges: Vec<Exchange> = (0..GENERATED).map(make).collect();
            let tokens = exchanges.iter().map(|exchange| exchange.reply.len()).sum();
            let [mut always, mut grouped] = [servers(), servers()];
            row(name, tokens, play_both(&exchanges, streams, &mut always, &mut grouped));
        }
        println!();
    }
}

/// The times of all sources: while there are always as many replies, and in groups.
fn play_both(
    exchanges: &[Exchange],
    streams: usize,
    always: &mut [Server; 3],
    grouped: &mut [Server; 3],
) -> [[f64; 3]; 2] {
    let groups = || exchanges.chunks(streams);
    [
        always.each_mut().map(|server| server.play(exchanges, streams)),
        grouped.each_mut().map(|server| groups().map(|group| server.play(group, streams)).sum()),
    ]
}

fn row(name: &str, tokens: usize, times: [[f64; 3]; 2]) {
    let factors = times.map(|[off, context, stored]| format!("{:.3} | {:.3}", off / context, off / stored));
    println!("| {name} | {tokens} | {} |", factors.join(" | "));
}
