//! A `poncho serve` of our own: a process on a free port of this machine, with settings that only the flags decide.
//!
//! Used by every measurement that is given a model file. A process of its own is measured as a user would run it: its
//! memory is not ours, and its end is a real one. It is killed if it is dropped without `stop`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use poncho_client::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::measure::call::first_model;

/// How long a server may take to load its model, to save its states, or to end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// Pause between two questions to a server that is not ready.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// How a server is started.
#[derive(Debug, Clone)]
pub(crate) struct ServerSettings {
    pub(crate) model: PathBuf,
    pub(crate) ctx_size: u32,
    pub(crate) parallel: u32,
    pub(crate) threads: Option<u32>,
    pub(crate) cache_size: Option<u64>,
    /// The shortest state that is saved.
    pub(crate) min_tokens: Option<u32>,
}

impl ServerSettings {
    /// Checks the path of the model before a server is started.
    pub(crate) fn check_model(model: &Path) -> anyhow::Result<()> {
        ensure!(model.is_file(), "{} is not a model file; give the path of a GGUF file with --model", model.display());
        Ok(())
    }

    fn command(&self, cache: &Path) -> Command {
        let mut command = Command::new(poncho());
        for (name, _) in std::env::vars_os() {
            // Settings of the user would change what is measured. How much is logged would not.
            let text = name.to_string_lossy();
            if text.starts_with("PONCHO_") && !text.starts_with("PONCHO_LOG") {
                command.env_remove(&name);
            }
        }
        // A crash ends only the server, so the model needs no trial in a process of its own.
        // One process, so that its memory is all of it; no line for each reply.
        command.args([
            "serve",
            "--config",
            "/dev/null",
            "--in-process",
            "--quiet",
            "--port",
            "0",
            "--probe-models",
            "off",
            "--model",
        ]);
        command.arg(&self.model).arg("--cache-dir").arg(cache);
        command.args(["--ctx-size", &self.ctx_size.to_string(), "--parallel", &self.parallel.to_string()]);
        let more = [
            ("--threads", self.threads.map(u64::from)),
            ("--cache-size", self.cache_size),
            ("--save-min-tokens", self.min_tokens.map(u64::from)),
        ];
        for (flag, value) in more.into_iter().filter_map(|(flag, value)| Some((flag, value?))) {
            command.args([flag, &value.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        command
    }
}

/// The program `poncho`: the one beside this program, or else the one on PATH.
fn poncho() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name("poncho"));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| "poncho".into())
}

/// A server that runs.
pub(crate) struct OwnServer {
    pub(crate) client: Client,
    /// The name of its model.
    pub(crate) model: String,
    child: Child,
    /// Held open: the server prints when it ends.
    _output: Lines<BufReader<ChildStdout>>,
}

impl OwnServer {
    /// Starts a server on this cache folder and waits until it listens.
    pub(crate) async fn start(settings: &ServerSettings, cache: &Path) -> anyhow::Result<Self> {
        let mut child = settings
            .command(cache)
            .spawn()
            .context("cannot start `poncho serve`; install poncho beside poncho-bench, or add its folder to PATH")?;
        let output = child.stdout.take().context("`poncho serve` has no output")?;
        let mut output = BufReader::new(output).lines();
        loop {
            let line = output.next_line().await.context("cannot read the output of `poncho serve`")?;
            let Some(line) = line else { bail!("`poncho serve` ended before it listened; its message is above") };
            if line.starts_with("serving ") {
                let url = line.split_whitespace().find(|word| word.starts_with("http://"));
                let client = Client::new(url.context("`poncho serve` printed no address")?, None)?;
                let model = first_model(&client).await?;
                return Ok(Self { client, model, child, _output: output });
            }
        }
    }

    /// The process, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends the server in order: it saves its states first.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        kill_process(pid.context("`poncho serve` has already ended")?, Signal::TERM)?;
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = ended.with_context(|| format!("`poncho serve` did not end within {} s", PATIENCE.as_secs()))??;
        ensure!(status.success(), "`poncho serve` ended with {status}; its message is above");
        Ok(())
    }

    /// Ends the server in order and returns the bytes that its cache wrote, states saved at the end included.
    pub(crate) async fn stop_and_count(&mut self) -> anyhow::Result<u64> {
        let began = Instant::now();
        // Unloading saves what the model holds; a request that just ended may delay it.
        loop {
            let answer = self.client.post("/api/models/unload", &json!({"model": self.model})).await?;
            if answer.get("state").and_then(Value::as_str) == Some("unloaded") {
                break;
            }
            ensure!(began.elapsed() < PATIENCE, "the model is still in use after {} s", PATIENCE.as_secs());
            tokio::time::sleep(POLL).await;
        }
        let written = written_bytes(&self.client).await?.context("the server does not report what it wrote")?;
        self.stop().await?;
        Ok(written)
    }
}

/// The bytes that the cache of a server wrote since it started, once its queue is empty; `None` if it does not report them.
pub(crate) async fn written_bytes(client: &Client) -> anyhow::Result<Option<u64>> {
    let began = Instant::now();
    loop {
        let Some(facts) = client.get("/api/cache").await? else { return Ok(None) };
        if facts.get("write_queue").and_then(Value::as_u64).unwrap_or(0) == 0 {
            return Ok(facts.pointer("/counters/save_bytes").and_then(Value::as_u64));
        }
        ensure!(began.elapsed() < PATIENCE, "the cache is still writing after {} s", PATIENCE.as_secs());
        tokio::time::sleep(POLL).await;
    }
}
