//! Processes that are killed in the middle of replies: nothing is lost, doubled or changed.
//!
//! The stub computes the same tokens whatever shares its batches, so a reply with kills equals one without, byte for byte.
//! `PONCHO_NODE_KILLS` sets how many kills there are for each memory kind.

use std::time::Duration;

use poncho_api::{EngineError, Generate, Grammar, GrammarSource, Node, ReplyEvent, Sampling};
use poncho_engine::backend::MemoryKind;

use crate::support::{KINDS, PATIENCE, POISON, Read, ask, child, in_process, read, written};

fn kills() -> u32 {
    std::env::var("PONCHO_NODE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(3)
}

/// Requests of all kinds, by number.
pub(crate) fn mixed(number: u32) -> Generate {
    let mut asked = written(&format!("{number} the quick brown fox jumps over the lazy dog, {number} times"), 150);
    match number % 4 {
        0 => asked.request.sampling = Sampling { seed: Some(5), ..Sampling::greedy() },
        1 => {
            asked.request.sampling =
                Sampling { seed: Some(number.into()), frequency_penalty: 0.3, ..Sampling::default() }
        }
        2 => asked.request.logprobs = Some(2),
        _ => {
            let source = GrammarSource::Gbnf { text: "root ::= [a-z ]+".to_owned(), root: "root".to_owned() };
            asked.request.grammar = Some(Grammar { source, triggers: Vec::new(), accepted: Vec::new() });
        }
    }
    asked
}

async fn kill(process: u32) {
    signal(process, "-9").await;
}

async fn signal(process: u32, signal: &str) {
    let sent = tokio::process::Command::new("kill").args([signal, &process.to_string()]).status().await.unwrap();
    assert!(sent.success());
}

async fn survive(kind: MemoryKind) {
    let folder = tempfile::tempdir().unwrap();
    let here = in_process(kind, folder.path()).await;
    let there = child(kind, folder.path()).await;
    let mut expected: Vec<Read> = Vec::new();
    for number in 0..8 {
        expected.push(ask(&*here, mixed(number)).await.unwrap());
    }
    let mut pause = 3_u64;
    for round in 0..kills() {
        let asked = (0..8).map(|number| {
            let node = there.clone();
            tokio::spawn(async move { ask(&node, mixed(number)).await })
        });
        let asked: Vec<_> = asked.collect();
        // Moments all over the replies, the same in each run as far as a machine can.
        pause = pause.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        tokio::time::sleep(Duration::from_millis((pause >> 33) % 250)).await;
        if let Some(process) = there.process_id() {
            kill(process).await;
        }
        for (number, (reply, expected)) in asked.into_iter().zip(&expected).enumerate() {
            let reply = reply.await.unwrap().unwrap_or_else(|event| panic!("{kind:?} {round} {number}: {event:?}"));
            assert_eq!(&reply, expected, "{kind:?}, round {round}, request {number}");
        }
    }
    let crashes = std::fs::read_dir(folder.path().join("crashes")).unwrap().count();
    assert!(crashes > 0, "each crash is written down");
    assert!(there.stop(PATIENCE).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_an_attention_model_survive_kills() {
    survive(KINDS[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_a_window_model_survive_kills() {
    survive(KINDS[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_a_recurrent_model_survive_kills() {
    survive(KINDS[2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_a_hybrid_model_survive_kills() {
    survive(KINDS[3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poison_request_is_refused_after_two_crashes_and_the_others_finish() {
    let folder = tempfile::tempdir().unwrap();
    let here = in_process(KINDS[0], folder.path()).await;
    let there = child(KINDS[0], folder.path()).await;
    let others = (0..4).map(|number| {
        let node = there.clone();
        tokio::spawn(async move { ask(&node, mixed(number)).await })
    });
    let others: Vec<_> = others.collect();
    let poison = || written(&format!("this ends it {POISON} at once"), 20);
    let refused = ask(&there, poison()).await.unwrap_err();
    assert_eq!(refused, ReplyEvent::Failed(EngineError::Poison));
    for (number, other) in (0..4).zip(others) {
        assert_eq!(other.await.unwrap().unwrap(), ask(&*here, mixed(number)).await.unwrap());
    }
    let crashes = || std::fs::read_dir(folder.path().join("crashes")).unwrap().count();
    assert_eq!(crashes(), 2);
    // It is known now, and does no more harm.
    let again = there.model("stub").unwrap().generate(vec![poison()]).await.err();
    assert_eq!((again, crashes()), (Some(EngineError::Poison), 2));
    assert!(ask(&there, written("still here", 5)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn several_replies_to_one_prompt_survive() {
    let folder = tempfile::tempdir().unwrap();
    let here = in_process(KINDS[0], folder.path()).await;
    let there = child(KINDS[0], folder.path()).await;
    let asked = || Generate { replies: 3, ..mixed(1) };
    let expected = here.model("stub").unwrap().generate(vec![asked()]).await.unwrap();
    let replies = there.model("stub").unwrap().generate(vec![asked()]).await.unwrap();
    let reading: Vec<_> = replies.into_iter().map(|reply| tokio::spawn(read(reply))).collect();
    tokio::time::sleep(Duration::from_millis(60)).await;
    kill(there.process_id().unwrap()).await;
    for (expected, reply) in expected.into_iter().zip(reading) {
        assert_eq!(reply.await.unwrap().unwrap(), read(expected).await.unwrap());
    }
}

/// A process that ended while it loaded its models again took the models out of the list for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_while_it_starts_is_followed_by_one_with_its_models() {
    let folder = tempfile::tempdir().unwrap();
    let here = in_process(KINDS[0], folder.path()).await;
    let there = child(KINDS[0], folder.path()).await;
    for _ in 0..3 {
        let before = there.process_id();
        if let Some(process) = before {
            kill(process).await;
        }
        let started = std::time::Instant::now();
        while there.process_id().is_none_or(|process| Some(process) == before) {
            assert!(started.elapsed() < PATIENCE, "another process starts");
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(ask(&there, mixed(0)).await.unwrap(), ask(&*here, mixed(0)).await.unwrap());
}

/// The call that asks a process to end had no time limit: a server with an engine that hung could not be stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_hangs_is_given_up_within_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let there = child(KINDS[0], folder.path()).await;
    let process = there.process_id().unwrap();
    signal(process, "-STOP").await;
    let stopped = tokio::time::timeout(PATIENCE, there.stop(Duration::from_millis(300))).await;
    assert_eq!(stopped.ok(), Some(false));
    let left = tokio::process::Command::new("kill").args(["-0", &process.to_string()]).status().await.unwrap();
    assert!(!left.success() && there.process_id().is_none(), "it does not outlive its server");
}
