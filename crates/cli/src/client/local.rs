//! A server in this process on a free port, over an engine with its models loaded.
//!
//! Used by commands that find no running server. Clients reach it over its socket, like any other server.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use poncho_api::ChatSettings;
use poncho_client::Client;
use poncho_engine::{Engine, Host};
use poncho_server::{ConfigError, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::serving::draining::{Drained, drain};

/// How long the end of the server waits for its states to be saved.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// A server that runs.
pub(crate) struct LocalServer {
    pub(crate) client: Client,
    engine: Arc<Engine>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ConfigError>>,
}

impl LocalServer {
    /// Serves the loaded models and those of the library.
    pub(crate) async fn start(engine: Arc<Engine>, config: ServerConfig, chat: ChatSettings) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on 127.0.0.1")?;
        let client = Client::new(&format!("http://{}", listener.local_addr()?), None)?;
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            // A dropped sender means the same.
            let _ = stopped.await;
        };
        let node = Arc::new(Host::new(Arc::clone(&engine), chat));
        let serving = tokio::spawn(poncho_server::serve(listener, node, config, shutdown));
        Ok(Self { client, engine, stop, serving })
    }

    /// Ends the server in order: its states are saved.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let Self { client: _, engine, stop, serving } = self;
        let _ = stop.send(());
        serving.await.context("the server was interrupted")??;
        match spawn_blocking(move || drain(engine, DRAIN_LIMIT)).await.context("saving was interrupted")?? {
            Drained::Saved => Ok(()),
            Drained::GaveUp => bail!(
                "the cache folder did not respond within {} s; check its disk, or name another folder with --cache-dir",
                DRAIN_LIMIT.as_secs()
            ),
        }
    }
}
