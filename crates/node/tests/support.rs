//! A node with the stub engine, in this process and in a child of it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use poncho_api::{
    ChatSettings, ContextOptions, Drafts, FingerprintSource, Gates, Generate, Input, LoadEvent, LoadModel, ModelConfig,
    Node, Prompt, ReplyEvent, ReplyStream, Request, RestoreRule, Sampling,
};
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::{StubBackend, vocab};
use poncho_engine::{Engine, Host};
use poncho_node::{ChildNode, Launch, serve_parent};

/// Longer than any honest wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// A prompt with this ends the process that reads it.
pub(crate) const POISON: &str = "~~~~";
/// Names the socket for a child; without it this binary runs its tests.
const SOCKET: &str = "PONCHO_TEST_NODE_SOCKET";

pub(crate) const KINDS: [MemoryKind; 4] =
    [MemoryKind::Attention, MemoryKind::Window { size: 16 }, MemoryKind::Recurrent, MemoryKind::Hybrid];

/// The same engine wherever it runs: rows in a folder, decodes that take a moment.
pub(crate) fn host(kind: MemoryKind, folder: &Path) -> Arc<dyn Node> {
    let config = CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(folder, 1 << 30) };
    let backend = StubBackend::new(kind).with_fill_tokens();
    backend.faults().busy_decodes(Duration::from_millis(1));
    backend.faults().abort_on(&vocab::tokens(POISON));
    let engine = Engine::new(Arc::new(backend), Arc::new(Cache::open(config).unwrap()));
    Arc::new(Host::new(Arc::new(engine), ChatSettings::default()))
}

/// What `child` starts. By itself it shows that a socket that cannot be made is an error.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_serves_the_socket_that_it_is_given() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("none/socket");
        assert!(serve_parent(&nowhere, host(KINDS[0], folder.path())).await.is_err());
        return;
    };
    let kind = KINDS[std::env::var("PONCHO_TEST_NODE_KIND").unwrap().parse::<usize>().unwrap()];
    let folder = std::env::var_os("PONCHO_TEST_NODE_FOLDER").unwrap();
    serve_parent(Path::new(&socket), host(kind, Path::new(&folder))).await.unwrap();
    std::process::exit(0)
}

/// A child with a model.
pub(crate) async fn child(kind: MemoryKind, folder: &Path) -> ChildNode {
    let number = KINDS.iter().position(|other| *other == kind).unwrap();
    let launch = Launch {
        program: "env".into(),
        arguments: vec![
            format!("PONCHO_TEST_NODE_KIND={number}").into(),
            format!("PONCHO_TEST_NODE_FOLDER={}", folder.join("rows").display()).into(),
            std::env::current_exe().unwrap().into(),
            "support::a_child_serves_the_socket_that_it_is_given".into(),
            "--exact".into(),
            "--nocapture".into(),
        ],
        variables: Vec::new(),
        socket_variable: SOCKET,
        start_within: PATIENCE,
        call_wait: PATIENCE,
        crash_limit: 3,
        crashes: folder.join("crashes"),
        note: None,
    };
    let node = ChildNode::start(launch).await.unwrap();
    load(&node).await;
    node
}

/// The same in this process.
pub(crate) async fn in_process(kind: MemoryKind, folder: &Path) -> Arc<dyn Node> {
    let node = host(kind, &folder.join("own-rows"));
    load(&*node).await;
    node
}

pub(crate) async fn load(node: &dyn Node) {
    load_as(node, "stub").await;
}

/// The same model by another name.
pub(crate) async fn load_as(node: &dyn Node, name: &str) {
    let context = ContextOptions {
        n_ctx: 2048,
        n_cells: Some(32768),
        n_batch: 256,
        n_ubatch: 256,
        n_seq_max: 8,
        ..ContextOptions::default()
    };
    load_with(node, config(name, context)).await;
}

/// Settings of a model of the stub: short prompts are saved, and whatever was saved is restored.
pub(crate) fn config(name: &str, context: ContextOptions) -> ModelConfig {
    ModelConfig {
        fingerprint: FingerprintSource::FastUnsafe([7; 32]),
        gates: Gates { min_tokens: 4, cold_min_tokens: 4, continued_interval: 16, ..Gates::default() },
        context,
        restore_rule: RestoreRule::Always,
        drafts: Drafts::Off,
        ..ModelConfig::new(name, "stub")
    }
}

pub(crate) async fn load_with(node: &dyn Node, config: ModelConfig) {
    let mut events = node.load(LoadModel { config, adapters: Vec::new() });
    let mut last = None;
    while let Some(event) = events.next().await {
        last = Some(event);
    }
    assert_eq!(last, Some(LoadEvent::Loaded));
}

/// A prompt that is read as it is.
pub(crate) fn written(text: &str, tokens: u32) -> Generate {
    let request = Request {
        max_tokens: Some(tokens),
        ignore_eos: true,
        sampling: Sampling { seed: Some(1), ..Sampling::default() },
        ..Request::default()
    };
    Generate { in_pieces: true, ..Generate::new(Prompt::Written(Input::Text(text.to_owned())), request) }
}

/// A reply as its reader has it: the pieces put together, and what the last event says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Read {
    pub(crate) content: String,
    pub(crate) generated: Vec<u32>,
    pub(crate) logprobs: usize,
    pub(crate) whole: String,
}

pub(crate) async fn read(mut reply: ReplyStream) -> Result<Read, ReplyEvent> {
    let mut content = String::new();
    let mut starts = 0;
    while let Some(event) = tokio::time::timeout(PATIENCE, reply.next()).await.expect("an event within a while") {
        match event {
            ReplyEvent::Started(_) => starts += 1,
            ReplyEvent::Progress(_) => {}
            ReplyEvent::Delta(delta) => content.push_str(&delta.content),
            ReplyEvent::Done(finished) => {
                assert_eq!(starts, 1, "a reply starts once");
                content.push_str(&finished.rest.content);
                let generated = finished.completion.generated;
                let (logprobs, whole) = (finished.logprobs.len(), finished.output.content);
                return Ok(Read { content, generated, logprobs, whole });
            }
            other => return Err(other),
        }
    }
    panic!("a reply without a last event");
}

/// The one reply to a prompt.
pub(crate) async fn ask(node: &dyn Node, prompt: Generate) -> Result<Read, ReplyEvent> {
    ask_model(node, "stub", prompt).await
}

/// The one reply of a model.
pub(crate) async fn ask_model(node: &dyn Node, model: &str, prompt: Generate) -> Result<Read, ReplyEvent> {
    let model = node.model(model).unwrap();
    let started = model.generate(vec![prompt]).await.map_err(ReplyEvent::Failed)?;
    read(started.into_iter().next().unwrap()).await
}
