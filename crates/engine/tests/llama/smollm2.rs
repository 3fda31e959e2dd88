//! The default model, end to end: a chat prompt, rendered by its own template, answered sensibly, and found again.

use std::sync::Arc;

use poncho_cache::HitKind;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{ChatRequest, ContextOptions};
use poncho_engine::{Model, ModelConfig, Request, Sampling};
use poncho_testkit::default_model_path;

use crate::support::{memory_cache, small_gates};

#[test]
fn the_default_model_answers_a_question_and_remembers_it() {
    let config = ModelConfig {
        gates: small_gates(),
        context: ContextOptions { n_ctx: 1024, n_seq_max: 2, threads: Some(1), ..ContextOptions::default() },
        ..ModelConfig::new("smollm2", default_model_path())
    };
    let cache = memory_cache();
    let model = Model::load(config.clone(), Arc::new(LlamaBackend), Arc::clone(&cache)).unwrap();
    let question = r#"[{"role":"user","content":"What is the capital of France? Answer in one sentence."}]"#;
    let rendered = model
        .apply_chat_template(&ChatRequest { messages_json: question.to_owned(), ..ChatRequest::default() })
        .unwrap();
    assert!(rendered.text.contains("capital of France"), "{}", rendered.text);
    let tokens = model.tokenize_prompt(&rendered).unwrap();
    let request = Request { max_tokens: Some(40), sampling: Sampling::greedy(), ..Request::new(tokens) };
    let cold = model.complete(request.clone()).unwrap();
    assert!(cold.reply.contains("Paris"), "{}", cold.reply);
    assert_eq!(cold.hit, HitKind::Cold);
    drop(model);
    let again = Model::load(config, Arc::new(LlamaBackend), cache).unwrap();
    let warm = again.complete(request).unwrap();
    assert_eq!((warm.hit, &warm.reply), (HitKind::Exact, &cold.reply));
}

#[test]
fn a_text_among_the_template_arguments_is_a_text_to_the_template() {
    let config = ModelConfig {
        context: ContextOptions { n_ctx: 256, n_seq_max: 1, threads: Some(1), ..ContextOptions::default() },
        ..ModelConfig::new("smollm2", default_model_path())
    };
    let model = Model::load(config, Arc::new(LlamaBackend), memory_cache()).unwrap();
    let request = ChatRequest {
        messages_json: r#"[{"role":"user","content":"Hello"}]"#.to_owned(),
        template_override: Some("{{ messages[0].content }}|{{ effort }}|{{ depth + 1 }}".to_owned()),
        template_kwargs_json: r#"{"effort":"high \"er\"","depth":2}"#.to_owned(),
        ..ChatRequest::default()
    };
    let rendered = model.apply_chat_template(&request).unwrap();
    assert_eq!(rendered.text, r#"Hello|high "er"|3"#);
}
