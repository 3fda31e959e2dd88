//! One of the two servers: where it is, how it is ended and started again, which process it is.
//!
//! Used by `round.rs`. Our own Poncho is a process of its own, so that its memory can be told from ours and its end is a
//! real one. A server that somebody else started is restarted by the command that they gave, or not at all.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use crate::bench::call::first_model;
use crate::bench::machine::folder_bytes;
use crate::client::http::Client;

/// How long a server may take to load its model or to end.
const PATIENCE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(50);

/// See the module.
pub(crate) struct Contender {
    pub(crate) client: Client,
    pub(crate) model: String,
    host: Host,
}

enum Host {
    Foreign { restart: Option<String>, pid: Option<String> },
    Own(Box<OwnServer>),
}

/// How our own Poncho is started.
#[derive(Debug, Clone)]
pub(crate) struct OwnSettings {
    pub(crate) model: PathBuf,
    pub(crate) ctx_size: u32,
    pub(crate) parallel: u32,
    pub(crate) threads: Option<u32>,
}

/// A server that somebody else started.
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

    pub(crate) async fn start(settings: OwnSettings) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary cache folder; set TMPDIR")?;
        let own =
            spawn_blocking(move || OwnServer::start(settings, folder)).await.context("starting was interrupted")??;
        let client = Client::new(&own.url, None)?;
        let model = first_model(&client).await?;
        Ok(Self { client, model, host: Host::Own(Box::new(own)) })
    }

    /// Whether it can be restarted at all.
    pub(crate) fn can_restart(&self) -> bool {
        !matches!(self.host, Host::Foreign { restart: None, .. })
    }

    /// Ends the server, starts it again and waits until it answers.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        match std::mem::replace(&mut self.host, Host::Foreign { restart: None, pid: None }) {
            Host::Own(own) => {
                let own = spawn_blocking(move || own.again()).await.context("the restart was interrupted")??;
                self.client = Client::new(&own.url, None)?;
                self.host = Host::Own(Box::new(own));
            }
            Host::Foreign { restart, pid } => {
                let command = restart.clone();
                self.host = Host::Foreign { restart, pid };
                let command = command.context("no command restarts this server; give one with --peer-restart")?;
                spawn_blocking(move || run_shell(&command)).await.context("the restart was interrupted")??;
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

    /// The process, if it is known.
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.host {
            Host::Own(own) => Some(own.child.id()),
            Host::Foreign { pid, .. } => read_pid(pid.as_deref()?),
        }
    }

    /// The bytes in the cache folder, if we know the folder.
    pub(crate) fn stored_bytes(&self) -> Option<u64> {
        match &self.host {
            Host::Own(own) => Some(folder_bytes(own.folder.path())),
            Host::Foreign { .. } => None,
        }
    }

    /// The bytes that the cache wrote since the server started, once it is done writing; `None` if it does not say.
    pub(crate) async fn written_bytes(&self) -> anyhow::Result<Option<u64>> {
        let began = Instant::now();
        loop {
            let Some(facts) = self.client.get("/api/cache").await? else { return Ok(None) };
            if facts.get("write_queue").and_then(Value::as_u64).unwrap_or(0) == 0 {
                return Ok(facts.pointer("/counters/save_bytes").and_then(Value::as_u64));
            }
            ensure!(began.elapsed() < PATIENCE, "the cache is still writing after {} s", PATIENCE.as_secs());
            tokio::time::sleep(POLL).await;
        }
    }

    /// What the server says about its build, if it says anything.
    pub(crate) async fn build(&self) -> Option<String> {
        let props = self.client.get("/props").await.ok()??;
        props.get("build_info").and_then(Value::as_str).map(str::to_owned)
    }
}

/// A process number, or the file that holds one: it may change with every restart.
fn read_pid(text: &str) -> Option<u32> {
    text.parse().ok().or_else(|| std::fs::read_to_string(text).ok()?.trim().parse().ok())
}

fn run_shell(command: &str) -> anyhow::Result<()> {
    let mut shell = Command::new("sh");
    // What it leaves running must not hold our own output open.
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = shell.status().context("cannot run sh")?;
    ensure!(status.success(), "the restart command ended with {status}: {command}");
    Ok(())
}

/// A `poncho serve` of our own.
struct OwnServer {
    settings: OwnSettings,
    folder: TempDir,
    child: Child,
    /// Held open: the server prints when it ends.
    output: BufReader<ChildStdout>,
    url: String,
}

impl OwnServer {
    fn start(settings: OwnSettings, folder: TempDir) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "--model"]).arg(&settings.model);
        command.arg("--cache-dir").arg(folder.path().join("kv"));
        command.args(["--ctx-size", &settings.ctx_size.to_string(), "--parallel", &settings.parallel.to_string()]);
        if let Some(threads) = settings.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        // A key from the environment would lock us out, and it is on the loopback.
        command.env_remove("PONCHO_API_KEY").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start `poncho serve`")?;
        let output = child.stdout.take().context("`poncho serve` has no output")?;
        let mut own = Self { settings, folder, child, output: BufReader::new(output), url: String::new() };
        let mut line = String::new();
        loop {
            line.clear();
            if own.output.read_line(&mut line).context("cannot read what `poncho serve` prints")? == 0 {
                bail!("`poncho serve` ended before it served; its message is above");
            }
            if line.starts_with("serving ") {
                let url = line.split_whitespace().find(|word| word.starts_with("http://"));
                url.context("`poncho serve` names no address")?.clone_into(&mut own.url);
                return Ok(own);
            }
        }
    }

    /// Ends it in order and starts another on the same folder.
    fn again(mut self) -> anyhow::Result<Self> {
        self.end()?;
        let folder =
            std::mem::replace(&mut self.folder, tempfile::tempdir().context("cannot make a temporary folder")?);
        Self::start(self.settings.clone(), folder)
    }

    fn end(&mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.context("the server has no process")?, rustix::process::Signal::TERM)?;
        let began = Instant::now();
        while self.child.try_wait()?.is_none() {
            ensure!(began.elapsed() < PATIENCE, "`poncho serve` did not end within {} s", PATIENCE.as_secs());
            std::thread::sleep(POLL / 10);
        }
        Ok(())
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // Gone already after an orderly end, and then neither does anything.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
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
    fn a_restart_command_that_fails_is_named() {
        assert!(run_shell("true").is_ok());
        let said = run_shell("exit 3").unwrap_err().to_string();
        assert!(said.contains("exit 3") && said.contains('3'), "{said}");
    }
}
