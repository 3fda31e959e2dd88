//! A child and a node on the network answer as an engine in this process does.

use std::time::Duration;

use poncho_api::{EngineError, EvictionCause, Node, OwnerId, PeerState, PinOutcome, SpecialText, TokenizeMode};

use crate::machines::{Machine, fleet};
use crate::support::{KINDS, ask, child, in_process, read, written};

#[tokio::test(flavor = "multi_thread")]
async fn a_child_answers_as_an_engine_in_this_process() {
    let folder = tempfile::tempdir().unwrap();
    answers_as_an_engine_in_this_process(&child(KINDS[0], folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_on_the_network_answers_as_an_engine_in_this_process() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start(KINDS[0], folder.path(), "one").await;
    answers_as_an_engine_in_this_process(&fleet(&[&machine]).await).await;
}

async fn answers_as_an_engine_in_this_process(there: &dyn Node) {
    let folder = tempfile::tempdir().unwrap();
    let here = in_process(KINDS[0], folder.path()).await;
    let mut answers = Vec::new();
    for node in [&*here, there] {
        let model = node.model("stub").unwrap();
        let reply = ask(node, written("once upon a time", 40)).await.unwrap();
        assert_eq!(reply.content, reply.whole, "the pieces add up");
        let tokens = model.tokenize("some text".to_owned(), TokenizeMode::default()).await.unwrap();
        let text = model.detokenize(tokens.clone(), SpecialText::Hide).await.unwrap();
        let bytes = model.token_bytes(tokens.clone()).await.unwrap();
        let vectors = model.embed(vec![tokens.clone()], true).await.map_err(|error| error.to_string());
        let template = model.chat_template().await;
        let refused = model.generate(vec![written("too many", 0)]).await.err();
        let three =
            model.generate(vec![written("three", 9), written("prompts", 9), written("at once", 9)]).await.unwrap();
        let mut replies = Vec::new();
        for reply in three {
            replies.push(read(reply).await.unwrap());
        }
        let facts = (model.report().info.clone(), model.report().limits, node.hygiene(), node.models().len());
        answers.push((reply, tokens, text, bytes, vectors, template, refused, replies, facts));
    }
    let [here, there] = <[_; 2]>::try_from(answers).unwrap();
    assert_eq!(here, there);
    assert!(there.6.is_some(), "a request for nothing is refused on both sides");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_child_are_pinned_checked_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let node = child(KINDS[0], folder.path()).await;
    works_on_rows(&node).await;
    let [engine] = &node.peers()[..] else { panic!("one process computes") };
    assert_eq!((engine.state, &engine.models[..]), (PeerState::Up, &["stub".to_owned()][..]));
    assert!(node.stop(crate::support::PATIENCE).await);
    assert_eq!(node.peers()[0].state, PeerState::Down);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_node_on_the_network_are_pinned_checked_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start(KINDS[0], folder.path(), "one").await;
    let node = fleet(&[&machine]).await;
    works_on_rows(&node).await;
    let [peer] = &node.peers()[..] else { panic!("one node computes") };
    assert_eq!((peer.state, &peer.models[..]), (PeerState::Up, &["stub".to_owned()][..]));
}

async fn works_on_rows(node: &dyn Node) {
    ask(node, written("a prompt that is long enough to be stored", 40)).await.unwrap();
    let page = node.cache_rows(None, 0, 100).await;
    let row = page.rows.iter().find(|row| row.children == 0).unwrap();
    let stranger = Some(OwnerId::from_bytes([9; 16]));
    assert_eq!(node.pin_row(stranger, row.key).await, PinOutcome::NoRow);
    assert_eq!(node.pin_row(None, row.key).await, PinOutcome::Pinned);
    assert!(!node.remove_row(None, row.key).await);
    node.clear_cache().await;
    let left = node.cache_rows(None, 0, 100).await;
    assert!(left.rows.iter().any(|left| left.key == row.key && left.pinned), "{left:?}");
    let read = node.row_tokens(None, row.key).await.unwrap();
    assert_eq!((read.tokens.len(), read.fingerprint), (row.tokens as usize, row.fingerprint));
    assert_eq!(node.row_tokens(stranger, row.key).await, None);
    // Until its file is written, a row is in memory alone, and nothing is read.
    let written = async {
        loop {
            let checked = node.verify_row(None, row.key).await.unwrap();
            if checked.iter().any(|copy| copy.checked_bytes > 0) {
                return checked;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let checked = tokio::time::timeout(crate::support::PATIENCE, written).await.unwrap();
    assert!(checked.iter().all(|copy| copy.problem.is_none()), "{checked:?}");
    assert_eq!(node.verify_row(stranger, row.key).await, None);
    assert!(node.unpin_row(None, row.key).await && !node.unpin_row(None, row.key).await);
    node.clear_cache().await;
    assert_eq!(node.cache_rows(None, 0, 100).await.total, 0);
    let asked = node.evictions().await;
    assert!(!asked.is_empty() && asked.iter().all(|sum| sum.cause == EvictionCause::Asked), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_unloaded_is_gone_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let node = child(KINDS[0], folder.path()).await;
    let model = node.model("stub").unwrap();
    node.unload("stub").await.unwrap();
    assert!(node.models().is_empty());
    let refused = model.generate(vec![written("hello", 4)]).await.err();
    assert_eq!(refused, Some(EngineError::UnknownModel { model: "stub".to_owned() }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_nobody_reads_is_cancelled_in_the_child() {
    let folder = tempfile::tempdir().unwrap();
    cancels_what_nobody_reads(&child(KINDS[0], folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_nobody_reads_is_cancelled_on_the_network() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start(KINDS[0], folder.path(), "one").await;
    cancels_what_nobody_reads(&fleet(&[&machine]).await).await;
}

async fn cancels_what_nobody_reads(node: &dyn Node) {
    let model = node.model("stub").unwrap();
    drop(model.generate(vec![written("hello", 1900), written("world", 1900)]).await.unwrap());
    drop(model.generate(vec![written("hello", 1900)]).await.unwrap());
    let started = std::time::Instant::now();
    while model.status().queue_depth > 0 || model.status().ticks == 0 {
        assert!(started.elapsed() < crate::support::PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Those of the first call were never claimed by anybody.
    assert!(model.status().generated_tokens < 3 * 1900, "they were cancelled: {:?}", model.status());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_is_stopped_ends_and_calls_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let node = child(KINDS[0], folder.path()).await;
    let process = node.process_id().unwrap();
    assert!(node.stop(crate::support::PATIENCE).await);
    let model = node.model("stub").unwrap();
    let refused = model.generate(vec![written("hello", 4)]).await.err();
    assert!(matches!(refused, Some(EngineError::NodeLost { .. })), "{refused:?}");
    let started = std::time::Instant::now();
    while std::path::Path::new(&format!("/proc/{process}/exe")).exists() {
        assert!(started.elapsed() < crate::support::PATIENCE, "the process is gone");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_no_node_is_an_error_with_its_end() {
    let error = error_of("false", &[]).await;
    assert!(error.contains("exit code 1 before it served"), "{error}");
}

/// Why a program that does not serve cannot be used as one.
async fn error_of(program: &str, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let launch = poncho_node::Launch {
        program: program.into(),
        arguments: arguments.iter().map(Into::into).collect(),
        variables: Vec::new(),
        socket_variable: "UNUSED",
        start_within: crate::support::PATIENCE,
        call_wait: crate::support::PATIENCE,
        crash_limit: 3,
        crashes: folder.path().join("crashes"),
        note: None,
    };
    poncho_node::ChildNode::start(launch).await.err().unwrap().to_string()
}

/// On a busy machine its last words came after its end was known, and "exit code 1" was all that was said.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_says_why_it_ends_is_an_error_with_that_reason() {
    for _ in 0..100 {
        let error = error_of("sh", &["-c", "echo 'error: the disk is on fire' >&2; exit 1"]).await;
        assert!(error.contains("the disk is on fire"), "{error}");
    }
}
