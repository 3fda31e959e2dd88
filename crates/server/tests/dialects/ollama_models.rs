//! Ollama's lists of models, what it shows of one, and embeddings.

use std::collections::BTreeMap;

use poncho_server::ServerConfig;
use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::support::{Server, Setup, with};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

async fn with_a_file() -> Server {
    Server::start(Setup { file: model_path(ModelKind::Attention), ..Setup::default() }).await
}

#[tokio::test]
async fn tags_lists_every_name() {
    let config =
        ServerConfig { aliases: BTreeMap::from([("llama3".into(), "stub".into())]), ..ServerConfig::default() };
    let server = Server::start(Setup { models: vec!["stub", "small:1b"], config, ..Setup::default() }).await;
    let listed = server.get("/api/tags").await.json();
    let models = listed["models"].as_array().unwrap();
    let names: Vec<&str> = models.iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["small:1b", "stub:latest", "llama3:latest"]);
    for model in models {
        assert_eq!(keys(model), ["details", "digest", "model", "modified_at", "name", "size"]);
        assert_eq!(model["model"], model["name"]);
        assert_eq!(model["digest"].as_str().unwrap(), "07".repeat(32));
        assert_eq!(model["size"], 8);
        assert!(model["modified_at"].as_str().unwrap().ends_with('Z'));
        let details = json!({"parent_model": "", "format": "gguf", "family": "stub", "families": ["stub"],
            "parameter_size": "1", "quantization_level": "unknown"});
        assert_eq!(model["details"], details);
    }
}

#[tokio::test]
async fn ps_lists_what_is_loaded() {
    let config =
        ServerConfig { aliases: BTreeMap::from([("llama3".into(), "stub".into())]), ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    let listed = server.get("/api/ps").await.json();
    let [model] = listed["models"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    let ollamas = ["context_length", "details", "digest", "expires_at", "model", "name", "size", "size_vram"];
    let ours = ["requests", "state"];
    assert!(keys(model).into_iter().all(|key| ollamas.contains(&key) || ours.contains(&key)), "{model}");
    assert!(ollamas.iter().chain(&ours).all(|key| model.get(key).is_some()), "{model}");
    assert_eq!(model["state"], "loaded");
    assert_eq!((&model["name"], &model["context_length"]), (&json!("stub:latest"), &json!(4096)));
    let expires: u32 = model["expires_at"].as_str().unwrap()[..4].parse().unwrap();
    assert!((2300..9999).contains(&expires), "never, and a date that clients can read");
}

#[tokio::test]
async fn show_tells_what_the_model_is() {
    let server = Server::plain().await;
    for body in [json!({"model": "stub"}), json!({"name": "stub:latest"}), json!({"model": "", "name": "stub"})] {
        let shown = server.ask("/api/show", &body).await;
        assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
        assert_eq!(shown["details"]["family"], "stub");
        assert!(shown["template"].as_str().unwrap().contains("<|im_start|>"));
        assert!(shown["modelfile"].as_str().unwrap().starts_with("FROM stub"));
        let parameters = shown["parameters"].as_str().unwrap();
        assert!(parameters.lines().any(|line| line.split_whitespace().eq(["num_ctx", "4096"])), "{parameters}");
        let info = json!({"general.architecture": "stub", "general.parameter_count": 1, "stub.block_count": 2,
            "stub.context_length": 8192, "stub.embedding_length": 16, "stub.vocab_size": 265});
        assert_eq!(shown["model_info"], info, "without a file, what the loaded model knows");
        assert_eq!(shown.get("license"), None);
    }
}

#[tokio::test]
async fn show_tells_what_the_file_says() {
    let server = with_a_file().await;
    let shown = server.ask("/api/show", &json!({"model": "stub"})).await;
    let info = &shown["model_info"];
    assert_eq!(info["general.architecture"], "llama");
    assert!(info["llama.context_length"].is_u64(), "{info}");
    assert_eq!(info["tokenizer.ggml.tokens"], json!([]), "long arrays only when asked for");
    assert!(!shown.to_string().contains(".gguf"), "no path of this machine");
    let verbose = server.ask("/api/show", &json!({"model": "stub", "verbose": true})).await;
    let tokens = verbose["model_info"]["tokenizer.ggml.tokens"].as_array().unwrap();
    assert!(tokens.len() > 256 && tokens.iter().all(Value::is_string));
    assert_eq!(keys(&verbose["model_info"]), keys(info));
    let listed = server.get("/api/tags").await.json();
    let bytes = std::fs::metadata(model_path(ModelKind::Attention)).unwrap().len();
    assert_eq!(listed["models"][0]["size"], bytes);
    assert_eq!(listed["models"][0]["details"]["quantization_level"], "F16");
}

fn length(vector: &Value) -> f64 {
    vector.as_array().unwrap().iter().map(|value| value.as_f64().unwrap().powi(2)).sum::<f64>().sqrt()
}

#[tokio::test]
async fn embeddings_have_length_one_and_do_not_depend_on_their_batch() {
    let server = Server::plain().await;
    let texts = ["one", "two two", "three three three", "one", "ünï"];
    let embed = async |input: Value| server.ask("/api/embed", &json!({"model": "stub", "input": input})).await;
    let batch = embed(json!(texts)).await;
    assert_eq!(keys(&batch), ["embeddings", "load_duration", "model", "prompt_eval_count", "total_duration"]);
    let vectors = batch["embeddings"].as_array().unwrap();
    assert_eq!(vectors.len(), texts.len());
    for (text, vector) in texts.iter().zip(vectors) {
        assert_eq!(vector.as_array().unwrap().len(), 16);
        assert!((length(vector) - 1.0).abs() < 1e-5);
        assert_eq!(&embed(json!(text)).await["embeddings"], &json!([vector]), "{text} alone");
        assert_eq!(&embed(json!([text])).await["embeddings"], &json!([vector]));
    }
    assert_eq!(vectors[0], vectors[3]);
    assert_ne!(vectors[0], vectors[1]);
    let tokens: usize = texts.iter().map(|text| 1 + text.len()).sum();
    assert_eq!(batch["prompt_eval_count"], tokens);
    let turned: Vec<&str> = texts.into_iter().rev().collect();
    let reversed = embed(json!(turned)).await["embeddings"].as_array().unwrap().clone();
    assert!(reversed.iter().rev().eq(vectors), "the order changes nothing");
    let exact =
        json!({"model": "stub", "input": "one", "dimensions": 16, "options": {"num_ctx": 5}, "keep_alive": "1m"});
    assert_eq!(server.ask("/api/embed", &exact).await["embeddings"][0], vectors[0]);
}

#[tokio::test]
async fn nothing_to_embed_gives_nothing() {
    let server = Server::plain().await;
    for input in [json!(null), json!(""), json!([]), json!([""])] {
        let answer = server.ask("/api/embed", &json!({"model": "stub", "input": input})).await;
        assert_eq!((&answer["embeddings"], &answer["model"]), (&json!([]), &json!("stub")), "{input}");
    }
    for prompt in [json!(null), json!("")] {
        let answer = server.ask("/api/embeddings", &json!({"model": "stub", "prompt": prompt})).await;
        assert_eq!(answer, json!({"embedding": []}));
    }
}

#[tokio::test]
async fn the_older_endpoint_sends_the_vector_as_it_is() {
    let server = Server::plain().await;
    let old = server.ask("/api/embeddings", &json!({"model": "stub", "prompt": "one"})).await["embedding"].clone();
    let new = server.ask("/api/embed", &json!({"model": "stub", "input": "one"})).await["embeddings"][0].clone();
    let scale = length(&old);
    assert!((scale - 1.0).abs() > 1e-3, "it is not normalised");
    for (old, new) in old.as_array().unwrap().iter().zip(new.as_array().unwrap()) {
        assert!((old.as_f64().unwrap() / scale - new.as_f64().unwrap()).abs() < 1e-5);
    }
}

#[tokio::test]
async fn a_text_that_does_not_fit_is_cut_or_refused() {
    let server = Server::plain().await;
    let body = json!({"model": "stub", "input": ["short", "x".repeat(5000)]});
    let cut = server.ask("/api/embed", &body).await;
    assert_eq!(cut["prompt_eval_count"], 6 + 4095);
    let same = server.ask("/api/embed", &json!({"model": "stub", "input": "x".repeat(4094)})).await;
    assert_eq!(cut["embeddings"][1], same["embeddings"][0]);
    let refused = server.post("/api/embed", &with(body, &json!({"truncate": false}))).await;
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"].as_str().unwrap().contains("4095"), "{}", refused.text);
}
