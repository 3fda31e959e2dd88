//! Pulls between nodes over real HTTP: what arrives is what was exported, and whatever goes wrong is a miss in time.

mod node;
mod tls;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_cache::{Cache, CacheConfig, HitTier, ImportRequest, NO_TENANT, RemoteError, RemoteQuery, RemoteTier, Tier};
use poncho_shared::{Nearest, PullError, PullLimits, PullSecret, RowServer};

use self::node::{Known, Node, SECRET, limits, save_chain, save_row, tokens};
use crate::fixture::proxy::{Fault, Proxy};
use crate::fixture::{ANNA, BERT, NAMESPACE, eventually, open, patience, patience_of, settings, upload};

#[test]
fn a_pulled_chain_is_the_one_that_was_exported_and_is_imported_as_it_is() {
    let one = Node::start(limits());
    let keys = save_chain(&one.cache, 1, &[40, 70, 100], &[300, 9000, 50], Some(ANNA));
    let tier = one.tier(SECRET);
    let asked = [tokens(1, 120), tokens(1, 100)].map(|tokens| NAMESPACE.key(&tokens));
    let row = tier.find(RemoteQuery { owner: ANNA, namespace: &NAMESPACE, keys: &asked }, &patience()).unwrap();
    let row = row.expect("the second of them is there");
    assert_eq!((row.key, row.tokens, row.tier), (keys[2], 100, HitTier::Peer));
    let chain = tier.fetch(&row, &patience()).unwrap();
    assert_eq!(chain, one.cache.export(&keys[2], ANNA).unwrap());

    let two = Cache::open(CacheConfig::in_memory(1 << 20)).unwrap();
    let prompt = tokens(1, 120);
    let request = ImportRequest { owner: ANNA, namespace: &NAMESPACE, prompt: &prompt };
    assert_eq!(two.import(&chain, request, None).unwrap().tokens, 100);
    assert_eq!(two.export(&keys[2], ANNA).unwrap(), chain, "and it travels on unchanged");
    let status = tier.status();
    assert_eq!(
        (status.counts.found, status.counts.failures, status.counts.fetched_bytes),
        (1, 0, chain.bytes()),
        "{status:?}"
    );
    assert_eq!(
        (status.counts.uploaded_rows, status.counts.uploaded_bytes),
        (1, chain.bytes()),
        "what the other one served"
    );
}

/// The prompt of a turn ends with tokens that ask for a reply, and the next turn has the reply there.
#[test]
fn turns_that_begin_inside_the_row_before_them_are_pulled() {
    let one = Node::start(limits());
    let mut said = tokens(1, 40);
    let mut key = save_row(&one.cache, &said, 300, Some(ANNA));
    for turn in 2..5 {
        said.truncate(said.len() - 3);
        said.extend(tokens(turn, 50));
        key = save_row(&one.cache, &said, 300, Some(ANNA));
    }
    let exported = one.cache.export(&key, ANNA).unwrap();
    let inside = exported.rows.windows(2).filter(|pair| pair[1].start < pair[0].end).count();
    assert_eq!(
        inside,
        3,
        "the rows are cut: {:?}",
        exported.rows.iter().map(|row| (row.start, row.end)).collect::<Vec<_>>()
    );
    let tier = one.tier(SECRET);
    let row = tier.find(RemoteQuery { owner: ANNA, namespace: &NAMESPACE, keys: &[key] }, &patience()).unwrap();
    let chain = tier.fetch(&row.expect("it is there"), &patience()).unwrap();
    assert_eq!(chain, exported);
    let two = Cache::open(CacheConfig::in_memory(1 << 20)).unwrap();
    let request = ImportRequest { owner: ANNA, namespace: &NAMESPACE, prompt: &said };
    assert_eq!(two.import(&chain, request, None).unwrap().tokens as usize, said.len());
}

#[test]
fn another_owner_and_another_cluster_key_get_the_answer_of_a_row_that_does_not_exist() {
    let node = Node::start(limits());
    let mine = save_chain(&node.cache, 1, &[40], &[300], Some(ANNA))[0];
    let shared = save_chain(&node.cache, 2, &[40], &[300], None)[0];
    let find = |secret: PullSecret, owner, key| {
        let query = RemoteQuery { owner, namespace: &NAMESPACE, keys: &[key] };
        node.tier(secret).find(query, &patience()).unwrap()
    };
    let row = find(SECRET, ANNA, mine).expect("its owner finds it");
    assert!(find(SECRET, BERT, mine).is_none() && find(SECRET, NO_TENANT, mine).is_none());
    assert!(find(SECRET, NO_TENANT, shared).is_some() && find(SECRET, ANNA, shared).is_none());
    // An answer for one owner cannot be used by another one.
    let stolen = poncho_cache::RemoteRow { owner: BERT, ..row.clone() };
    assert!(matches!(node.tier(SECRET).fetch(&stolen, &patience()), Err(RemoteError::Gone { .. })));
    let stranger = PullSecret::from_bytes([2; 32]);
    assert!(find(stranger, ANNA, mine).is_none());
    assert!(matches!(node.tier(stranger).fetch(&row, &patience()), Err(RemoteError::Gone { .. })));
    assert!(node.tier(SECRET).fetch(&row, &patience()).is_ok());
}

#[test]
fn requests_without_a_signature_all_get_the_same_answer() {
    let node = Node::start(limits());
    let key = save_chain(&node.cache, 1, &[40], &[300], None)[0];
    let ask = |request: String| {
        let mut stream = TcpStream::connect(node.server.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.lines().filter(|line| !line.starts_with("date:")).collect::<Vec<_>>().join("\n")
    };
    let tail = "host: a\r\nconnection: close\r\n";
    let body = format!("{{\"keys\":[\"{key}\"]}}");
    let requests = [
        format!("GET / HTTP/1.1\r\n{tail}\r\n"),
        format!("GET /v1/{0}/seg/{0}{0} HTTP/1.1\r\nrange: bytes=0-9\r\n{tail}\r\n", "a".repeat(32)),
        format!("POST /v1/find HTTP/1.1\r\n{tail}content-length: {}\r\n\r\n{body}", body.len()),
        format!("POST /v1/open HTTP/1.1\r\n{tail}poncho-signature: {}\r\ncontent-length: 0\r\n\r\n", "0".repeat(64)),
    ];
    let answers: Vec<String> = requests.into_iter().map(ask).collect();
    assert!(answers[0].starts_with("HTTP/1.1 404"), "{answers:?}");
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(node.tier(SECRET).status().counts.dropped_offers, 4, "they are counted");
}

#[test]
fn a_row_that_leaves_the_cache_in_the_middle_of_a_pull_is_gone() {
    let limits = PullLimits { part: 4096, parallel_parts: 1, ..limits() };
    let node = Node::start(limits);
    let key = save_chain(&node.cache, 1, &[40], &[400_000], None)[0];
    let proxy = Proxy::start(node.server.address());
    let tier = Arc::new(node.tier_at(proxy.address(), SECRET, limits));
    let row = tier.find(RemoteQuery { owner: NO_TENANT, namespace: &NAMESPACE, keys: &[key] }, &patience());
    let row = row.unwrap().expect("found");
    // A hundred ranges, a few milliseconds each.
    proxy.set(Fault::Latency(Duration::from_millis(5)));
    let before = proxy.requests();
    let pull = std::thread::spawn({
        let (tier, row) = (Arc::clone(&tier), row.clone());
        move || tier.fetch(&row, &patience())
    });
    eventually("some ranges were pulled", || proxy.requests() > before + 3);
    assert!(node.cache.clear() > 0);
    let error = pull.join().unwrap().expect_err("a part of it is missing");
    assert!(matches!(error, RemoteError::Gone { .. }), "{error}");
    assert!(tier.rates_of(&row).is_some(), "a node that evicts is not a failing one");
    assert!(matches!(tier.fetch(&row, &patience()), Err(RemoteError::Gone { .. })));
}

#[test]
fn a_node_that_fails_in_any_way_is_a_miss_in_time_and_is_used_again_afterwards() {
    // Answers that are longer than what the proxy reads at once.
    let limits = PullLimits { part: 64 << 10, ..limits() };
    let node = Node::start(limits);
    let key = save_chain(&node.cache, 1, &[40], &[200_000], None)[0];
    let proxy = Proxy::start(node.server.address());
    let tier = node.tier_at(proxy.address(), SECRET, limits);
    let query = RemoteQuery { owner: NO_TENANT, namespace: &NAMESPACE, keys: &[key] };
    let pull = |time: Duration| -> Result<bool, RemoteError> {
        let patience = patience_of(time);
        let Some(row) = tier.find(query, &patience)? else { return Ok(false) };
        tier.fetch(&row, &patience).map(|_| true)
    };
    let all = Duration::from_secs(60);
    let faults = [
        Fault::Truncate(20_000),
        Fault::Slow(10_000),
        Fault::BlackHole,
        Fault::Status(500),
        Fault::Reset,
        Fault::WrongBytes,
    ];
    for fault in faults {
        eventually("it is in use", || matches!(pull(all), Ok(true)));
        proxy.set(fault);
        let started = Instant::now();
        let pulled = pull(Duration::from_millis(600));
        assert!(pulled.is_err(), "{fault:?}: {pulled:?}");
        // Far less than what the transfer would take, and enough for a busy machine.
        assert!(started.elapsed() < Duration::from_secs(10), "{fault:?} took {:?}", started.elapsed());
        assert!(tier.status().last_error.is_some(), "{fault:?}");
        proxy.set(Fault::None);
    }
    // Wrong bytes are remembered for this row of this node; another one is pulled as before.
    eventually("the row is not asked for", || matches!(pull(all), Ok(false)));
    let other = save_chain(&node.cache, 2, &[40], &[200_000], None)[0];
    let query = RemoteQuery { keys: &[other], ..query };
    eventually("another row comes", || {
        let row = tier.find(query, &patience()).ok().flatten();
        row.is_some_and(|row| tier.fetch(&row, &patience()).is_ok())
    });
}

#[test]
fn a_dead_node_is_left_alone_and_another_one_is_pulled_from() {
    let node = Node::start(limits());
    let key = save_chain(&node.cache, 1, &[40], &[3000], None)[0];
    let nobody = poncho_testkit::unused_address();
    let peers = Known::at(&[nobody, node.server.address()]);
    let pause = PullLimits { first_pause: Duration::from_secs(3600), ..limits() };
    let tier = poncho_shared::PeerTier::open(peers, SECRET, None, pause).unwrap();
    let query = RemoteQuery { owner: NO_TENANT, namespace: &NAMESPACE, keys: &[key] };
    for _ in 0..3 {
        let row = tier.find(query, &patience()).unwrap().expect("the living one has it");
        assert!(tier.fetch(&row, &patience()).is_ok());
    }
    assert!(tier.status().counts.failures <= 1, "the dead one was asked once at most: {:?}", tier.status());
}

#[test]
fn what_is_kept_for_pulls_is_bounded_and_makes_room() {
    let small = PullLimits { memory: 64 << 10, ..limits() };
    let node = Node::start(small);
    let huge = save_chain(&node.cache, 1, &[40], &[100_000], None)[0];
    let keys: Vec<_> = (2..6).map(|number| save_chain(&node.cache, number, &[40], &[30_000], None)[0]).collect();
    let tier = node.tier_at(node.server.address(), SECRET, small);
    let find =
        |key| tier.find(RemoteQuery { owner: NO_TENANT, namespace: &NAMESPACE, keys: &[key] }, &patience()).unwrap();
    assert!(find(huge).is_none(), "it can never fit");
    for key in &keys {
        let row = find(*key).expect("found");
        assert!(tier.fetch(&row, &patience()).is_ok(), "the ones before it make room");
    }
}

#[test]
fn the_rows_are_served_to_other_machines_with_certificates_only() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap());
    let _inside = runtime.enter();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("0.0.0.0:0")).unwrap();
    let error = RowServer::start(listener, &cache, SECRET, None, limits()).expect_err("refused");
    assert!(matches!(error, PullError::NeedsTls { .. }) && error.to_string().contains("--node-cert"), "{error}");
}

#[test]
fn a_node_comes_before_the_shared_tier_which_takes_over_what_no_node_has() {
    let node = Node::start(limits());
    let (folder, settings) = {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&crate::fixture::folder_url(&folder));
        (folder, settings)
    };
    let shared = Arc::new(open(&settings));
    let keys = save_chain(&node.cache, 1, &[40, 70], &[300, 300], None);
    upload(&shared, node.cache.export(&keys[0], NO_TENANT).unwrap());
    let only_shared = save_chain(&node.cache, 2, &[40], &[300], None)[0];
    upload(&shared, node.cache.export(&only_shared, NO_TENANT).unwrap());
    assert!(node.cache.remove(&only_shared));
    let shared: Arc<dyn RemoteTier> = shared;
    let both = Nearest::new(Arc::new(node.tier(SECRET)), shared);
    let find = |keys: &[poncho_cache::Key]| {
        both.find(RemoteQuery { owner: NO_TENANT, namespace: &NAMESPACE, keys }, &patience()).unwrap()
    };
    let near = find(&[keys[1], keys[0]]).expect("found");
    assert_eq!((near.key, near.tier), (keys[1], HitTier::Peer));
    assert_eq!(both.fetch(&near, &patience()).unwrap(), node.cache.export(&keys[1], NO_TENANT).unwrap());
    let far = find(&[only_shared]).expect("found");
    assert_eq!(far.tier, HitTier::Shared);
    assert_eq!(both.fetch(&far, &patience()).unwrap().key(), Some(only_shared));
    // The node loses the row between the two steps: the store has it too.
    let near = find(&keys[..1]).expect("found");
    let chain = node.cache.export(&keys[0], NO_TENANT).unwrap();
    assert!(node.cache.evict_bytes(u64::MAX, &Tier::ALL) > 0);
    assert_eq!((near.tier, both.fetch(&near, &patience()).unwrap()), (HitTier::Peer, chain));
    let tiers: Vec<HitTier> = both.reports().into_iter().map(|(tier, ..)| tier).collect();
    assert_eq!(tiers, [HitTier::Peer, HitTier::Shared]);
    drop(folder);
}
