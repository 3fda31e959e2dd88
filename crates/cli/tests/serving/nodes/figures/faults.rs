//! Nodes, the bus, a router and lines that fail under streams of all dialects: each stream ends as it does undisturbed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use poncho_testkit::{ModelKind, model_path};

use super::fleet::{Fleet, Recipe};
use super::is_whole;
use super::measuring::Proxy;
use crate::served::Served;
use crate::serving::turmoil::{Brought, Dice, requests, stream};

/// Byte-identical replies, whatever happens. Kills by hand are not the model's fault.
const FLAGS: [&str; 11] = [
    "--exact",
    "--ctx-size",
    "4096",
    "--threads",
    "1",
    "--parallel",
    "4",
    "--save-min-tokens",
    "16",
    "--crash-limit",
    "0",
];

fn undisturbed(address: SocketAddr) -> (Vec<Brought>, u64) {
    let started = Instant::now();
    let brought = requests().iter().map(|(path, body)| stream(address, path, body).0).collect();
    (brought, u64::try_from(started.elapsed().as_millis()).unwrap())
}

type Asked = Vec<std::thread::JoinHandle<(Brought, Duration)>>;

fn ask(address: SocketAddr) -> Asked {
    let one =
        |(path, body): (&'static str, serde_json::Value)| std::thread::spawn(move || stream(address, path, &body));
    requests().into_iter().map(one).collect()
}

/// Checks all streams; the longest silences are added.
fn check(asked: Asked, expected: &[Brought], silences: &mut Vec<Duration>, when: &str) {
    for ((asked, expected), (path, _)) in asked.into_iter().zip(expected).zip(requests()) {
        let (brought, silence) = asked.join().unwrap_or_else(|_| panic!("{path} {when}"));
        assert_eq!(&brought, expected, "{path} {when}");
        silences.push(silence);
    }
}

#[test]
fn streams_end_right_while_nodes_the_bus_and_routers_are_killed() {
    let kills = if is_whole() { 100 } else { 3 };
    let mut fleet = Fleet::start(if is_whole() { 4 } else { 2 }, Recipe::new(model_path(ModelKind::Attention), &FLAGS));
    let mut router = fleet.router();
    let (expected, whole) = undisturbed(router.address);
    let (mut dice, mut silences) = (Dice(11), Vec::new());
    let mut is_bus_up = true;
    for kill in 0..kills {
        let asked = ask(router.address);
        std::thread::sleep(Duration::from_millis(dice.below(whole)));
        let place = usize::try_from(dice.below(fleet.nodes.len() as u64)).unwrap();
        fleet.nodes[place].kill();
        // In every third round the bus is away too.
        if kill % 3 == 1 {
            fleet.bus.stop();
            is_bus_up = false;
        }
        check(asked, &expected, &mut silences, &format!("after kill {kill} of node {place}"));
        if !is_bus_up {
            fleet.bus.start_again();
            is_bus_up = true;
        }
        fleet.restart(place);
        if kill % 10 == 2 {
            // Killed, not stopped; the next one serves at once.
            drop(router);
            router = start_router(&mut fleet);
        }
    }
    silences.sort();
    let (middle, longest) = (silences[silences.len() / 2], silences[silences.len() - 1]);
    println!("4. {kills} kills of nodes, {} streams: all right, byte for byte", silences.len());
    println!("4. longest silence of a stream: median {middle:.2?}, maximum {longest:.2?}");
}

/// A router that gets its first request as soon as it listens.
fn start_router(fleet: &mut Fleet) -> Served {
    let router = fleet.router();
    let (path, body) = &requests()[0];
    assert!(!stream(router.address, path, body).0.is_empty());
    router
}

#[test]
fn a_node_behind_a_line_that_is_cut_loses_no_stream_and_is_used_again() {
    let (nodes, seconds) = if is_whole() { (3, 30) } else { (1, 1) };
    let mut fleet = Fleet::start(nodes, Recipe::new(model_path(ModelKind::Attention), &FLAGS));
    let port = poncho_testkit::unused_address();
    let bus: SocketAddr = fleet.bus.address().trim_start_matches("nats://").parse().unwrap();
    let (line, to_bus) = (Proxy::line(port), Proxy::line(bus));
    let flags = ["--advertise".to_owned(), line.address.to_string()];
    fleet.add("far", &format!("nats://{}", to_bus.address), &port.to_string(), &flags);
    let router = fleet.router();
    let (expected, whole) = undisturbed(router.address);
    let mut silences = Vec::new();
    let asked = ask(router.address);
    std::thread::sleep(Duration::from_millis(whole / 8));
    let started = Instant::now();
    line.cut(true);
    to_bus.cut(true);
    check(asked, &expected, &mut silences, "while a line is cut");
    while started.elapsed() < Duration::from_secs(seconds) {
        check(ask(router.address), &expected, &mut silences, "after a line was cut");
    }
    line.cut(false);
    to_bus.cut(false);
    for _ in 0..5 {
        check(ask(router.address), &expected, &mut silences, "after the line was mended");
    }
    silences.sort();
    println!(
        "4. partition of {seconds} s: {} streams, all right, longest silence {:.1?}",
        silences.len(),
        silences.last().unwrap()
    );
}
