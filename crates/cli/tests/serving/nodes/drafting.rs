//! Drafting across nodes: the real binary with real models, where a model on one node drafts for a model on another.

use std::path::{Path, PathBuf};

use poncho_testkit::vocabulary::{CHAT_TEMPLATE, SIZE, Special};
use poncho_testkit::{ChatSpec, Mark, ModelKind, ModelSpec, NatsServer, write_model};
use serde_json::{Value, json};

use super::cluster::{Node, in_cluster};
use crate::served::{Served, request};
use crate::serving::stopping::until;
use crate::support::poncho;

const SPECULATE: &str = "/api/speculate";
/// Tokens of a reply.
const MOST: usize = 48;

fn model(folder: &Path, name: &str, spec: &ModelSpec) -> PathBuf {
    let path = folder.join(format!("{name}.gguf"));
    write_model(spec, &path).unwrap();
    path
}

fn router(folder: &Path, server: &NatsServer) -> Served {
    let mut command = poncho();
    command.args(["route", "--port", "0"]);
    in_cluster(&mut command, folder, server);
    Served::start_command(&mut command, folder)
}

/// A model's greedy reply without the token that ends it, and how it ends.
fn greedy(router: &Served, model: &str, prompt: &str) -> (Vec<u32>, &'static str) {
    let drafted = router.post("/api/draft", &json!({ "model": model, "prompt": prompt, "count": MOST }));
    let mut tokens: Vec<u32> = serde_json::from_value(drafted["tokens"].clone()).unwrap();
    let ends = [Special::End.id(), Special::MessageEnd.id()];
    let ended = tokens.pop_if(|token| ends.contains(token));
    (tokens, if ended.is_some() { "end" } else { "length" })
}

fn asking(model: &str, drafter: &str, prompt: &str) -> Value {
    json!({ "model": model, "draft_model": drafter, "prompt": prompt, "max_tokens": MOST, "count": 6 })
}

#[test]
fn a_model_on_one_node_drafts_for_a_model_on_another() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = NatsServer::start();
    let tiny = ModelSpec::tiny(ModelKind::Attention);
    // Replies of `brief` end by themselves, and have other hidden tokens in them.
    let brief = ModelSpec { special_gain: 2.0, ..tiny.clone() };
    let small = ModelSpec { seed: 7, n_layers: 1, ..tiny.clone() };
    let mark = Mark { text: "<mark>".to_owned(), is_control: false };
    let chat = ChatSpec { template: CHAT_TEMPLATE.to_owned(), marks: vec![mark] };
    let foreign = ModelSpec { chat: Some(chat), ..tiny.clone() };
    let targets = [model(folder, "large", &tiny), model(folder, "brief", &brief)];
    let drafters = [model(folder, "twin", &tiny), model(folder, "small", &small), model(folder, "foreign", &foreign)];
    let one = Node::with_models(folder, "one", &server, &targets);
    let two = Node::with_models(folder, "two", &server, &drafters);
    let router = router(folder, &server);
    until("the router has the models of both nodes", || {
        let listed = router.ask("GET", "/v1/models").1;
        ["large", "brief", "twin", "small", "foreign"].iter().all(|name| listed.contains(&format!("\"{name}\"")))
    });

    let prompts = ["Once upon a time", "Hello world", "And then", "The end of", "{\"a\":", "You and I"];
    let mut ended = 0;
    for target in ["large", "brief"] {
        for prompt in prompts {
            let (tokens, stop_reason) = greedy(&router, target, prompt);
            ended += usize::from(stop_reason == "end");
            for drafter in ["twin", "small"] {
                let reply = router.post(SPECULATE, &asking(target, drafter, prompt));
                assert_eq!(reply["tokens"], json!(tokens), "{target}, {drafter}, {prompt}: {reply}");
                assert_eq!(reply["stop_reason"], stop_reason, "{target}, {drafter}, {prompt}: {reply}");
                assert_eq!(reply["draft_failed"], Value::Null, "{target}, {drafter}, {prompt}: {reply}");
            }
        }
    }
    assert!(ended > 0, "no reply ended by itself");

    // The same weights draft nothing but what the target says: seven tokens a round.
    let prompt = prompts[0];
    let completed = json!({ "model": "large", "prompt": prompt, "max_tokens": MOST, "temperature": 0 });
    let completed = router.post("/v1/completions", &completed);
    let reply = router.post(SPECULATE, &asking("large", "twin", prompt));
    assert_eq!(reply["text"], completed["choices"][0]["text"], "{reply}");
    assert!(reply["rounds"].as_u64().unwrap() < 12 && reply["accepted"].as_u64().unwrap() > 36, "{reply}");

    let (status, refused) = request(router.address, "POST", SPECULATE, &asking("large", "foreign", prompt).to_string());
    assert_eq!(status, 400, "{refused}");
    let sizes = [SIZE.to_string(), (SIZE + 1).to_string()];
    assert!(sizes.iter().all(|size| refused.contains(size)) && refused.contains("draft_model"), "{refused}");

    // The node that drafts is gone: the reply is the same.
    drop(two);
    let alone = router.post(SPECULATE, &asking("large", "small", prompt));
    assert_eq!(alone["tokens"], reply["tokens"], "{alone}");
    assert!(alone["draft_failed"].is_string(), "{alone}");
    assert_eq!(one.stop(), Some(0));
    assert_eq!(router.stop().0, Some(0));
}
