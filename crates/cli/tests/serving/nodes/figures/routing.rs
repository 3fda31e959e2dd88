//! What a router costs, what it saves, and what it does with a prompt that everybody sends.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use poncho_testkit::default_model_path;
use serde_json::{Value, json};

use super::fleet::{Fleet, Recipe, counter};
use super::measuring::{Proxy, complete, milliseconds, percentile};
use super::{is_whole, quick_model, text};
use crate::served::Served;
use crate::serving::stopping::until;
use crate::support::{run, without_settings};

const NODES: usize = 4;
const PREFILLED: &str = "poncho_model_prefilled_tokens_total";
const GENERATED: &str = "poncho_model_generated_tokens_total";

#[test]
fn a_router_adds_little_to_a_reply_and_nothing_to_its_text() {
    let (letters, rounds, reply) = if is_whole() { (10_000, 200, 256) } else { (1500, 2, 8) };
    let flags = ["--ctx-size", "16384", "--threads", "1", "--parallel", "2", "--save-min-tokens", "16"];
    let mut fleet = Fleet::start(NODES, Recipe::new(quick_model(), &flags));
    let prompt = text(1, letters);
    let direct: Vec<Served> = (0..NODES).map(|place| fleet.direct(place)).collect();
    // Every node has the prompt: what is left is the way.
    let texts: Vec<String> = direct.iter().map(|served| complete(served.address, &prompt, reply).text).collect();
    let expected = &texts[0];
    assert!(texts.iter().all(|text| text == expected), "all nodes compute the same: {texts:?}");
    let router = fleet.router();
    fleet.settle();
    let tokenize = |served: &Served, text: &str| {
        let started = Instant::now();
        let answer = served.post("/tokenize", &json!({"model": "x", "content": text}));
        (milliseconds(started.elapsed()), answer["tokens"].as_array().unwrap().len())
    };
    let (mut ways, mut alone, mut routed, mut reading) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let front = &direct[round % NODES];
        let once = |served: &Served| {
            let reply = complete(served.address, &prompt, 1);
            assert!(reply.computed() < 64, "it is cached everywhere: {}", reply.usage);
            milliseconds(reply.first)
        };
        // Another one first each time: a busy machine is as busy for both.
        let (own, through) = if round % 2 == 0 {
            let own = once(front);
            (own, once(&router))
        } else {
            let through = once(&router);
            (once(front), through)
        };
        let reads = tokenize(front, &prompt).0 - tokenize(front, "a").0;
        alone.push(own);
        routed.push(through);
        reading.push(reads);
        ways.push(through - own - reads);
    }
    for served in direct.iter().chain([&router]) {
        assert_eq!(&complete(served.address, &prompt, reply).text, expected);
    }
    let tokens = tokenize(&direct[0], &prompt).1;
    for (what, values) in [("direct", &alone), ("router", &routed), ("tokenizing", &reading), ("beyond", &ways)] {
        let (half, most) = (percentile(values, 50), percentile(values, 99));
        println!("1. first token of {tokens} cached tokens, {what}: p50 {half:.2} ms, p99 {most:.2} ms");
    }
}

#[test]
fn replies_through_a_router_are_the_same_and_timed() {
    // Tokens of a model without weights come faster than anybody reads them.
    let (model, rounds, reply) = if is_whole() { (default_model_path(), 24, 64) } else { (quick_model(), 1, 8) };
    let flags = ["--ctx-size", "2048", "--threads", "1", "--parallel", "2"];
    let mut fleet = Fleet::start(2, Recipe::new(model, &flags));
    let direct = [fleet.direct(0), fleet.direct(1)];
    let router = fleet.router();
    let prompt = text(3, 200);
    let rate = |served: &Served| {
        let reply = complete(served.address, &prompt, reply);
        (reply.rest.as_secs_f64(), reply.text)
    };
    // Every node has the prompt.
    let (expected, other) = (rate(&direct[0]).1, rate(&direct[1]).1);
    assert_eq!(expected, other);
    fleet.settle();
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let front = &direct[round % 2];
        let [(own, said), (through, routed)] = if round % 2 == 0 {
            let own = rate(front);
            [own, rate(&router)]
        } else {
            let through = rate(&router);
            [rate(front), through]
        };
        assert_eq!((&said, &routed), (&expected, &expected));
        ratios.push(own / through);
    }
    let [low, middle, high] = [25, 50, 75].map(|percent| percentile(&ratios, percent));
    println!("1. decode through the router: {middle:.3} of direct ({low:.3} to {high:.3})");
}

/// Prompt tokens that were computed for conversations over a shared beginning, one turn of each after the other.
fn converse(address: SocketAddr, (talks, turns): (usize, usize), settle: impl Fn()) -> u64 {
    let system = text(99, 1200);
    let mut past: Vec<String> = (0..talks).map(|talk| format!("{system}\nTask {talk}. ")).collect();
    let mut computed = 0;
    for turn in 0..turns {
        for prompt in &mut past {
            prompt.push_str(&text(turn, 300));
            let reply = complete(address, prompt, 4);
            computed += reply.computed();
            prompt.push_str(&reply.text);
            settle();
        }
    }
    computed
}

/// Replays recorded conversations at a server. Returns the tokens that were computed, and those that were new.
fn replay(traces: &Path, served: &str) -> (u64, u64) {
    let bench = Path::new(env!("CARGO_BIN_EXE_poncho")).with_file_name("poncho-bench");
    let mut command = without_settings(bench);
    command.args(["replay", "--json", "--at-once", "4", "--url", served]).arg(traces);
    let replayed = run(&mut command);
    let report: Value =
        serde_json::from_str(&replayed.stdout).unwrap_or_else(|error| panic!("{error}: {}", replayed.stderr));
    let sum = |name: &str| report["traces"].as_array().unwrap().iter().map(|trace| trace[name].as_u64().unwrap()).sum();
    (sum("tokens_prefilled"), sum("tokens_new"))
}

#[test]
fn conversations_are_replayed_on_one_node_and_on_four() {
    let traces = std::env::var_os("PONCHO_CLUSTER_TRACES").map(PathBuf::from).filter(|_| is_whole());
    let size = if is_whole() { (6, 12) } else { (2, 2) };
    // The generated model has a token for each byte, with which recorded prompts do not fit.
    let model = std::env::var_os("PONCHO_CLUSTER_MODEL").map(PathBuf::from).filter(|_| traces.is_some());
    let model = model.unwrap_or_else(quick_model);
    let flags = |ram: &str, disk: &str| {
        let all = ["--ctx-size", "65536", "--threads", "1", "--parallel", "4", "--save-min-tokens", "64"];
        let cache = ["--cache-ram", ram, "--cache-size", disk];
        Recipe::new(model.clone(), &[&all[..], &cache].concat())
    };
    let measure = |address: SocketAddr, settle: &dyn Fn()| match &traces {
        Some(traces) => replay(traces, &format!("http://{address}")),
        None => (converse(address, size, settle), 0),
    };
    let mut one = Fleet::start(1, flags("256MiB", "1GiB"));
    let front = one.direct(0);
    let (alone, new) = measure(front.address, &|| ());
    drop((front, one));
    let mut fleet = Fleet::start(NODES, flags("64MiB", "256MiB"));
    let router = fleet.router();
    let settle = || {
        if !is_whole() {
            fleet.settle()
        }
    };
    let (routed, _) = measure(router.address, &settle);
    let of_one = |computed: u64| computed as f64 / alone as f64;
    println!("2. tokens computed: one node {alone} (new: {new}), router {routed} ({:.3})", of_one(routed));
    drop((router, fleet));
    let mut fleet = Fleet::start(NODES, flags("64MiB", "256MiB"));
    let fronts: Vec<Served> = (0..NODES).map(|place| fleet.direct(place)).collect();
    let proxy = Proxy::random(fronts.iter().map(|front| front.address).collect());
    let (random, _) = measure(proxy.address, &|| ());
    println!("2. tokens computed with random routing: {random} ({:.3} of one node)", of_one(random));
    // A router minimises seconds. With a model that computes faster than it pulls, that is not the fewest tokens, so
    // the short run only shows that conversations over all nodes are answered.
    assert!(alone > 0 && routed > 0 && random > 0, "one node {alone}, router {routed}, random {random}");
}

#[test]
fn a_prompt_that_everybody_sends_is_answered_on_all_nodes() {
    let (model, prompt) =
        if is_whole() { (default_model_path(), text(7, 8_000)) } else { (quick_model(), text(7, 2_000)) };
    let flags = ["--ctx-size", "4096", "--threads", "1", "--parallel", "4", "--queue-limit", "64"];
    let mut fleet = Fleet::start(NODES, Recipe::new(model, &flags));
    let direct: Vec<Served> = (0..NODES).map(|place| fleet.direct(place)).collect();
    let router = fleet.router();
    if is_whole() {
        // Nodes that never computed have no measured speed.
        for (place, served) in direct.iter().enumerate() {
            complete(served.address, &text(place, 2_000), 8);
        }
        fleet.settle();
    }
    let counters =
        || -> Vec<[f64; 2]> { direct.iter().map(|one| [counter(one, PREFILLED), counter(one, GENERATED)]).collect() };
    let before = counters();
    let (address, started) = (router.address, Instant::now());
    let asked: Vec<_> = (0..64)
        .map(|_| {
            let prompt = prompt.clone();
            std::thread::spawn(move || complete(address, &prompt, 16))
        })
        .collect();
    let replies: Vec<_> = asked.into_iter().map(|asked| asked.join().unwrap()).collect();
    let took = started.elapsed();
    assert!(replies.iter().all(|reply| reply.text == replies[0].text), "all of them are answered the same");
    let tokens = replies[0].usage["prompt_tokens"].as_f64().unwrap();
    let mut now = counters();
    // A worker notes what it did after the reply is sent.
    until("all replies are counted", || {
        now = counters();
        let generated = |all: &[[f64; 2]]| all.iter().map(|one| one[1]).sum::<f64>();
        generated(&now) - generated(&before) >= 64.0 * 15.0
    });
    let grown = |which: usize| -> Vec<f64> {
        now.iter().zip(&before).map(|(now, before)| now[which] - before[which]).collect()
    };
    let (computed, generated) = (grown(0), grown(1));
    let mean = generated.iter().sum::<f64>() / generated.len() as f64;
    let most = generated.iter().copied().fold(0.0, f64::max);
    let times = computed.iter().sum::<f64>() / tokens;
    println!("3. 64 equal prompts of {tokens} tokens in {took:.1?}: computed {times:.2} times");
    println!("3. computed prompt tokens by node {computed:?}, generated {generated:?}");
    println!("3. load, max / mean: {:.2}", most / mean);
    // A model that is done before the next request comes needs one node only.
    let used = generated.iter().filter(|tokens| **tokens > 0.0).count();
    assert!(used > 1 || !is_whole(), "more than one node answers");
    assert!(times < 2.5 || !is_whole(), "a third node computed it");
}
