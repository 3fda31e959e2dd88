//! A model and its cache in a program of your own: the same question twice, the second time without reading it again.
//!
//! `cargo run --release -p poncho-engine --example embed -- model.gguf kv`

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{ChatRequest, ContextOptions};
use poncho_engine::{Completion, Model, ModelConfig, Request, StreamEvent};

/// Loads a model and keeps its rows in a folder, at most 10 GiB of them.
pub(crate) fn load(model: &Path, folder: &Path) -> Result<Model, Box<dyn Error>> {
    let cache = Arc::new(Cache::open(CacheConfig::on_disk(folder, 10 << 30))?);
    let context = ContextOptions { n_ctx: 4096, n_seq_max: 2, ..ContextOptions::default() };
    let config = ModelConfig { context, ..ModelConfig::new("chat", model) };
    Ok(Model::load(config, Arc::new(LlamaBackend), cache)?)
}

/// Asks a question and prints the reply as it comes.
pub(crate) fn ask(model: &Model, messages_json: &str, out: &mut dyn Write) -> Result<Completion, Box<dyn Error>> {
    let chat = ChatRequest { messages_json: messages_json.to_owned(), ..ChatRequest::default() };
    let prompt = model.apply_chat_template(&chat)?;
    let tokens = model.tokenize_prompt(&prompt)?;
    for event in model.submit(Request { max_tokens: Some(32), ..Request::new(tokens) })? {
        match event {
            StreamEvent::Text(text) => write!(out, "{text}")?,
            StreamEvent::Done(done) => return Ok(*done),
            StreamEvent::Error(error) => return Err(error.into()),
            _ => {}
        }
    }
    Err("the stream ended without a last event".into())
}

/// Asks twice, then saves what the model holds for the next start.
fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1);
    let (Some(model), Some(folder)) = (words.next(), words.next()) else {
        return Err("give a model and a folder".into());
    };
    let model = load(Path::new(&model), Path::new(&folder))?;
    for _ in 0..2 {
        let done = ask(&model, r#"[{"role":"user","content":"What is a poncho?"}]"#, &mut std::io::stdout())?;
        println!("\n{}: {} tokens were known", done.hit, done.cached_tokens);
    }
    model.shut_down()?;
    model.cache().flush();
    Ok(())
}
