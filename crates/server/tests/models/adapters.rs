//! Adapters over HTTP: uploaded, attached, scaled and detached while a model serves, and who may do so.

use std::sync::Arc;

use hyper::Method;
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::{StubBackend, StubCall};
use poncho_models::{ModelName, Registry, Sha256, ignore_progress};
use poncho_server::{RegistryLibrary, ServerConfig};
use poncho_testkit::{ModelKind, adapter_path, model_path};
use serde_json::{Value, json};

use crate::models::loading::gated_engine;
use crate::support::{Answer, Server, small_config};

const PATH: &str = "/api/adapters";
const JSON: (&str, &str) = ("content-type", "application/json");

struct Home {
    server: Server,
    folder: tempfile::TempDir,
    /// Of the uploaded adapter.
    digest: String,
}

impl Home {
    /// A server with the model `base` and an uploaded adapter.
    async fn new(config: ServerConfig, backend: StubBackend) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path()).unwrap();
        let base = ModelName::parse("base").unwrap();
        registry.import(&model_path(ModelKind::Attention), &base, &mut ignore_progress).unwrap();
        let library = RegistryLibrary::new(registry, Box::new(small_config));
        let config = ServerConfig { library: Some(Arc::new(library)), ..config };
        let key = config.keys.first().map(|key| format!("Bearer {key}")).unwrap_or_default();
        let server = Server::of(gated_engine(backend).0, config).await;
        let bytes = std::fs::read(adapter_path()).unwrap();
        let digest = format!("sha256:{}", Sha256::of(&bytes));
        let path = format!("/api/blobs/{digest}");
        let sent = server.send(Method::POST, &path, &[("authorization", &key)], bytes).await;
        assert_eq!(sent.status, 201, "{}", sent.text);
        Self { server, folder, digest }
    }

    async fn plain() -> Self {
        Self::new(ServerConfig::default(), StubBackend::new(MemoryKind::Attention)).await
    }

    async fn load(&self, scale: Option<f32>) -> Value {
        let body = json!({"model": "base", "digest": self.digest, "scale": scale});
        self.server.ask(PATH, &body).await
    }

    async fn change(&self, method: Method, id: &Value, body: &Value) -> Answer {
        self.server.send(method, &format!("{PATH}/{id}"), &[JSON], body.to_string().into()).await
    }

    async fn scale(&self, id: &Value, scale: f32) -> Value {
        let answer = self.change(Method::PATCH, id, &json!({"scale": scale})).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    /// What the model says, and what of the prompt it had read before.
    async fn says(&self) -> (String, u64) {
        let prompt: Vec<u32> = (60..100).collect();
        let body = json!({"model": "base", "prompt": prompt, "temperature": 0, "max_tokens": 12, "logprobs": 0, "poncho": true});
        let answer = self.server.ask("/v1/completions", &body).await;
        (answer["choices"][0]["logprobs"].to_string(), answer["poncho"]["cached_tokens"].as_u64().unwrap())
    }

    async fn listed(&self, query: &str) -> Value {
        self.server.get(&format!("{PATH}{query}")).await.json()["adapters"].clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_changes_replies_from_its_load_to_its_unload() {
    let home = Home::plain().await;
    let (plain, read) = home.says().await;
    assert_eq!((read, home.listed("").await), (0, json!([])));
    let loaded = home.load(None).await;
    let id = loaded["id"].clone();
    assert_eq!(loaded, json!({"id": id, "model": "base", "digest": home.digest, "scale": 1.0}));
    let (full, read) = home.says().await;
    assert_ne!(full, plain);
    assert_eq!(read, 0, "states without the adapter are not its states");
    assert_eq!(home.listed("").await, json!([loaded]));

    assert_eq!(home.scale(&id, 0.1).await["scale"], 0.1);
    let (weak, _) = home.says().await;
    assert!(weak != full && weak != plain);
    home.scale(&id, 1.0).await;
    let (again, read) = home.says().await;
    assert_eq!(again, full);
    assert!(read > 0, "states of the same adapter at the same strength are found");

    let unloaded = home.change(Method::DELETE, &id, &json!({})).await;
    assert_eq!((unloaded.status, unloaded.json()), (200, loaded));
    assert_eq!(home.says().await.0, plain);
    assert_eq!(home.listed("").await, json!([]));
    let gone = home.change(Method::DELETE, &id, &json!({})).await;
    assert_eq!((gone.status, &gone.json()["error"]["code"]), (404, &json!("adapter_not_found")), "{}", gone.text);
    assert_eq!(home.change(Method::PATCH, &id, &json!({"scale": 1})).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_may_be_loaded_at_a_strength_and_listed_by_model() {
    let home = Home::plain().await;
    let (plain, _) = home.says().await;
    assert_eq!(home.load(Some(0.5)).await["scale"], 0.5);
    let (half, _) = home.says().await;
    let listed = home.listed("").await;
    let id = listed[0]["id"].clone();
    home.scale(&id, 1.0).await;
    let (full, _) = home.says().await;
    assert!(half != plain && half != full && full != plain);
    for name in ["base", "base%3Alatest", "base:latest"] {
        assert_eq!(home.listed(&format!("?model={name}")).await[0]["id"], id, "{name}");
    }
    assert_eq!(home.server.get(&format!("{PATH}?model=nobody")).await.status, 404);
    let other = home.change(Method::PATCH, &id, &json!({"model": "nobody", "scale": 1})).await;
    assert_eq!(other.status, 404, "{}", other.text);
    let named = home.change(Method::PATCH, &id, &json!({"model": "base", "scale": 2})).await;
    assert_eq!((named.status, &named.json()["scale"]), (200, &json!(2.0)), "{}", named.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_uploaded_adapters_are_taken_and_no_path_leaves_the_server() {
    let backend = StubBackend::new(MemoryKind::Attention);
    let faults = backend.faults();
    let home = Home::new(ServerConfig::default(), backend).await;
    let folder = home.folder.path().display().to_string();
    let model = format!("sha256:{}", Sha256::of(&std::fs::read(model_path(ModelKind::Attention)).unwrap()));
    let absent = format!("sha256:{}", Sha256::of(b"nothing"));
    for (digest, said) in [
        (adapter_path().display().to_string(), "sha256:"),
        ("sha256:../../etc/passwd".to_owned(), "sha256:"),
        (absent, "upload it first"),
        (model, "not a LoRA adapter"),
    ] {
        let refused = home.server.post(PATH, &json!({"model": "base", "digest": digest})).await;
        assert_eq!(refused.status, 400, "{digest}: {}", refused.text);
        assert!(refused.text.contains(said) && !refused.text.contains(&folder), "{digest}: {}", refused.text);
    }
    faults.fail_next(StubCall::LoadAdapter, 1);
    let refused = home.server.post(PATH, &json!({"model": "base", "digest": home.digest})).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("digest")), "{}", refused.text);
    assert!(!refused.text.contains(&folder), "{}", refused.text);
    assert_eq!(home.listed("").await, json!([]));

    let id = home.load(None).await["id"].clone();
    for (method, id, body, field) in [
        (Method::PATCH, json!(0.5), json!({"scale": 1}), "id"),
        (Method::DELETE, json!(-1), json!({}), "id"),
        (Method::PATCH, id.clone(), json!({"scale": 1e300}), "scale"),
        (Method::PATCH, id, json!({}), "scale"),
    ] {
        let refused = home.change(method, &id, &body).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(field)), "{}", refused.text);
    }
    let without_library = Server::plain().await;
    let refused = without_library.post(PATH, &json!({"digest": home.digest})).await;
    assert!(refused.status == 501 && refused.text.contains("--models-dir"), "{}", refused.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_takes_a_bounded_number_of_adapters() {
    let home = Home::plain().await;
    for _ in 0..16 {
        home.load(Some(0.0)).await;
    }
    let refused = home.server.post(PATH, &json!({"model": "base", "digest": home.digest})).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("detach one first"), "{}", refused.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn among_several_keys_only_an_admin_changes_adapters() {
    let config = ServerConfig { keys: vec!["one".into()], admin_keys: vec!["boss".into()], ..ServerConfig::default() };
    for isolate_keys in [false, true] {
        let config = ServerConfig { isolate_keys, ..config.clone() };
        let home = Home::new(config, StubBackend::new(MemoryKind::Attention)).await;
        let send = async |key: &str, method: Method, path: &str, body: Value| {
            let headers = [JSON, ("x-api-key", key)];
            home.server.send(method, path, &headers, body.to_string().into()).await
        };
        let load = json!({"model": "base", "digest": home.digest});
        let refused = send("one", Method::POST, PATH, load.clone()).await;
        assert_eq!(refused.status, 403, "{}", refused.text);
        assert_eq!(refused.json()["error"]["code"], "admin_key_needed");
        let loaded = send("boss", Method::POST, PATH, load).await;
        assert_eq!(loaded.status, 200, "{}", loaded.text);
        let one = format!("{PATH}/{}", loaded.json()["id"]);
        assert_eq!(send("one", Method::PATCH, &one, json!({"scale": 0})).await.status, 403);
        assert_eq!(send("one", Method::DELETE, &one, json!({})).await.status, 403);
        let listed = send("one", Method::GET, PATH, json!({})).await;
        assert_eq!(listed.json()["adapters"], json!([loaded.json()]), "everybody sees what shapes the replies");
        assert_eq!(send("boss", Method::DELETE, &one, json!({})).await.status, 200);
    }
}
