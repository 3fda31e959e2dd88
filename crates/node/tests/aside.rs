//! A model that ends its process again and again is set aside, and the others go on.

use poncho_api::{EngineError, Node, ReplyEvent};

use crate::support::{KINDS, POISON, ask_model, child, load_as, written};

/// A prompt that nobody has seen, which ends the process.
fn poison(number: u32) -> poncho_api::Generate {
    written(&format!("{number} ends it {POISON}"), 20)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_crashes_three_times_rests_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let node = child(KINDS[0], folder.path()).await;
    load_as(&node, "other").await;
    // A reply of the other model runs all the time.
    let other = {
        let node = node.clone();
        tokio::spawn(async move { ask_model(&node, "other", written("a long reply", 1500)).await })
    };
    let first = ask_model(&node, "stub", poison(1)).await.unwrap_err();
    assert_eq!(first, ReplyEvent::Failed(EngineError::Poison), "two crashes");
    let second = ask_model(&node, "stub", poison(2)).await.unwrap_err();
    let ReplyEvent::Failed(EngineError::SetAside { model, seconds }) = &second else { panic!("{second:?}") };
    assert!(model == "stub" && *seconds > 0, "{second:?}");
    let crashes = std::fs::read_dir(folder.path().join("crashes")).unwrap().count();
    assert_eq!(crashes, 3);
    assert_eq!(other.await.unwrap().unwrap().generated.len(), 1500);
    assert!(ask_model(&node, "other", written("still here", 5)).await.is_ok());
    // It rests, and a load brings it back.
    let refused = node.model("stub").unwrap().generate(vec![written("hello", 5)]).await.err();
    assert!(matches!(refused, Some(EngineError::SetAside { .. })), "{refused:?}");
    load_as(&node, "stub").await;
    assert!(ask_model(&node, "stub", written("hello", 5)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_rests_can_be_unloaded() {
    let folder = tempfile::tempdir().unwrap();
    let node = child(KINDS[0], folder.path()).await;
    for number in 0..2 {
        assert!(ask_model(&node, "stub", poison(number)).await.is_err());
    }
    let refused = node.model("stub").unwrap().generate(vec![written("hello", 5)]).await.err();
    assert!(matches!(refused, Some(EngineError::SetAside { .. })), "{refused:?}");
    node.unload("stub").await.unwrap();
    assert!(node.models().is_empty());
    load_as(&node, "stub").await;
    assert!(ask_model(&node, "stub", written("hello", 5)).await.is_ok());
}
