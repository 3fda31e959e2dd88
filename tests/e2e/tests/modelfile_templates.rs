//! Templates that a Modelfile brings, rendered by llama.cpp.

use std::sync::Arc;

use poncho_cache::{Cache, CacheConfig};
use poncho_engine::Engine;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_models::{ModelName, Registry, ignore_progress};
use poncho_server::{RegistryLibrary, ServerConfig};
use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::support::{Server, small_config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_of_a_modelfile_stands_for_the_models_own() {
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 26)).unwrap());
    let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), cache));
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    let base = ModelName::parse("base").unwrap();
    registry.import(&model_path(ModelKind::Attention), &base, &mut ignore_progress).unwrap();
    let library = RegistryLibrary::new(registry, Box::new(small_config)).with_client_templates(true);
    let config = ServerConfig { library: Some(Arc::new(library)), ..ServerConfig::default() };
    let server = Server::of(engine, config).await;
    let create = async |body: Value| {
        let answer = server.post("/api/create", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    };
    let go = "{{ if .System }}[S]{{ .System }}[/S]\n{{ end }}[U]{{ .Prompt }}[/U]\n[A]{{ .Response }}[/A]\n";
    create(json!({"model": "go", "from": "base", "template": go})).await;
    let jinja = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<reply>";
    create(json!({"model": "jinja", "from": "base", "template": jinja, "system": "Sys."})).await;
    let prompt = async |model: &str, messages: Value| {
        let body = json!({"model": model, "messages": messages});
        server.ask("/apply-template", &body).await["prompt"].as_str().unwrap().to_owned()
    };
    let user = |text: &str| json!({"role": "user", "content": text});
    let assistant = |text: &str| json!({"role": "assistant", "content": text});
    let system = json!({"role": "system", "content": "{{ Be }} kind"});
    assert_eq!(prompt("go", json!([user("Hi")])).await, "[U]Hi[/U]\n[A]");
    assert_eq!(
        prompt("go", json!([system, user("a {{ b"), assistant("c"), user("d")])).await,
        "[S]{{ Be }} kind[/S]\n[U]a {{ b[/U]\n[A]c[/A]\n[U]d[/U]\n[A]"
    );
    assert_eq!(prompt("jinja", json!([user("Hi")])).await, "<system>Sys.<user>Hi<reply>");
    let generate = json!({"model": "go", "prompt": "Hi", "stream": false, "options": {"num_predict": 2}});
    assert!(server.ask("/api/generate", &generate).await["done"].as_bool().unwrap());
    let shown = server.ask("/api/show", &json!({"model": "jinja"})).await;
    assert_eq!(shown["template"], jinja);
}
