//! Serves an engine on a free port until SIGTERM, and prints the address first.
//!
//! Used by the servers beside this folder, which tests start. Not part of the binary.

use std::error::Error;
use std::sync::Arc;

use poncho_api::ChatSettings;
use poncho_engine::{Engine, Host};
use poncho_server::{ServerConfig, serve};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) async fn until_told(
    engine: Arc<Engine>,
    chat: ChatSettings,
    config: ServerConfig,
) -> Result<(), Box<dyn Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("serving stub on http://{}", listener.local_addr()?);
    let told = async move {
        terminate.recv().await;
    };
    Ok(serve(listener, Arc::new(Host::new(engine, chat)), config, told).await?)
}
