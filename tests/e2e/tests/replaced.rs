//! Files of models that are replaced or overwritten: a state that other weights made is never used, whether the file
//! was pulled or is served by its path, and whether the model is loaded at that moment or not.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::ContextOptions;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::{Engine, ModelConfig, RestoreRule};
use poncho_models::{ModelName, Registry, ignore_progress};
use poncho_server::{LibraryModel, RegistryLibrary, ServerConfig};
use poncho_testkit::{ModelKind, ModelSpec, write_model};
use serde_json::{Value, json};

use crate::support::{Server, eventually, small_gates};

/// Settings under which a short prompt is kept and put back.
fn config(name: &str, path: &Path) -> ModelConfig {
    let context = ContextOptions { n_ctx: 512, n_seq_max: 2, ..ContextOptions::default() };
    let restore_rule = RestoreRule::Always;
    ModelConfig { gates: small_gates(), context, restore_rule, ..ModelConfig::new(name, path) }
}

struct Home {
    server: Server,
    folder: tempfile::TempDir,
}

impl Home {
    /// A server of the model `pulled`, which was pulled from `mine.gguf`, and of `mine.gguf` itself as `path`.
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mine = folder.path().join("mine.gguf");
        weights(&mine, 1);
        let registry = Registry::open(folder.path().join("models")).unwrap();
        registry.import(&mine, &ModelName::parse("pulled").unwrap(), &mut ignore_progress).unwrap();
        let library =
            RegistryLibrary::new(registry, Box::new(config)).with_file(LibraryModel::new(config("path", &mine)));
        let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 26)).unwrap());
        let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), cache));
        let config = ServerConfig { library: Some(Arc::new(library)), ..ServerConfig::default() };
        Self { server: Server::of(engine, config).await, folder }
    }

    fn mine(&self) -> PathBuf {
        self.folder.path().join("mine.gguf")
    }

    fn blob(&self) -> PathBuf {
        let mut blobs =
            fs::read_dir(self.folder.path().join("models/blobs")).unwrap().map(|entry| entry.unwrap().path());
        blobs.find(|path| path.extension().is_none()).unwrap()
    }

    fn body(model: &str) -> Value {
        let prompt = "The quick brown fox jumps over the lazy dog, again and again and again.";
        json!({"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "poncho": true})
    }

    /// The kind of the hit, and the text.
    async fn complete(&self, model: &str) -> (String, String) {
        let answer = self.server.ask("/v1/completions", &Self::body(model)).await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&answer["poncho"]["hit"]), text(&answer["choices"][0]["text"]))
    }

    async fn unload(&self, model: &str) {
        self.server.ask("/api/models/unload", &json!({"model": model})).await;
        // The last reply may be on its way out still.
        eventually("the model's end", || self.server.engine.get(model).is_err()).await;
    }
}

/// Overwrites a file in place with the weights of a seed; all of them have the same size.
fn weights(path: &Path, seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made.gguf");
    write_model(&ModelSpec { seed, ..ModelSpec::tiny(ModelKind::Attention) }, &made).unwrap();
    let bytes = fs::read(made).unwrap();
    let changed = |path: &Path| fs::metadata(path).map(|file| (file.ctime(), file.ctime_nsec())).ok();
    let before = changed(path);
    // Times have ticks of some milliseconds: the write that counts is in a later one than the last.
    loop {
        // Not cut first: a model may be mapped from it.
        let file = fs::File::options().write(true).create(true).truncate(false).open(path);
        file.unwrap().write_all(&bytes).unwrap();
        if changed(path) != before {
            break;
        }
    }
}

/// Hardening 4: `pull ./m.gguf` made a second name for the user's file, so overwriting it changed the model under rows
/// that still hit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pulled_model_stays_what_it_was_when_its_source_is_overwritten() {
    let home = Home::new().await;
    let bytes = fs::read(home.blob()).unwrap();
    let (_, first) = home.complete("pulled").await;
    home.unload("pulled").await;
    weights(&home.mine(), 2);
    assert_eq!(fs::read(home.blob()).unwrap(), bytes, "the blob is unchanged");
    let (hit, again) = home.complete("pulled").await;
    assert!(hit != "cold" && again == first, "the same weights, so the state is right: {hit} {again:?} {first:?}");
    let (hit, other) = home.complete("path").await;
    assert!(hit == "cold" && other != first, "other weights: {hit} {other:?}");
}

/// Hardening 4: the rows of the old content hit, with the text of no model at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_file_that_was_overwritten_do_not_hit_at_the_next_load() {
    let home = Home::new().await;
    let (hit, first) = home.complete("path").await;
    assert_eq!(hit, "cold");
    home.unload("path").await;
    let (hit, again) = home.complete("path").await;
    assert!(hit != "cold" && again == first, "{hit}");
    home.unload("path").await;
    let modified = fs::metadata(home.mine()).unwrap().modified().unwrap();
    weights(&home.mine(), 2);
    fs::File::options().write(true).open(home.mine()).unwrap().set_modified(modified).unwrap();
    let (hit, other) = home.complete("path").await;
    assert!(hit == "cold" && other != first, "same size, same modification time, other weights: {hit} {other:?}");
}

/// Hardening 4: weights are mapped from the file, so they change under a model that is loaded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loaded_model_whose_file_changes_is_loaded_again() {
    let home = Home::new().await;
    let (_, first) = home.complete("path").await;
    weights(&home.mine(), 2);
    let model = home.server.engine.get("path").unwrap();
    assert!(model.look_at_file(), "somebody looks, as a request does that comes a second later");
    let (hit, other) = home.complete("path").await;
    assert!(hit == "cold" && other != first, "{hit} {other:?}");
    assert!(model.is_file_changed() && !home.server.engine.get("path").unwrap().is_file_changed());
    let refused = model.submit(poncho_engine::Request::new(vec![1, 2, 3])).err().unwrap().to_string();
    assert!(refused.contains("was changed") && refused.contains("load the model again"), "{refused}");
}

/// Hardening 4: a file of the registry that is not as it was hashed is read again, and refused if it is another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_of_the_registry_is_not_served() {
    let home = Home::new().await;
    let (_, first) = home.complete("pulled").await;
    home.unload("pulled").await;
    // The same bytes as another file, as a backup brings them back: read again, and all is well.
    let blob = home.blob();
    let bytes = fs::read(&blob).unwrap();
    fs::remove_file(&blob).unwrap();
    fs::write(&blob, &bytes).unwrap();
    let (hit, again) = home.complete("pulled").await;
    assert!(hit != "cold" && again == first, "{hit}");
    home.unload("pulled").await;
    weights(&blob, 2);
    let refused = home.server.post("/v1/completions", &Home::body("pulled")).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (500, &json!("load_failed")), "{}", refused.text);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("changed after it was installed") && message.contains("poncho rm"), "{message}");
    assert!(!message.contains(&home.folder.path().display().to_string()), "no path of this machine: {message}");
}
