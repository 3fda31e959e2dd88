//! What a turn of a long conversation costs: counted, not timed.
//!
//! Everyday use 4: each turn rendered and tokenized the whole conversation once or twice for each of its last messages, so
//! that turns became slower with their number although each computed as many tokens as the one before.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream as _;
use poncho_api::{ChatSettings, ChatTurn, Generate, Node as _, Prompt, Rendered, ReplayScope, ReplyEvent};
use poncho_engine::backend::stub::{StubBackend, StubCounts, StubFaults, vocab};
use poncho_engine::backend::{ContextOptions, MemoryKind};
use poncho_engine::{Engine, Host, ModelConfig, Request, Sampling};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{memory_cache, stub_config};

struct Server {
    host: Host,
    faults: StubFaults,
}

impl Server {
    fn new(kind: MemoryKind, replay: ReplayScope) -> Self {
        let backend = StubBackend::new(kind);
        let faults = backend.faults();
        let engine = Arc::new(Engine::new(Arc::new(backend), memory_cache()));
        let config = stub_config("stub");
        let context = ContextOptions { n_ctx: 30_000, n_cells: Some(60_000), ..config.context.clone() };
        engine.load(ModelConfig { context, ..config }).unwrap();
        Self { host: Host::new(engine, ChatSettings { replay, ..ChatSettings::default() }), faults }
    }

    fn prompt(messages: &[Value]) -> Generate {
        let turn = ChatTurn { messages: messages.to_vec(), ..ChatTurn::default() };
        let request = Request { max_tokens: Some(256), sampling: Sampling::greedy(), ..Request::new(Vec::new()) };
        Generate::new(Prompt::Chat(Box::new(turn)), request)
    }

    async fn rendered(&self, messages: &[Value]) -> Rendered {
        self.host.model("stub").unwrap().render(Self::prompt(messages)).await.unwrap()
    }

    /// One turn: what it counted, and the reply.
    async fn turn(&self, messages: &[Value]) -> (StubCounts, String) {
        let before = self.faults.counts();
        let model = self.host.model("stub").unwrap();
        let mut reply = model.generate(vec![Self::prompt(messages)]).await.unwrap().pop().unwrap();
        loop {
            match poll_fn(|context| Pin::new(&mut reply).poll_next(context)).await.unwrap() {
                ReplyEvent::Done(done) => {
                    let after = self.faults.counts();
                    let counts = StubCounts {
                        renders: after.renders - before.renders,
                        tokenized_bytes: after.tokenized_bytes - before.tokenized_bytes,
                        ..StubCounts::default()
                    };
                    return (counts, done.output.content);
                }
                ReplyEvent::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
    }
}

/// Where the stub's template ends messages.
fn ends(tokens: &[u32]) -> Vec<usize> {
    let end = [vocab::IM_END, u32::from(b'\n')];
    (0..tokens.len()).filter(|at| tokens[*at..].starts_with(&end)).map(|at| at + end.len()).collect()
}

#[tokio::test]
async fn a_turn_renders_and_tokenizes_only_what_is_new_in_it() {
    for kind in [MemoryKind::Attention, MemoryKind::Window { size: 16 }, MemoryKind::Recurrent, MemoryKind::Hybrid] {
        let server = Server::new(kind, ReplayScope::All);
        let mut messages = vec![json!({"role": "system", "content": "Be brief. ".repeat(100)})];
        for turn in 0..40 {
            let question = format!("Question {turn}?");
            messages.push(json!({"role": "user", "content": question}));
            let said = messages.iter().rev().take(2).map(|message| message.to_string().len() as u64).sum::<u64>();
            let (counts, reply) = server.turn(&messages).await;
            // The prompt, and up to the reply and up to the question for a model that resumes only where it saved.
            let most = if kind == MemoryKind::Attention { 1 } else { 3 };
            if turn > 0 {
                assert!(counts.renders <= most, "{} renders in turn {turn} ({kind:?})", counts.renders);
                // The tools' probe, marks and openings come on top of the texts.
                let most = 2 * said + 300;
                let bytes = counts.tokenized_bytes;
                assert!(bytes <= most, "{bytes} of {most} bytes tokenized in turn {turn} ({kind:?})");
            }
            messages.push(json!({"role": "assistant", "content": reply}));
        }
        let rendered = server.rendered(&messages).await;
        if kind != MemoryKind::Attention {
            let all = ends(&rendered.tokens);
            let recent = all.len() - 12;
            let expected: Vec<usize> = all[..1].iter().chain(&all[recent..]).copied().collect();
            assert_eq!(rendered.boundaries, expected, "{kind:?}");
        }
    }
}

/// A client that tries again, or counts tokens before it sends, pays for the template once.
#[tokio::test]
async fn a_conversation_that_was_rendered_before_is_not_rendered_again() {
    let server = Server::new(MemoryKind::Recurrent, ReplayScope::Nothing);
    let messages: Vec<Value> = (0..40).map(|at| json!({"role": "user", "content": format!("Message {at}")})).collect();
    let first = server.rendered(&messages).await;
    let before = server.faults.counts();
    let again = server.rendered(&messages).await;
    assert_eq!((&again.tokens, &again.boundaries, &again.text), (&first.tokens, &first.boundaries, &first.text));
    let after = server.faults.counts();
    assert_eq!(after.renders, before.renders);
    assert_eq!(after.tokenized_bytes, before.tokenized_bytes);
    let mut edited = messages.clone();
    edited[20] = json!({"role": "user", "content": "Message 20!"});
    assert_ne!(server.rendered(&edited).await.tokens, first.tokens);
    assert!(server.faults.counts().renders > after.renders);
}

fn message() -> impl Strategy<Value = Value> {
    let role = prop::sample::select(vec!["user", "assistant", "system", "tool"]);
    (role, prop::sample::select(vec!["a", "b", "<|im_end|>\n", "a longer text", ""]))
        .prop_map(|(role, text)| json!({"role": role, "content": text}))
}

/// What was found in other conversations never changes what is found in this one.
#[test]
fn a_server_that_has_seen_much_finds_the_ends_that_a_fresh_one_finds() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seasoned = Server::new(MemoryKind::Recurrent, ReplayScope::Nothing);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 24, ..ProptestConfig::default() });
    let step = (prop::collection::vec(message(), 1..4), 0..6_usize, prop::option::of((0..6_usize, message())));
    let conversations = prop::collection::vec(step, 1..6);
    runner
        .run(&conversations, |steps| {
            let mut messages: Vec<Value> = Vec::new();
            for (more, kept, edit) in steps {
                messages.truncate(kept);
                messages.extend(more);
                if let Some((place, other)) = edit {
                    let place = place % messages.len();
                    messages[place] = other;
                }
                let fresh = Server::new(MemoryKind::Recurrent, ReplayScope::Nothing);
                let expected = runtime.block_on(fresh.rendered(&messages));
                for _ in 0..2 {
                    let found = runtime.block_on(seasoned.rendered(&messages));
                    prop_assert_eq!(&found.text, &expected.text);
                    prop_assert_eq!(&found.tokens, &expected.tokens);
                    prop_assert_eq!(&found.boundaries, &expected.boundaries);
                }
            }
            Ok(())
        })
        .unwrap();
}
