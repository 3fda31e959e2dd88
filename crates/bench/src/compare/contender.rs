//! One of the two servers: its address, how it is restarted, and its process.
//!
//! Used by `round.rs`. A Poncho of our own is restarted by us; a server that the user started is restarted by the
//! command that they gave, or not at all.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, ensure};
use poncho_client::Client;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::measure::call::{Answer, Call, first_model};
use crate::measure::machine::folder_bytes;
use crate::measure::server::{OwnServer, PATIENCE, POLL, ServerSettings, written_bytes};

/// See the module.
pub(crate) struct Contender {
    pub(crate) client: Client,
    pub(crate) model: String,
    host: Host,
}

enum Host {
    Foreign { restart: Option<String>, pid: Option<String> },
    Own(Box<OwnHost>),
}

struct OwnHost {
    settings: ServerSettings,
    folder: TempDir,
    server: OwnServer,
}

/// A server that the user started.
#[derive(Debug, Clone)]
pub(crate) struct ForeignSettings {
    pub(crate) url: String,
    pub(crate) restart: Option<String>,
    pub(crate) pid: Option<String>,
}

impl Contender {
    pub(crate) async fn reach(settings: ForeignSettings) -> anyhow::Result<Self> {
        let ForeignSettings { url, restart, pid } = settings;
        let key = std::env::var("PONCHO_API_KEY").ok().filter(|key| !key.is_empty());
        let client = Client::new(&url, key)?;
        let model = first_model(&client).await?;
        Ok(Self { client, model, host: Host::Foreign { restart, pid } })
    }

    /// Starts a Poncho on an empty cache folder.
    pub(crate) async fn start(settings: ServerSettings) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot create a temporary cache folder; set TMPDIR")?;
        let server = OwnServer::start(&settings, &folder.path().join("kv")).await?;
        let (client, model) = (server.client.clone(), server.model.clone());
        Ok(Self { client, model, host: Host::Own(Box::new(OwnHost { settings, folder, server })) })
    }

    /// Whether it can be restarted at all.
    pub(crate) fn can_restart(&self) -> bool {
        !matches!(self.host, Host::Foreign { restart: None, .. })
    }

    /// Ends the server, starts it again and waits until it answers.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        match &mut self.host {
            Host::Own(own) => {
                own.server.stop().await?;
                own.server = OwnServer::start(&own.settings, &own.folder.path().join("kv")).await?;
                self.client = own.server.client.clone();
            }
            Host::Foreign { restart, .. } => {
                run_shell(restart.as_ref().context("give a command that restarts this server with --peer-restart")?)
                    .await?;
            }
        }
        self.wait_until_ready().await
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            // A server without a health page is ready when it lists its model.
            let healthy = self.client.get("/health").await.is_ok();
            if let (true, Ok(model)) = (healthy, first_model(&self.client).await) {
                self.model = model;
                return Ok(());
            }
            ensure!(began.elapsed() < PATIENCE, "the server did not come back within {} s", PATIENCE.as_secs());
            tokio::time::sleep(POLL).await;
        }
    }

    /// Sends all calls at the same time and waits for all answers.
    pub(crate) async fn send_all(&self, calls: &[Call]) -> anyhow::Result<Vec<Answer>> {
        let mut running = JoinSet::new();
        for call in calls {
            let (call, client, model) = (call.clone(), self.client.clone(), self.model.clone());
            running.spawn(async move { call.send(&client, &model).await });
        }
        let mut answers = Vec::with_capacity(calls.len());
        while let Some(answer) = running.join_next().await {
            answers.push(answer??);
        }
        Ok(answers)
    }

    /// The process, if it is known.
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.host {
            Host::Own(own) => own.server.pid(),
            Host::Foreign { pid, .. } => read_pid(pid.as_deref()?),
        }
    }

    /// The bytes in the cache folder, if the folder is known.
    pub(crate) fn stored_bytes(&self) -> Option<u64> {
        match &self.host {
            Host::Own(own) => Some(folder_bytes(own.folder.path())),
            Host::Foreign { .. } => None,
        }
    }

    /// The bytes that the cache wrote since the server started; `None` if the server does not report them.
    pub(crate) async fn written_bytes(&self) -> anyhow::Result<Option<u64>> {
        written_bytes(&self.client).await
    }

    /// The build of the server, if it reports one.
    pub(crate) async fn build(&self) -> Option<String> {
        let props = self.client.get("/props").await.ok()??;
        props.get("build_info").and_then(Value::as_str).map(str::to_owned)
    }
}

/// A process number, or the file that holds one: it may change with every restart.
fn read_pid(text: &str) -> Option<u32> {
    text.parse().ok().or_else(|| std::fs::read_to_string(text).ok()?.trim().parse().ok())
}

async fn run_shell(command: &str) -> anyhow::Result<()> {
    let mut shell = Command::new("sh");
    // Processes that it leaves behind must not hold our own output open.
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = shell.status().await.context("cannot run sh")?;
    ensure!(status.success(), "the restart command ended with {status}: {command}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use poncho_client::single_thread_runtime;

    use super::*;

    #[test]
    fn a_process_is_a_number_or_a_file_with_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        std::fs::write(&file, " 1234\n").unwrap();
        assert_eq!(read_pid(file.to_str().unwrap()), Some(1234));
        assert_eq!((read_pid("42"), read_pid("none"), read_pid("")), (Some(42), None, None));
    }

    #[test]
    fn the_error_names_a_restart_command_that_fails() {
        single_thread_runtime().unwrap().block_on(async {
            assert!(run_shell("true").await.is_ok());
            let error = run_shell("exit 3").await.unwrap_err().to_string();
            assert!(error.contains("exit 3") && error.contains('3'), "{error}");
        });
    }
}
