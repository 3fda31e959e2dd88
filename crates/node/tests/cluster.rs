//! Nodes with the stub engine in a cluster over a real NATS server, and routers in front of them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_api::{ChatSettings, ContextOptions, EngineError, ModelConfig, Node};
use poncho_cache::{Cache, CacheConfig};
use poncho_cluster::bus::{Bus, Lookout, NatsBus, Place};
use poncho_cluster::seal::ClusterKey;
use poncho_engine::backend::stub::StubBackend;
use poncho_engine::{Engine, Host};
use poncho_node::{Credentials, Fleet, FleetSettings, MemberSettings, Membership, serve_network};
use poncho_testkit::NatsServer;

use crate::kills::mixed;
use crate::machines::{Machine, certificate};
use crate::support::{KINDS, PATIENCE, ask, config, in_process, load_with, read, written};

/// Where machines of a test find their cluster: a file with the address of the bus, in the folder above theirs.
pub(crate) const FILE: &str = "cluster";

/// The key of all clusters here, but for strangers.
fn key(byte: u8) -> ClusterKey {
    ClusterKey::new(&[byte; 32]).unwrap()
}

async fn bus(address: &str, key: &ClusterKey) -> Arc<dyn Bus> {
    Arc::new(NatsBus::connect(&[address], &key.name()).await.unwrap())
}

fn at(name: &str, address: String) -> Place {
    Place { name: name.to_owned(), address, listen: "127.0.0.1:0".parse().unwrap(), host: None }
}

/// Announces a machine if the file of a cluster is beside its folder.
pub(crate) async fn join(folder: &Path, address: String, node: Arc<dyn Node>) -> Option<Membership> {
    let server = std::fs::read_to_string(folder.parent().unwrap().join(FILE)).ok()?;
    let (key, name) = (key(1), folder.file_name().unwrap().to_str().unwrap());
    let settings = MemberSettings { bus: Some(bus(&server, &key).await), key, place: at(name, address), peers: None };
    Some(Membership::join(node, settings).await.unwrap())
}

/// A node in this process.
struct Member {
    node: Arc<dyn Node>,
    membership: Membership,
    address: String,
}

/// How many requests run and wait, and the time of each step of 32 tokens.
#[derive(Clone, Copy)]
struct Room {
    sequences: u32,
    queue: usize,
    step: Duration,
}

/// Long prompts take long enough to be worth a way.
const ROOM: Room = Room { sequences: 4, queue: 64, step: Duration::from_millis(5) };

impl Member {
    async fn start(folder: &Path, name: &str, server: &str, key: ClusterKey, room: Room) -> Self {
        let config = CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(folder.join(name), 1 << 30) };
        let backend = StubBackend::new(KINDS[0]).with_fill_tokens();
        backend.faults().busy_decodes(room.step);
        let engine = Engine::new(Arc::new(backend), Arc::new(Cache::open(config).unwrap()));
        let node: Arc<dyn Node> = Arc::new(Host::new(Arc::new(engine), ChatSettings::default()));
        load(&*node, room).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = Arc::clone(&node);
        tokio::spawn(async move {
            serve_network(listener, None, served, std::future::pending(), PATIENCE).await.unwrap();
        });
        let place = at(name, address.clone());
        let settings = MemberSettings { bus: Some(bus(server, &key).await), key, place, peers: None };
        let membership = Membership::join(Arc::clone(&node), settings).await.unwrap();
        Self { node, membership, address }
    }

    /// Requests that it has ended.
    fn ended(&self) -> u64 {
        self.node.model("stub").unwrap().status().ended
    }

    /// Prompt tokens that it has computed.
    fn computed(&self) -> u64 {
        self.node.model("stub").unwrap().status().prefilled_tokens
    }
}

async fn load(node: &dyn Node, room: Room) {
    let context = ContextOptions {
        n_ctx: 4096,
        n_cells: Some(65536),
        n_batch: 32,
        n_ubatch: 32,
        n_seq_max: room.sequences,
        ..ContextOptions::default()
    };
    load_with(node, ModelConfig { queue_limit: room.queue, ..config("stub", context) }).await;
}

/// A router without nodes of its own.
async fn router(server: &str, key: &ClusterKey) -> (Fleet, Arc<Lookout>) {
    router_with(server, key, None).await
}

async fn router_with(server: &str, key: &ClusterKey, credentials: Option<Credentials>) -> (Fleet, Arc<Lookout>) {
    let lookout = Arc::new(Lookout::start(key, Some(bus(server, key).await), Vec::new()).unwrap());
    let cluster = Some(Arc::clone(&lookout));
    let credentials = credentials.map(Arc::new);
    let fleet = Fleet::connect(FleetSettings { nodes: Vec::new(), credentials, call_wait: PATIENCE, cluster }).await;
    (fleet.unwrap(), lookout)
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Prompts that begin differently, with one token for each letter.
fn prompt(number: usize, letters: usize) -> String {
    format!("{number} is the number of this prompt, and the rest is long. ")
        .repeat(letters / 50)
        .chars()
        .take(letters)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_go_to_the_nodes_that_have_their_prefixes() {
    let (folder, key, server) = (tempfile::tempdir().unwrap(), key(1), NatsServer::start());
    let one = Member::start(folder.path(), "one", &server.address(), key.clone(), ROOM).await;
    let two = Member::start(folder.path(), "two", &server.address(), key.clone(), ROOM).await;
    // Warm prompts by hand: even ones here, odd ones there.
    for number in 0..8 {
        let member = if number % 2 == 0 { &one } else { &two };
        ask(&*member.node, written(&prompt(number, 1500), 1)).await.unwrap();
    }
    let (fleet, lookout) = router(&server.address(), &key).await;
    eventually("both nodes and all rows are known", || {
        let nodes = lookout.nodes();
        nodes.len() == 2
            && fleet.connected() == 2
            && nodes.iter().all(|(_, is_current)| *is_current)
            && lookout.rows() >= 8
    })
    .await;
    let before = [one.ended(), two.ended()];
    for number in 0..8 {
        let asked = written(&format!("{} and more", prompt(number, 1500)), 1);
        let expected = if number % 2 == 0 { "one" } else { "two" };
        let routed = fleet.explain_route(None, &asked).await.unwrap();
        assert_eq!(routed.chosen.node, expected, "prompt {number}: {routed:?}");
        assert!(routed.chosen.cost.from_cache >= 1024, "{routed:?}");
        ask(&fleet, asked).await.unwrap();
    }
    eventually("each has four more", || [one.ended(), two.ended()] == before.map(|ended| ended + 4)).await;
}

/// The next turn of an agent comes before its node has saved and announced the last one.
#[tokio::test(flavor = "multi_thread")]
async fn quick_turns_of_a_conversation_stay_on_the_node_that_computed_the_last_one() {
    let (folder, key, server) = (tempfile::tempdir().unwrap(), key(1), NatsServer::start());
    let mut members = Vec::new();
    // The first prompt takes more than a second: a beat counts it and is believed after it has ended.
    let room = Room { step: Duration::from_millis(20), ..ROOM };
    for name in ["one", "two", "three", "four"] {
        members.push(Member::start(folder.path(), name, &server.address(), key.clone(), room).await);
    }
    let (fleet, lookout) = router(&server.address(), &key).await;
    eventually("all nodes are there", || lookout.nodes().len() == 4 && fleet.connected() == 4).await;
    let mut text = prompt(1, 2000);
    for turn in 0..12 {
        ask(&fleet, written(&text, 1)).await.unwrap();
        text.push_str(&prompt(20 + turn, 150));
    }
    let computed: Vec<u64> = members.iter().map(Member::computed).collect();
    let longest = 2000 + 11 * 150;
    assert!(computed.iter().sum::<u64>() < longest + longest / 20, "{computed:?} of {longest} tokens");
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_waited_for_until_the_first_node_announces_itself() {
    let (folder, key, server) = (tempfile::tempdir().unwrap(), key(1), NatsServer::start());
    let (fleet, _lookout) = router(&server.address(), &key).await;
    assert!(fleet.models().is_empty());
    let waiting = fleet.clone();
    let waiting = tokio::spawn(async move { waiting.await_models().await });
    let _one = Member::start(folder.path(), "one", &server.address(), key.clone(), ROOM).await;
    assert!(waiting.await.unwrap());
    ask(&fleet, written(&prompt(1, 60), 2)).await.unwrap();
    // A name that nobody has is known to be wrong from now on, without a wait.
    assert!(!fleet.await_models().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_prompt_is_computed_twice_at_most_and_spread() {
    let (folder, key, server) = (tempfile::tempdir().unwrap(), key(1), NatsServer::start());
    // The prompt takes two seconds: all requests are there before it is.
    let room = Room { sequences: 2, step: Duration::from_millis(20), ..ROOM };
    let mut members = Vec::new();
    for name in ["one", "two", "three", "four"] {
        members.push(Member::start(folder.path(), name, &server.address(), key.clone(), room).await);
    }
    let (fleet, lookout) = router(&server.address(), &key).await;
    eventually("all nodes are there", || lookout.nodes().len() == 4 && fleet.connected() == 4).await;
    let replies = (0..16).map(|_| {
        let fleet = fleet.clone();
        tokio::spawn(async move { ask(&fleet, written(&prompt(7, 3500), 3)).await.unwrap() })
    });
    for reply in replies.collect::<Vec<_>>() {
        assert_eq!(reply.await.unwrap().generated.len(), 3);
    }
    eventually("all have ended", || members.iter().map(Member::ended).sum::<u64>() == 16).await;
    let counts: Vec<(u64, u64)> = members.iter().map(|member| (member.ended(), member.computed())).collect();
    let whole = counts.iter().filter(|(_, computed)| *computed > 1000).count();
    assert!(whole <= 2, "requests and computed tokens: {counts:?}");
    assert!(counts.iter().filter(|(ended, _)| *ended > 0).count() >= 2, "requests and computed tokens: {counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_cluster_says_when_to_come_back() {
    let (folder, key, server) = (tempfile::tempdir().unwrap(), key(1), NatsServer::start());
    let room = Room { sequences: 1, queue: 1, ..ROOM };
    let one = Member::start(folder.path(), "one", &server.address(), key.clone(), room).await;
    let two = Member::start(folder.path(), "two", &server.address(), key.clone(), room).await;
    let (fleet, lookout) = router(&server.address(), &key).await;
    eventually("both nodes are there", || lookout.nodes().len() == 2 && fleet.connected() == 2).await;
    let model = fleet.model("stub").unwrap();
    let mut running = Vec::new();
    for number in 0..4 {
        running.extend(model.generate(vec![written(&prompt(number, 60), 2000)]).await.unwrap());
    }
    assert_eq!(one.ended() + two.ended(), 0);
    let refused = model.generate(vec![written(&prompt(5, 60), 5)]).await.err().unwrap();
    assert!(matches!(refused, EngineError::NodesFull { seconds: 1.. }), "{refused}");
    drop(running);
    eventually("places are free", || one.ended() + two.ended() == 4).await;
    ask(&fleet, written(&prompt(6, 60), 5)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_node_gets_nothing_new_and_a_stranger_never_anything() {
    let (folder, ours, server) = (tempfile::tempdir().unwrap(), key(1), NatsServer::start());
    let one = Member::start(folder.path(), "one", &server.address(), ours.clone(), ROOM).await;
    let two = Member::start(folder.path(), "two", &server.address(), ours.clone(), ROOM).await;
    let stranger = Member::start(folder.path(), "stranger", &server.address(), key(2), ROOM).await;
    let (fleet, lookout) = router(&server.address(), &ours).await;
    eventually("our nodes are there", || lookout.nodes().len() == 2 && fleet.connected() == 2).await;
    one.membership.drain();
    let is_known = || lookout.nodes().iter().any(|(beat, _)| beat.state == poncho_cluster::member::State::Draining);
    eventually("the router knows", is_known).await;
    for number in 0..6 {
        ask(&fleet, written(&prompt(number, 300), 2)).await.unwrap();
    }
    eventually("all requests are counted", || two.ended() == 6).await;
    assert_eq!((one.ended(), stranger.ended()), (0, 0));
    assert!(lookout.nodes().iter().all(|(beat, _)| beat.address != stranger.address));
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_survive_a_killed_node_a_killed_bus_and_a_new_router() {
    let folder = tempfile::tempdir().unwrap();
    let (key, mut server) = (key(1), NatsServer::start());
    std::fs::write(folder.path().join(FILE), server.address()).unwrap();
    let here = in_process(KINDS[0], folder.path()).await;
    let (one, two) =
        (Machine::start(KINDS[0], folder.path(), "one").await, Machine::start(KINDS[0], folder.path(), "two").await);
    let credentials = || Some(Credentials::read(&certificate(folder.path(), "front")).unwrap());
    let (fleet, lookout) = router_with(&server.address(), &key, credentials()).await;
    eventually("both nodes are there", || lookout.nodes().len() == 2 && fleet.connected() == 2).await;
    let mut expected = Vec::new();
    for number in 0..8 {
        expected.push(ask(&*here, mixed(number)).await.unwrap());
    }
    let all = |fleet: &Fleet| {
        let replies = (0..8).map(|number| {
            let fleet = fleet.clone();
            tokio::spawn(async move { ask(&fleet, mixed(number)).await.unwrap() })
        });
        replies.collect::<Vec<_>>()
    };
    let replies = all(&fleet);
    tokio::time::sleep(Duration::from_millis(60)).await;
    one.signal("-9").await;
    server.stop();
    for (number, (reply, expected)) in replies.into_iter().zip(&expected).enumerate() {
        assert_eq!(&reply.await.unwrap(), expected, "a node and the bus were killed, request {number}");
    }
    // Without the bus: the node comes back, and rows are followed by asking.
    one.restart().await;
    for (number, (reply, expected)) in all(&fleet).into_iter().zip(&expected).enumerate() {
        assert_eq!(&reply.await.unwrap(), expected, "without the bus, request {number}");
    }
    let rows = lookout.rows();
    ask(&fleet, written(&prompt(3, 900), 40)).await.unwrap();
    eventually("new rows are known without the bus", || lookout.rows() > rows).await;
    // A new router serves its first request with what the registry says.
    server.start_again();
    drop((fleet, lookout));
    eventually_registered(&server.address(), &key).await;
    let (fleet, _lookout) = router_with(&server.address(), &key, credentials()).await;
    assert_eq!(ask(&fleet, mixed(0)).await.unwrap(), expected[0]);
    two.signal("-TERM").await;
    let started = fleet.model("stub").unwrap().generate(vec![mixed(1)]).await.unwrap();
    for reply in started {
        assert_eq!(read(reply).await.unwrap(), expected[1]);
    }
}

/// Ten seconds after a node was killed it had left the cluster, and requests for its model were refused as unknown.
#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_the_only_node_of_a_model_also_after_it_left() {
    let folder = tempfile::tempdir().unwrap();
    let (key, server) = (key(1), NatsServer::start());
    std::fs::write(folder.path().join(FILE), server.address()).unwrap();
    let here = in_process(KINDS[0], folder.path()).await;
    let one = Machine::start(KINDS[0], folder.path(), "one").await;
    let credentials = Some(Credentials::read(&certificate(folder.path(), "front")).unwrap());
    let (fleet, lookout) = router_with(&server.address(), &key, credentials).await;
    eventually("the model is known", || fleet.connected() == 1 && fleet.model("stub").is_some()).await;
    let expected = ask(&*here, mixed(0)).await.unwrap();
    one.signal("-9").await;
    eventually("it has left", || lookout.nodes().is_empty() && fleet.peers().is_empty()).await;
    let asked = async {
        let reply = ask(&fleet, mixed(0));
        tokio::pin!(reply);
        let early = tokio::time::timeout(Duration::from_millis(300), &mut reply).await;
        assert!(early.is_err(), "the request waits: {early:?}");
        one.restart().await;
        reply.await
    };
    assert_eq!(asked.await.unwrap(), expected);
}

/// Waits until the nodes have found the bus again.
async fn eventually_registered(server: &str, key: &ClusterKey) {
    let bus = bus(server, key).await;
    let started = Instant::now();
    while bus.registered().await.len() < 2 {
        assert!(started.elapsed() < PATIENCE, "the nodes find the bus again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
