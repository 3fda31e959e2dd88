//! The whole server in a program of your own: its engine, its listener, its shutdown.
//!
//! `cargo run --release -p poncho-server --example own_server -- model.gguf kv`

use std::error::Error;
use std::future::Future;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::{ChatSettings, Engine, Host, ModelConfig};
use poncho_server::{ServerConfig, check_bind, serve};

/// Serves a model until it is asked to stop, then saves its state.
pub(crate) fn run(
    model: &Path,
    folder: &Path,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), Box<dyn Error>> {
    let config = ServerConfig { any_model: true, ..ServerConfig::default() };
    check_bind(listener.local_addr()?, &config.keys, false)?;
    let cache = Arc::new(Cache::open(CacheConfig::on_disk(folder, 10 << 30))?);
    let engine = Arc::new(Engine::new(Arc::new(LlamaBackend), cache));
    engine.load(ModelConfig::new("mine", model))?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let node = Arc::new(Host::new(Arc::clone(&engine), ChatSettings::default()));
        serve(listener, node, config, stop).await?;
        Ok::<(), Box<dyn Error>>(())
    })?;
    // No request is in flight: now the state can be saved.
    engine.unload("mine")?;
    engine.cache().flush();
    Ok(())
}

/// Serves until the process is ended from outside.
fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1);
    let (Some(model), Some(folder)) = (words.next(), words.next()) else {
        return Err("give a model and a folder".into());
    };
    let listener = TcpListener::bind("127.0.0.1:8080")?;
    run(Path::new(&model), Path::new(&folder), listener, std::future::pending())
}
