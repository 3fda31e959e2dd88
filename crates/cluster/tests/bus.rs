//! Stations and a lookout over a real NATS server: registry, announcements, its loss, and strangers without the key.

use std::sync::Arc;
use std::time::Duration;

use poncho_cluster::bus::{Bus, Chosen, Lookout, NatsBus, Place, Prompt, Report, Station};
use poncho_cluster::index::Row;
use poncho_cluster::route::{Dispatch, Source};
use poncho_cluster::seal::ClusterKey;
use poncho_kinds::{Key, Tier};
use poncho_testkit::NatsServer;

use crate::support::idle;

const NAMESPACE: [u8; 32] = [5; 32];

fn key(byte: u8) -> ClusterKey {
    ClusterKey::new(&[byte; 32]).unwrap()
}

fn report() -> Report {
    Arc::new(|| vec![idle(NAMESPACE, 4, 1e8)])
}

fn place(name: &str) -> Place {
    let listen = "127.0.0.1:0".parse().unwrap();
    Place { name: name.to_owned(), address: format!("http://{name}"), listen, host: None }
}

async fn station(key: &ClusterKey, bus: &Arc<NatsBus>, name: &str) -> Station {
    let bus: Arc<dyn Bus> = Arc::clone(bus) as Arc<dyn Bus>;
    Station::join(key, Some(bus), &place(name), report()).await.unwrap()
}

fn lookout(key: &ClusterKey, bus: &Arc<NatsBus>) -> Lookout {
    Lookout::start(key, Some(Arc::clone(bus) as Arc<dyn Bus>), Vec::new()).unwrap()
}

fn tokens() -> Vec<u32> {
    (0..2_000).collect()
}

fn row(key: &ClusterKey, number: u8) -> Row {
    let (tokens, hasher) = (tokens(), key.hasher());
    let blocks = hasher.prefix(&NAMESPACE, &tokens).blocks().to_vec();
    Row { key: Key::from_bytes([number; 32]), parent: None, blocks, boundaries: Vec::new(), tier: Tier::Ram, bytes: 1 }
}

fn choose(lookout: &Lookout) -> Option<Chosen> {
    let tokens = tokens();
    let prompt = Prompt { model: "m", namespace: &NAMESPACE, tokens: &tokens, reply_tokens: 10 };
    lookout.choose(&prompt, &Dispatch::new(), false).ok()
}

/// Waits for something that happens in a moment, and fails if it does not.
async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    for _ in 0..600 {
        if is_true() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not within 30 s: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_followed_over_nats_and_without_it() {
    let key = key(1);
    let mut server = NatsServer::start();
    let bus = Arc::new(NatsBus::connect(&[server.address()], &key.name()).await.unwrap());
    let first = station(&key, &bus, "node-a").await;
    let _second = station(&key, &bus, "node-b").await;
    let router = lookout(&key, &bus);
    eventually("both nodes are known", || router.nodes().len() == 2).await;

    first.stored(row(&key, 1));
    let is_local = |chosen: &Chosen| chosen.node == "node-a" && chosen.cost.source == Source::Local;
    eventually("the node with the prefix is chosen", || choose(&router).is_some_and(|chosen| is_local(&chosen))).await;
    let chosen = choose(&router).unwrap();
    assert_eq!((chosen.cost.from_cache, chosen.address.as_str()), (1_792, "http://node-a"));
    assert!(
        matches!(chosen.considered[1], (ref name, cost) if name == "node-b" && matches!(cost.source, Source::Peer(_)))
    );

    server.stop();
    first.removed(&Key::from_bytes([1; 32]));
    eventually("a removal is learnt without the bus", || router.rows() == 0).await;
    first.stored(row(&key, 2));
    eventually("a row is learnt without the bus", || router.rows() == 1).await;
    assert_eq!(router.nodes().len(), 2, "everything is still served");

    server.start_again();
    let late = lookout(&key, &bus);
    eventually("a router that starts now learns everything", || late.rows() == 1 && late.nodes().len() == 2).await;
    first.leave().await;
    eventually("a node that left is gone with its rows", || late.nodes().len() == 1 && late.rows() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_the_key_learns_and_serves_nothing() {
    let (ours, theirs) = (key(1), key(2));
    let server = NatsServer::start();
    // The stranger knows the name of our cluster, and listens and announces there.
    let bus = Arc::new(NatsBus::connect(&[server.address()], &ours.name()).await.unwrap());
    let their_bus = Arc::new(NatsBus::connect(&[server.address()], &ours.name()).await.unwrap());
    let member = station(&ours, &bus, "node-a").await;
    let stranger = station(&theirs, &their_bus, "node-x").await;
    stranger.stored(row(&ours, 9));
    let (router, their_router) = (lookout(&ours, &bus), lookout(&theirs, &their_bus));
    member.stored(row(&ours, 1));
    eventually("our router knows our node", || router.rows() == 1).await;
    assert_eq!(router.nodes().iter().map(|(beat, _)| beat.node.as_str()).collect::<Vec<_>>(), ["node-a"]);
    let names = |lookout: &Lookout| lookout.nodes().into_iter().map(|(beat, _)| beat.node).collect::<Vec<_>>();
    eventually("their router knows their node", || names(&their_router) == ["node-x"]).await;
    assert_eq!(choose(&router).unwrap().node, "node-a");

    // Asked directly, our node gives no answer to a question that is sealed with another key.
    let asked = Lookout::start(&theirs, None, vec![member.hints().to_string()]).unwrap();
    let same = Lookout::start(&ours, None, vec![member.hints().to_string()]).unwrap();
    eventually("a router with the key needs no bus", || same.rows() == 1).await;
    assert_eq!((asked.nodes().len(), asked.rows()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_node_is_not_chosen() {
    let (key, stranger) = (key(1), key(2));
    let server = NatsServer::start();
    let bus = Arc::new(NatsBus::connect(&[server.address()], &key.name()).await.unwrap());
    let draining = station(&key, &bus, "node-a").await;
    draining.stored(row(&key, 1));
    let router = lookout(&key, &bus);
    eventually("the node is known", || router.rows() == 1 && choose(&router).is_some()).await;
    let theirs = Lookout::start(&stranger, None, vec![draining.hints().to_string()]).unwrap();
    assert!(theirs.drain("node-a").await.is_err() && !draining.is_draining(), "without the key");
    assert!(router.drain("node-x").await.unwrap_err().to_string().contains("no node node-x"));
    router.drain("node-a").await.unwrap();
    assert!(draining.is_draining());
    eventually("it is not chosen from then on", || choose(&router).is_none()).await;
    let _other = station(&key, &bus, "node-b").await;
    eventually("the other one is chosen", || choose(&router).is_some_and(|chosen| chosen.node == "node-b")).await;
    assert!(matches!(choose(&router).unwrap().cost.source, Source::Peer(_)), "it pulls the row");
    let bus: Arc<dyn Bus> = bus;
    assert!(Station::join(&key, Some(bus), &place("node.a"), report()).await.is_err(), "a dot divides subjects");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_was_opened_again_is_announced_from_the_start() {
    let key = key(1);
    let station = Station::join(&key, None, &place("node-a"), report()).await.unwrap();
    station.stored(row(&key, 1));
    station.stored(row(&key, 2));
    let router = Lookout::start(&key, None, vec![station.hints().to_string()]).unwrap();
    eventually("both rows are known", || router.rows() == 2).await;
    station.reset();
    station.stored(row(&key, 3));
    eventually("only the new row is known", || router.rows() == 1).await;
    assert_eq!(router.nodes().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_between_two_beats_count_as_load() {
    let key = key(1);
    let (a, b) = (place("node-a"), place("node-b"));
    let one = Station::join(&key, None, &a, report()).await.unwrap();
    let two = Station::join(&key, None, &b, report()).await.unwrap();
    let router = Lookout::start(&key, None, vec![one.hints().to_string(), two.hints().to_string()]).unwrap();
    eventually("both nodes are known", || router.nodes().len() == 2).await;
    // Different short prompts, so that only the load decides: without a bus the next beat is seconds away.
    let mut counts = std::collections::BTreeMap::new();
    for number in 0..8 {
        let tokens: Vec<u32> = (number * 1000..number * 1000 + 400).collect();
        let prompt = Prompt { model: "m", namespace: &NAMESPACE, tokens: &tokens, reply_tokens: 10 };
        let chosen = router.choose(&prompt, &Dispatch::new(), true).unwrap();
        *counts.entry(chosen.node).or_insert(0) += 1;
    }
    assert_eq!(counts.values().copied().collect::<Vec<i32>>(), [4, 4], "{counts:?}");
}

/// A third node pulls what two others compute: sent at once, it would find nothing and compute it too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_pulls_what_others_compute_gets_its_request_when_that_is_there() {
    let key = key(1);
    let mut stations = Vec::new();
    for name in ["node-a", "node-b", "node-c"] {
        stations.push(Station::join(&key, None, &place(name), report()).await.unwrap());
    }
    let seeds = stations.iter().map(|station| station.hints().to_string()).collect();
    let router = Arc::new(Lookout::start(&key, None, seeds).unwrap());
    eventually("all nodes are known", || router.nodes().len() == 3).await;
    let tokens = tokens();
    let prompt = Prompt { model: "m", namespace: &NAMESPACE, tokens: &tokens, reply_tokens: 10 };
    let mut waiting = Vec::new();
    let mut computing = Vec::new();
    for _ in 0..12 {
        let chosen = router.choose(&prompt, &Dispatch::new(), true).unwrap();
        let ready = tokio::time::timeout(Duration::from_millis(100), router.ready(&chosen)).await.is_ok();
        if ready { computing.push(chosen) } else { waiting.push(chosen) }
    }
    let nodes: std::collections::BTreeSet<_> = computing.iter().map(|chosen| chosen.node.clone()).collect();
    assert!(nodes.len() <= 2, "{nodes:?} compute the same prompt");
    let third = waiting.first().expect("one request goes to the third node").clone();
    assert!(!nodes.contains(&third.node));
    // It is there, or it failed: in both cases nobody waits any longer.
    let waits = tokio::spawn({
        let (router, third) = (Arc::clone(&router), third.clone());
        async move { router.ready(&third).await }
    });
    assert!(!waits.is_finished());
    computing.iter().for_each(|chosen| router.ended(chosen));
    tokio::time::timeout(Duration::from_secs(10), waits).await.expect("the wait is over").unwrap();
}
