//! Models on disk, made and changed over HTTP: create in both forms, copy, delete, show, blobs, and what a Modelfile says
//! about requests.

use std::sync::Arc;

use hyper::Method;
use poncho_engine::Engine;
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::{StubBackend, vocab};
use poncho_models::{ModelName, Registry, Sha256, ignore_progress};
use poncho_server::{RegistryLibrary, ServerConfig};
use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::models::loading::gated_engine;
use crate::support::{Answer, Server, small_config};

const PIRATE: &str =
    "<s><|im_start|>system\nTalk like a pirate.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";

struct Home {
    server: Server,
    folder: tempfile::TempDir,
}

impl Home {
    /// A server with the model `base` in its folder; it says "Arr STOP me" to a pirate's prompt.
    async fn new() -> Self {
        let backend = StubBackend::new(MemoryKind::Attention)
            .with_reply(&vocab::tokens(PIRATE), &vocab::tokens("Arr STOP me<|im_end|>"));
        Self::with(gated_engine(backend).0).await
    }

    async fn with(engine: Arc<Engine>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path()).unwrap();
        let base = ModelName::parse("base").unwrap();
        registry.import(&model_path(ModelKind::Attention), &base, &mut ignore_progress).unwrap();
        let library = RegistryLibrary::new(registry, Box::new(small_config));
        let config = ServerConfig { library: Some(Arc::new(library)), ..ServerConfig::default() };
        Self { server: Server::of(engine, config).await, folder }
    }

    async fn create(&self, body: &Value) -> Answer {
        let answer = self.server.post("/api/create", body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer
    }

    async fn names(&self) -> Vec<String> {
        let listed = self.server.get("/api/tags").await.json();
        listed["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
    }

    /// What a model says to "Hi", greedily.
    async fn says(&self, model: &str) -> Value {
        let options = json!({"temperature": 0, "num_predict": 30});
        let body = json!({"model": model, "stream": false, "options": options,
            "messages": [{"role": "user", "content": "Hi"}]});
        self.server.ask("/api/chat", &body).await
    }

    async fn delete(&self, body: &Value) -> Answer {
        let json = [("content-type", "application/json")];
        self.server.send(Method::DELETE, "/api/delete", &json, body.to_string().into()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_forms_of_create_give_models_that_obey() {
    let home = Home::new().await;
    let text = "FROM base\nSYSTEM Talk like a pirate.\nPARAMETER stop STOP\nPARAMETER num_ctx 512\n";
    let lines = home.create(&json!({"name": "old-pirate", "modelfile": text})).await.lines();
    assert_eq!(lines.last().unwrap(), &json!({"status": "success"}));
    let fields = json!({"model": "new-pirate:v1", "from": "base", "system": "Talk like a pirate.", "stream": false,
        "parameters": {"stop": ["STOP"], "num_ctx": 512}});
    assert_eq!(home.create(&fields).await.json(), json!({"status": "success"}));
    assert_eq!(home.names().await, ["base:latest", "new-pirate:v1", "old-pirate:latest"]);
    for pirate in ["old-pirate", "new-pirate:v1"] {
        assert_eq!(home.says(pirate).await["message"]["content"], "Arr ", "{pirate}: its system prompt and its stop");
        let chat = json!({"model": pirate, "temperature": 0, "messages": [{"role": "user", "content": "Hi"}]});
        let openai = home.server.ask("/v1/chat/completions", &chat).await;
        assert_eq!(openai["choices"][0]["message"]["content"], "Arr ");
        let generate = json!({"model": pirate, "prompt": "Hi", "stream": false, "options": {"temperature": 0}});
        assert_eq!(home.server.ask("/api/generate", &generate).await["response"], "Arr ");
        // A request's own words stand over the model's.
        let own = json!({"model": pirate, "temperature": 0, "stop": ["rr"],
            "messages": [{"role": "user", "content": "Hi"}]});
        let openai = home.server.ask("/v1/chat/completions", &own).await;
        assert_eq!(openai["choices"][0]["message"]["content"], "A");
        let applied = |system: Value| {
            let user = json!({"role": "user", "content": "Hi"});
            let messages: Vec<Value> = system.as_array().unwrap().iter().cloned().chain([user]).collect();
            json!({"model": pirate, "messages": messages})
        };
        let own = applied(json!([{"role": "system", "content": "Be brief."}]));
        let prompt = home.server.ask("/apply-template", &own).await["prompt"].as_str().unwrap().to_owned();
        assert!(prompt.contains("Be brief.") && !prompt.contains("pirate"), "{prompt}");
        let loaded = home.server.ask("/api/models/load", &json!({"model": pirate})).await;
        assert_eq!(loaded["n_ctx"], 512);
    }
    assert_ne!(home.says("base").await["message"]["content"], "Arr ");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_model_is_the_changed_model() {
    let home = Home::new().await;
    home.create(&json!({"model": "m", "from": "base"})).await;
    assert_ne!(home.says("m").await["message"]["content"], "Arr ");
    home.create(
        &json!({"model": "m", "from": "base", "system": "Talk like a pirate.", "parameters": {"stop": "STOP"}}),
    )
    .await;
    assert_eq!(home.says("m").await["message"]["content"], "Arr ", "although it was loaded");
    let shown = home.server.ask("/api/show", &json!({"model": "m"})).await;
    assert_eq!(shown["system"], "Talk like a pirate.");
    assert!(shown["modelfile"].as_str().unwrap().contains("PARAMETER stop"), "{shown}");
    home.server.ask("/api/models/unload", &json!({"model": "m"})).await;
    let unloaded = home.server.ask("/api/show", &json!({"model": "m"})).await;
    for field in ["system", "parameters", "details"] {
        let quantised = |value: &Value| value.get("family").is_some();
        assert!(unloaded[field] == shown[field] || quantised(&unloaded[field]), "{field}: {unloaded}");
    }
    assert_eq!(unloaded["details"]["family"], "llama");
    assert_eq!(unloaded["model_info"]["general.architecture"], "llama");
    assert!(!unloaded.to_string().contains(&home.folder.path().display().to_string()), "no path of this machine");
    let listed = home.server.get("/v1/models/m").await.json();
    assert_eq!((&listed["meta"]["loaded"], &listed["meta"]["architecture"]), (&json!(false), &json!("llama")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_counts_however_the_name_is_written() {
    let home = Home::new().await;
    home.create(&json!({"model": "Pirate", "from": "base"})).await;
    assert_ne!(home.says("Pirate").await["message"]["content"], "Arr ");
    let fields = json!({"model": "PIRATE", "from": "base", "system": "Talk like a pirate.",
        "parameters": {"stop": "STOP"}});
    home.create(&fields).await;
    assert_eq!(home.says("pirate").await["message"]["content"], "Arr ", "although it was loaded");
    let copy = json!({"source": "base", "destination": "Pirate:latest"});
    assert_eq!(home.server.post("/api/copy", &copy).await.status, 200);
    assert_ne!(home.says("pirate").await["message"]["content"], "Arr ", "the copy took its place");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shown_modelfile_makes_the_same_model() {
    let home = Home::new().await;
    let template = "[S]{{ .System }}[U]{{ .Prompt }}[A]{{ .Response }}";
    home.create(&json!({"model": "own", "from": "base", "template": template, "system": "Be kind."})).await;
    for model in ["base", "own"] {
        let shown = home.server.ask("/api/show", &json!({"model": model})).await;
        home.create(&json!({"model": "again", "modelfile": shown["modelfile"]})).await;
        let again = home.server.ask("/api/show", &json!({"model": "again"})).await;
        assert_eq!((&again["template"], &again["system"]), (&shown["template"], &shown["system"]), "{model}");
    }
    home.server.ask("/api/models/load", &json!({"model": "own"})).await;
    let loaded = home.server.ask("/api/show", &json!({"model": "own"})).await;
    assert_eq!(loaded["template"], template, "as it was written, also while it is loaded");
    home.create(&json!({"model": "again", "modelfile": loaded["modelfile"]})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_are_copied_and_deleted() {
    let home = Home::new().await;
    let copy =
        async |from: &str, to: &str| home.server.post("/api/copy", &json!({"source": from, "destination": to})).await;
    let answer = copy("base", "org/second:v2").await;
    assert_eq!((answer.status, answer.text.as_str()), (200, ""));
    assert_eq!(home.names().await, ["base:latest", "org/second:v2"]);
    home.says("org/second:v2").await;
    let missing = copy("nobody", "third").await;
    assert_eq!((missing.status, missing.json()), (404, json!({"error": "model 'nobody' not found"})));
    assert_eq!(home.delete(&json!({"model": "base:latest"})).await.status, 200);
    assert_eq!(home.delete(&json!({"name": "org/second:v2"})).await.status, 200, "also while it is loaded");
    assert!(home.names().await.is_empty());
    assert!(home.server.engine.models().is_empty(), "what is deleted does not stay in memory");
    let again = home.delete(&json!({"model": "base"})).await;
    assert_eq!((again.status, again.json()), (404, json!({"error": "model 'base' not found"})));
    assert_eq!(home.server.post("/v1/embeddings", &json!({"model": "base", "input": "x"})).await.status, 404);
    let blobs = std::fs::read_dir(home.folder.path().join("blobs")).unwrap().count();
    assert_eq!(blobs, 0, "the files went with the last name");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_of_a_hub_is_copied_and_deleted_by_the_name_that_it_was_pulled_with() {
    let home = Home::new().await;
    let copy = async |from: &str, to: &str| {
        home.server.post("/api/copy", &json!({"source": from, "destination": to})).await.status
    };
    assert_eq!(copy("base", "owner/repo:q4_k_m").await, 200);
    assert_eq!(copy("hf.co/Owner/Repo:Q4_K_M", "second").await, 200);
    assert_eq!(home.names().await, ["base:latest", "owner/repo:q4_k_m", "second:latest"]);
    for name in ["hf.co/owner/repo:Q4_K_M", "hf:owner/second"] {
        assert_eq!(copy("base", name).await, 200, "{name}");
        assert_eq!(home.server.post("/api/show", &json!({"model": name})).await.status, 200, "{name}: it is found");
        assert_eq!(home.delete(&json!({"model": name})).await.status, 200, "{name}");
    }
    assert_eq!(home.names().await, ["base:latest", "second:latest"]);
    for name in ["hf.co/base", "https://example.org/base"] {
        assert_eq!(copy("base", name).await, 400, "{name} could not be asked for");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_reads_a_file_of_the_server_by_its_name() {
    let home = Home::new().await;
    let outside = model_path(ModelKind::Attention);
    let path = outside.to_str().unwrap();
    let count = || std::fs::read_dir(home.folder.path().join("manifests")).unwrap().count();
    for body in [
        json!({"model": "m", "from": path}),
        json!({"model": "m", "modelfile": format!("FROM {path}")}),
        json!({"model": "m", "modelfile": format!("FROM base\nADAPTER {path}")}),
        json!({"model": "m", "path": path}),
        json!({"model": "m", "from": "base", "adapters": {"a": path}}),
        json!({"model": "m", "files": {"x.gguf": "sha256:../../etc/passwd"}}),
        json!({"model": "../../m", "from": "base"}),
        json!({"model": "m\0", "from": "base"}),
        json!({"model": "/m", "from": "base"}),
        json!({"model": "m"}),
        json!({"model": "m", "from": "base", "quantize": "q4_0"}),
        json!({"model": "m", "from": "base", "parameters": {"temperature": "hot"}}),
        json!({"model": "m", "from": "base", "parameters": {"temperature": -1}}),
        json!({"model": "m", "from": "base", "template": "{{ range .Messages }}{{ end }}"}),
        json!({"model": "m", "from": "base", "messages": [{"role": "robot", "content": "x"}]}),
        json!({"model": "m", "modelfile": "FORM base"}),
        json!({"model": "", "from": "base"}),
    ] {
        let answer = home.server.post("/api/create", &body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        assert!(answer.json()["error"].is_string());
    }
    let unknown = home.server.post("/api/create", &json!({"model": "m", "from": "nobody"})).await;
    assert_eq!((unknown.status, unknown.json()), (404, json!({"error": "model 'nobody' not found"})));
    for name in [path, "../base", "./base", "base\0", "~/base", "file:///etc/passwd", "BASE:../x"] {
        assert_eq!(home.server.post("/api/chat", &json!({"model": name})).await.status, 404, "{name}");
        assert_eq!(home.server.post("/api/show", &json!({"model": name})).await.status, 404, "{name}");
        let gone = home.delete(&json!({"model": name})).await.status;
        assert!(gone == 400 || gone == 404, "{name}: {gone}");
    }
    let address = "http://127.0.0.1:1/x.gguf";
    for name in [path, address, "../x.gguf", "hf:only-one-part", "nobody:q9", "a b"] {
        let answer = home.server.post("/api/pull", &json!({"model": name, "stream": false})).await;
        assert!(answer.status == 400 || answer.status == 404, "{name}: {}", answer.text);
        assert!(answer.json()["error"].is_string(), "{}", answer.text);
    }
    assert_eq!((count(), home.names().await), (1, vec!["base:latest".to_owned()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_bring_their_own_files() {
    let home = Home::new().await;
    let bytes = std::fs::read(model_path(ModelKind::Hybrid)).unwrap();
    let digest = format!("sha256:{}", Sha256::of(&bytes));
    let path = format!("/api/blobs/{digest}");
    let send = async |method: Method, path: &str, bytes: &[u8]| {
        home.server.send(method, path, &[], bytes.to_vec()).await.status
    };
    assert_eq!(send(Method::HEAD, &path, &[]).await, 404);
    assert_eq!(send(Method::POST, &path, &bytes[1..]).await, 400, "another hash");
    assert_eq!(send(Method::HEAD, &path, &[]).await, 404);
    assert_eq!(send(Method::POST, &path, &bytes).await, 201);
    assert_eq!(send(Method::HEAD, &path, &[]).await, 200);
    for wrong in ["/api/blobs/sha256:12", "/api/blobs/..%2f..%2fetc%2fpasswd", "/api/blobs/md5:00"] {
        assert_eq!(send(Method::HEAD, wrong, &[]).await, 400, "{wrong}");
        assert_eq!(send(Method::POST, wrong, b"x").await, 400, "{wrong}");
    }
    home.create(&json!({"model": "own", "files": {"model.gguf": digest}})).await;
    assert_eq!(home.names().await, ["base:latest", "own:latest"]);
    home.says("own").await;
    let nothing = json!({"model": "x", "files": {"model.gguf": format!("sha256:{}", "0".repeat(64))}});
    assert_eq!(home.server.post("/api/create", &nothing).await.status, 400);
}

/// Hardening 14.14: a Jinja template is a program, and llama.cpp counts none of its steps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_cannot_bring_a_template_that_loops() {
    let home = Home::new().await;
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
    let modelfile = format!("FROM base\nTEMPLATE \"\"\"{endless}\"\"\"\n");
    for body in [
        json!({"model": "loop", "from": "base", "template": endless}),
        json!({"model": "loop", "modelfile": modelfile}),
    ] {
        let refused = home.server.post("/api/create", &body).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        assert!(refused.text.contains("--client-templates"), "{}", refused.text);
    }
    assert_eq!(home.names().await, ["base:latest"]);
    home.create(&json!({"model": "go", "from": "base", "template": "[U]{{ .Prompt }}[/U]"})).await;
}
