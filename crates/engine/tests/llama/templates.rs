//! Prompts of every chat template of llama.cpp's test set: what is remembered of earlier turns never changes them.
//!
//! Random conversations grow, are cut and are edited in the middle. A host that has seen all of it must give the text, the
//! tokens and the ends of messages that a fresh host gives, which renders and tokenizes everything. The templates come from
//! `scripts/fetch/llama_cpp.py`. Where they are missing the test fails.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use poncho_api::{ChatSettings, ChatTurn, Generate, Node as _, Prompt, Rendered, Tool};
use poncho_engine::backend::ContextOptions;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::{Engine, Host, ModelConfig, Request};
use poncho_testkit::{ModelKind, model_path};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::support::memory_cache;

/// Conversations for each template, and turns of each.
const CONVERSATIONS: usize = 1;
const TURNS: usize = 4;

fn templates() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.tools/llama.cpp/models/templates");
    let entries = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}; run `make test` or scripts/fetch/llama_cpp.py", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut found: Vec<(String, String)> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "jinja"))
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap()))
        .collect();
    found.sort();
    assert!(found.len() > 60, "only {} templates; run scripts/fetch/llama_cpp.py", found.len());
    found
}

/// An exchange: a question and a reply, with a call of a tool between them or without.
fn exchange() -> impl Strategy<Value = Vec<Value>> {
    let text = || prop::sample::select(vec!["Hi", "a longer text with words", "<|im_end|>\n", "  spaces ", "ä 语 🙂"]);
    (text(), text(), any::<bool>()).prop_map(|(question, reply, calls)| {
        let function = json!({"name": "look", "arguments": "{\"at\":\"x\"}"});
        let call = json!([{"id": "call00001", "type": "function", "function": function}]);
        let mut messages = vec![json!({"role": "user", "content": question})];
        if calls {
            messages.push(json!({"role": "assistant", "content": "", "tool_calls": call}));
            messages.push(json!({"role": "tool", "tool_call_id": "call00001", "name": "look", "content": "seen"}));
        }
        messages.push(json!({"role": "assistant", "content": reply}));
        messages
    })
}

/// What happens before a turn: exchanges are cut off, one is replaced, others follow.
#[derive(Debug, Clone)]
struct Step {
    kept: usize,
    edit: Option<(usize, Vec<Value>)>,
    more: Vec<Vec<Value>>,
    system: bool,
    tools: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let edit = prop::option::of((0..8_usize, exchange()));
    (2..8_usize, edit, prop::collection::vec(exchange(), 1..3), any::<bool>(), any::<bool>())
        .prop_map(|(kept, edit, more, system, tools)| Step { kept, edit, more, system, tools })
}

async fn rendered(host: &Host, turn: &ChatTurn) -> Result<Rendered, String> {
    let prompt = Generate::new(Prompt::Chat(Box::new(turn.clone())), Request::new(Vec::new()));
    host.model("tiny").unwrap().render(prompt).await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_remembered_never_changes_a_prompt_of_any_template() {
    let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), memory_cache()));
    let context = ContextOptions { n_ctx: 4096, n_seq_max: 1, threads: Some(1), ..ContextOptions::default() };
    // A model that cannot be cut: the ends of its messages are looked for.
    let config = ModelConfig { context, ..ModelConfig::new("tiny", model_path(ModelKind::Recurrent)) };
    engine.load(config).unwrap();
    let seasoned = Host::new(Arc::clone(&engine), ChatSettings::default());
    let mut runner = TestRunner::deterministic();
    let conversation = prop::collection::vec(step(), TURNS);
    let tool = json!({"type": "function", "function": {"name": "look", "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}});
    let tool = Tool { name: "look".to_owned(), json: tool.to_string() };
    let (mut written, mut refused) = (0, 0);
    for (name, template) in templates() {
        for _ in 0..CONVERSATIONS {
            let steps = conversation.new_tree(&mut runner).unwrap().current();
            let mut exchanges: Vec<Vec<Value>> = Vec::new();
            for Step { kept, edit, more, system, tools } in steps {
                exchanges.truncate(kept);
                exchanges.extend(more);
                if let Some((place, other)) = edit {
                    let place = place % exchanges.len();
                    exchanges[place] = other;
                }
                let system = json!({"role": "system", "content": "Be brief."}).as_object().cloned().filter(|_| system);
                let question = json!({"role": "user", "content": "And now?"});
                let messages = system.map(Value::Object).into_iter().chain(exchanges.concat()).chain([question]);
                let turn = ChatTurn {
                    messages: messages.collect(),
                    tools: Some(tool.clone()).filter(|_| tools).into_iter().collect(),
                    template: Some(template.clone()),
                    ..ChatTurn::default()
                };
                let fresh = Host::new(Arc::clone(&engine), ChatSettings::default());
                let expected = rendered(&fresh, &turn).await;
                // The second time everything is remembered.
                for _ in 0..2 {
                    let found = rendered(&seasoned, &turn).await;
                    assert!(found == expected, "{name}: {:?}", turn.messages);
                }
                match expected {
                    Ok(_) => written += 1,
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(written > 10 * refused, "{written} prompts, {refused} refusals");
}
