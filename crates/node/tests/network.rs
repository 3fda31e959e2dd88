//! Nodes on the network: certificates, lost machines, machines that end in order.

use std::time::{Duration, Instant};

use poncho_api::{Node, Phase};
use poncho_engine::backend::MemoryKind;
use poncho_node::{ConnectError, CredentialFiles, Fleet};

use crate::kills::mixed;
use crate::machines::{Machine, certificate, connect, fleet};
use crate::support::{KINDS, PATIENCE, Read, ask, in_process, read, written};

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn asked(node: &Fleet, numbers: std::ops::Range<u32>) -> Vec<tokio::task::JoinHandle<Read>> {
    let asked = numbers.map(|number| {
        let node = node.clone();
        tokio::spawn(async move { ask(&node, mixed(number)).await.unwrap() })
    });
    asked.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_another_authority_are_refused_on_both_ends() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let machine = Machine::start(KINDS[0], folder.path(), "one").await;
    let (ours, theirs) = (certificate(folder.path(), "front"), certificate(other.path(), "front"));
    let refused = |files: Option<CredentialFiles>| {
        let machine = &machine;
        async move { connect(&[machine], files).await.err().expect("the connection is refused") }
    };
    // The node shows a certificate that our authority did not sign.
    let error = refused(Some(CredentialFiles { authority: theirs.authority.clone(), ..ours.clone() })).await;
    assert!(matches!(error, ConnectError::Untrusted { .. }), "{error}");
    // We show one that the authority of the node did not sign.
    let error = refused(Some(CredentialFiles { authority: ours.authority.clone(), ..theirs })).await;
    assert!(matches!(error, ConnectError::Untrusted { .. }), "{error}");
    // The name in the certificate of the node is another one.
    let files = Some(ours);
    let mut named = machine.address();
    named.replace_range(.."127.0.0.1".len(), "localhost");
    let settings = poncho_node::FleetSettings {
        nodes: vec![named.parse().unwrap()],
        credentials: files.map(|files| std::sync::Arc::new(poncho_node::Credentials::read(&files).unwrap())),
        call_wait: PATIENCE,
        cluster: None,
    };
    let error = Fleet::connect(settings).await.err().unwrap();
    assert!(matches!(error, ConnectError::Untrusted { .. }), "{error}");
    // Without any, nothing is understood.
    let without = connect(&[&machine], None).await.unwrap();
    assert_eq!((without.models().len(), without.absent().len()), (0, 1));
    assert_eq!(fleet(&[&machine]).await.models().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_on_the_network_can_end_a_node_or_load_into_it() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start(KINDS[0], folder.path(), "one").await;
    let node = fleet(&[&machine]).await;
    let config = poncho_api::ModelConfig::new("other", "/etc/passwd");
    let mut loading = node.load(poncho_api::LoadModel { config, adapters: Vec::new() });
    let event = futures_util::StreamExt::next(&mut loading).await.unwrap();
    assert!(format!("{event:?}").contains("by a node itself"), "{event:?}");
    let model = node.model("stub").unwrap();
    let refused = model.load_adapter(std::path::Path::new("a.gguf"), 1.0).await.unwrap_err();
    assert!(refused.to_string().contains("another node"), "{refused}");
}

async fn survive(kind: MemoryKind, machines: usize) {
    let folder = tempfile::tempdir().unwrap();
    let here = in_process(kind, folder.path()).await;
    let mut fleet_of = Vec::new();
    for number in 0..machines {
        fleet_of.push(Machine::start(kind, folder.path(), &number.to_string()).await);
    }
    let node = fleet(&fleet_of.iter().collect::<Vec<_>>()).await;
    let mut expected = Vec::new();
    for number in 0..8 {
        expected.push(ask(&*here, mixed(number)).await.unwrap());
    }
    for round in 0..3 {
        let replies = asked(&node, 0..8);
        tokio::time::sleep(Duration::from_millis(40 + 70 * round)).await;
        let victim = &fleet_of[usize::try_from(round).unwrap() % machines];
        victim.signal("-9").await;
        victim.restart().await;
        for (number, (reply, expected)) in replies.into_iter().zip(&expected).enumerate() {
            assert_eq!(&reply.await.unwrap(), expected, "{kind:?}, round {round}, request {number}");
        }
    }
    eventually("all nodes are back", || node.absent().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_wait_for_the_one_node_that_is_lost() {
    survive(KINDS[0], 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_a_hybrid_model_continue_on_another_node() {
    survive(KINDS[3], 2).await;
}

/// A cable that is cut sends nothing: the sign of life is missed.
#[tokio::test(flavor = "multi_thread")]
async fn replies_of_a_machine_that_falls_silent_continue_on_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let here = in_process(KINDS[0], folder.path()).await;
    let (one, two) =
        (Machine::start(KINDS[0], folder.path(), "one").await, Machine::start(KINDS[0], folder.path(), "two").await);
    let node = fleet(&[&one, &two]).await;
    let replies = asked(&node, 0..8);
    tokio::time::sleep(Duration::from_millis(60)).await;
    one.signal("-STOP").await;
    for (number, reply) in (0..8).zip(replies) {
        assert_eq!(reply.await.unwrap(), ask(&*here, mixed(number)).await.unwrap(), "request {number}");
    }
    // New ones are not sent there, and it is taken back.
    assert!(ask(&node, written("still here", 5)).await.is_ok());
    one.signal("-CONT").await;
    eventually("the machine is back", || node.absent().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_front_answers_while_its_node_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start(KINDS[0], folder.path(), "one").await;
    let node = fleet(&[&machine]).await;
    let model = node.model("stub").unwrap();
    machine.signal("-9").await;
    machine.ended().await;
    eventually("the loss is noticed", || !node.absent().is_empty()).await;
    assert_eq!(node.models().len(), 1, "its models are expected back");
    assert_eq!(model.status().phase, Phase::Starting);
    assert!(node.cache().tiers.is_empty() && model.requests().is_empty());
    let waiting = asked(&node, 0..1);
    machine.restart().await;
    for reply in waiting {
        assert!(!reply.await.unwrap().content.is_empty());
    }
    assert_ne!(model.status().phase, Phase::Stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_stopped_lets_its_replies_finish_and_takes_no_new_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) =
        (Machine::start(KINDS[0], folder.path(), "one").await, Machine::start(KINDS[0], folder.path(), "two").await);
    let node = fleet(&[&one, &two]).await;
    let alone = fleet(&[&one]).await;
    let started = alone.model("stub").unwrap().generate(vec![written("a long reply", 800)]).await.unwrap();
    one.signal("-TERM").await;
    eventually("it is left alone", || alone.absent().len() == 1 && node.absent().len() == 1).await;
    for number in 0..4 {
        assert!(ask(&node, mixed(number)).await.is_ok());
    }
    for reply in started {
        assert_eq!(read(reply).await.unwrap().generated.len(), 800);
    }
    one.ended().await;
}
