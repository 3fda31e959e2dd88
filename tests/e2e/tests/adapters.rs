//! Models made with an ADAPTER, on real llama.cpp: it is applied, its states are its own, and a wrong one is refused.

use std::path::Path;
use std::sync::Arc;

use hyper::Method;
use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::ContextOptions;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::{Engine, ModelConfig};
use poncho_models::{ModelName, Registry, Sha256, ignore_progress};
use poncho_server::{RegistryLibrary, ServerConfig};
use poncho_testkit::{AdapterSpec, ModelKind, ModelSpec, adapter_path, model_path, write_adapter};
use serde_json::{Value, json};

use crate::support::{Server, small_gates};

fn settings(name: &str, path: &Path) -> ModelConfig {
    let context = ContextOptions { n_ctx: 1024, n_seq_max: 2, threads: Some(1), ..ContextOptions::default() };
    ModelConfig { context, gates: small_gates(), ..ModelConfig::new(name, path) }
}

struct Home {
    server: Server,
    _folder: tempfile::TempDir,
}

/// What a reply is compared by: its text and the exact log probabilities.
#[derive(Debug, Clone, PartialEq)]
struct Said {
    hit: String,
    read: u64,
    reply: Value,
}

impl Home {
    /// A server with the tiny attention model as `base`, and the recurrent one as `other`.
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path()).unwrap();
        for (name, kind) in [("base", ModelKind::Attention), ("other", ModelKind::Recurrent)] {
            registry.import(&model_path(kind), &ModelName::parse(name).unwrap(), &mut ignore_progress).unwrap();
        }
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 28)).unwrap());
        let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), cache));
        let library = RegistryLibrary::new(registry, Box::new(settings));
        let config = ServerConfig { library: Some(Arc::new(library)), ..ServerConfig::default() };
        Self { server: Server::of(engine, config).await, _folder: folder }
    }

    /// Brings a file and returns its name.
    async fn upload(&self, path: &Path) -> String {
        let bytes = std::fs::read(path).unwrap();
        let digest = format!("sha256:{}", Sha256::of(&bytes));
        let sent = self.server.send(Method::POST, &format!("/api/blobs/{digest}"), &[], bytes).await;
        assert!([200, 201].contains(&sent.status), "{}", sent.text);
        digest
    }

    async fn says(&self, model: &str) -> Said {
        let body = json!({"model": model, "temperature": 0, "max_tokens": 6, "logprobs": true, "top_logprobs": 3,
            "ignore_eos": true, "poncho": true,
            "messages": [{"role": "user", "content": "The same question for both of them, long enough to be saved."}]});
        let answer = self.server.chat(&body).await;
        let facts = &answer["poncho"];
        Said {
            hit: facts["hit"].as_str().unwrap().to_owned(),
            read: facts["cached_tokens"].as_u64().unwrap(),
            reply: answer["choices"][0]["logprobs"]["content"].clone(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_is_applied_and_its_states_are_its_own() {
    let home = Home::new().await;
    let digest = home.upload(&adapter_path()).await;
    // Both forms that clients know.
    for body in [
        json!({"model": "adapted", "from": "base", "adapters": {"lora.gguf": digest}, "stream": false}),
        json!({"model": "written", "modelfile": format!("FROM base\nADAPTER @{digest}\n"), "stream": false}),
        json!({"model": "child", "from": "adapted", "system": "", "stream": false}),
    ] {
        assert_eq!(home.server.ask("/api/create", &body).await, json!({"status": "success"}));
    }
    let base = home.says("base").await;
    assert_eq!((base.hit.as_str(), base.read), ("cold", 0));
    let adapted = home.says("adapted").await;
    assert_eq!((adapted.hit.as_str(), adapted.read), ("cold", 0), "no state of the model below is its own");
    assert_ne!(adapted.reply, base.reply, "it changes what the model says");
    for (model, first) in [("base", &base), ("adapted", &adapted)] {
        let again = home.says(model).await;
        assert_ne!(again.hit, "cold", "{model}");
        assert_eq!(&again.reply, &first.reply, "{model}: its own states");
    }
    // The same files mean the same states, under whatever name, and again after it was unloaded.
    home.server.ask("/api/models/unload", &json!({"model": "adapted"})).await;
    for model in ["written", "child", "adapted"] {
        let said = home.says(model).await;
        assert_ne!(said.hit, "cold", "{model}");
        assert_eq!(said.reply, adapted.reply, "{model}");
    }
    let explained = json!({"model": "adapted", "messages":
        [{"role": "user", "content": "The same question for both of them, long enough to be saved."}]});
    let explained = home.server.ask("/api/cache/explain", &explained).await;
    assert_eq!(explained["cause"], "cached", "the rows of the adapted model are looked at: {explained}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_adapter_is_refused_with_the_reason() {
    let home = Home::new().await;
    let adapter = home.upload(&adapter_path()).await;
    let model = home.upload(&model_path(ModelKind::Hybrid)).await;
    let create = async |body: Value| home.server.post("/api/create", &body).await;
    for (body, words) in [
        (json!({"model": "m", "from": "base", "adapters": {"a": model}}), "not a LoRA adapter"),
        (json!({"model": "m", "files": {"a": adapter}}), "LoRA adapter"),
        (json!({"model": "m", "from": "other", "adapters": {"a": adapter}}), "is for llama models"),
        (json!({"model": "m", "modelfile": "FROM base\nADAPTER ./lora.gguf"}), "lora.gguf"),
    ] {
        let refused = create(body.clone()).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.text);
        assert!(refused.json()["error"].as_str().unwrap().contains(words), "{body}: {}", refused.text);
    }
    // The right architecture with other sizes, and a truncated file: detected when they are applied to the model.
    let folder = tempfile::tempdir().unwrap();
    let (wide, cut) = (folder.path().join("wide.gguf"), folder.path().join("cut.gguf"));
    let spec = ModelSpec { width: 128, ..ModelSpec::tiny(ModelKind::Attention) };
    write_adapter(&spec, &AdapterSpec::tiny(), &wide).unwrap();
    let whole = std::fs::read(adapter_path()).unwrap();
    std::fs::write(&cut, &whole[..whole.len() - 1000]).unwrap();
    for path in [wide, cut] {
        let digest = home.upload(&path).await;
        let made = create(json!({"model": "odd", "from": "base", "adapters": {"a": digest}, "stream": false})).await;
        if made.status == 400 {
            assert!(made.json()["error"].is_string(), "{}", made.text);
            continue;
        }
        assert_eq!(made.status, 200, "{}", made.text);
        let body = json!({"model": "odd", "messages": [{"role": "user", "content": "Hi"}]});
        let failed = home.server.post("/v1/chat/completions", &body).await;
        let error = &failed.json()["error"];
        assert_eq!((failed.status, &error["code"]), (500, &json!("load_failed")), "{}", failed.text);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("odd") && message.contains("adapter cannot be used"), "{message}");
        assert!(!message.contains("/blobs/"), "no path of this machine: {message}");
        assert!(home.server.engine.models().iter().all(|model| !model.id().contains("odd")), "nothing stays in memory");
    }
    assert_eq!(home.says("base").await.hit, "cold", "the model below is as it was");
}
