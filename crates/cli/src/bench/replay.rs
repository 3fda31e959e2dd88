//! `poncho bench replay`: sends the requests of recorded conversations and counts what was read again.
//!
//! For each request the prompt's tokens come from the server's own template, before anything is sent; what of them was
//! new follows from the prompts before it (`known.rs`), what was computed from the usage that the server reports. A
//! server of our own is measured on an empty cache folder for each trace.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::bench::args::{ReplayArgs, ReplyLength};
use crate::bench::call::{Always, Body};
use crate::bench::known::Known;
use crate::bench::report::{Mode, Report, Step, TraceReport};
use crate::bench::trace::{self, Trace, TraceRequest};
use crate::client::http::{Client, Streamed};
use crate::client::local::{LocalServer, LocalSettings, MODEL_ID};

/// Enough to render prompts; nothing is computed in it.
const RENDERING_CONTEXT: u32 = 512;
/// A context that is measured is rounded up to a multiple of this.
const CONTEXT_STEP: usize = 1024;
/// A running server may still be writing; this is how often and how long it is asked.
const QUEUE_POLL: Duration = Duration::from_millis(20);
const QUEUE_POLLS: u32 = 500;

pub(crate) fn run(args: &ReplayArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let traces = trace::read_all(&args.traces)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    let report = runtime.block_on(replay_all(args, traces))?;
    report.print(args, out)?;
    let too_much = args.max_ratio.is_some_and(|limit| report.traces.iter().any(|trace| trace.ratio > limit));
    Ok(if too_much { Outcome::Bad } else { Outcome::Good })
}

async fn replay_all(args: &ReplayArgs, traces: Vec<Trace>) -> anyhow::Result<Report> {
    let mut known = Known::default();
    let mut reports = Vec::with_capacity(traces.len());
    let (model, mode) = match &args.url {
        Some(url) => {
            let key = args.api_key.clone().or_else(|| std::env::var("PONCHO_API_KEY").ok());
            let client = Client::new(url, key.filter(|key| !key.is_empty()))?;
            let model = first_model(&client).await?;
            for trace in traces {
                let replay = Replay::new(args, trace, &model);
                reports.push(replay.on_running_server(&client, &mut known).await?);
            }
            (model, Mode::Running)
        }
        None => {
            let settings = local_settings(args)?;
            for trace in traces {
                let folder = CacheFolder::choose(args)?;
                if args.cache_dir.is_none() {
                    known = Known::default();
                }
                let replay = Replay::new(args, trace, MODEL_ID);
                reports.push(replay.on_own_server(&settings, folder.path(), &mut known).await?);
            }
            let name = settings.model.file_name().unwrap_or(settings.model.as_os_str());
            let mode = if args.restart { Mode::Restarted } else { Mode::Warm };
            (name.to_string_lossy().into_owned(), mode)
        }
    };
    Ok(Report { model, mode, traces: reports })
}

fn local_settings(args: &ReplayArgs) -> anyhow::Result<LocalSettings> {
    let model = args.model.clone().context("give a model with --model, or a running server with --url")?;
    ensure!(model.is_file(), "{} is not a model file; give the path of a GGUF file with --model", model.display());
    Ok(LocalSettings {
        model,
        parallel: args.parallel,
        threads: args.threads,
        cache_size: args.cache_size,
        min_tokens: args.min_tokens,
    })
}

/// Where rows go: a folder that the user keeps, or one that is removed afterwards.
enum CacheFolder {
    Kept(PathBuf),
    Temporary(TempDir),
}

impl CacheFolder {
    fn choose(args: &ReplayArgs) -> anyhow::Result<Self> {
        Ok(match &args.cache_dir {
            Some(folder) => Self::Kept(folder.clone()),
            None => Self::Temporary(tempfile::tempdir().context("cannot make a temporary cache folder; set TMPDIR")?),
        })
    }

    fn path(&self) -> &Path {
        match self {
            Self::Kept(folder) => folder,
            Self::Temporary(folder) => folder.path(),
        }
    }
}

/// The first model that a running server lists.
async fn first_model(client: &Client) -> anyhow::Result<String> {
    let models = client.get("/v1/models").await?.context("the server lists no models under /v1/models")?;
    let first = models.pointer("/data/0/id").and_then(Value::as_str);
    Ok(first.context("the server has no model loaded")?.to_owned())
}

/// A request as the server will read it.
struct Prompt {
    tokens: Vec<u32>,
    /// Tokens to generate.
    reply: usize,
}

/// One trace on its way to a server.
struct Replay<'a> {
    args: &'a ReplayArgs,
    trace: Trace,
    model: &'a str,
}

impl<'a> Replay<'a> {
    fn new(args: &'a ReplayArgs, trace: Trace, model: &'a str) -> Self {
        Self { args, trace, model }
    }

    async fn on_running_server(&self, client: &Client, known: &mut Known) -> anyhow::Result<TraceReport> {
        let prompts = self.render(client).await?;
        let before = written_by(client).await?;
        let steps = self.send_all(client, &prompts, known).await?;
        let after = written_by(client).await?;
        let written = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok(TraceReport::new(&self.trace.name, steps, written))
    }

    async fn on_own_server(
        &self,
        settings: &LocalSettings,
        folder: &Path,
        known: &mut Known,
    ) -> anyhow::Result<TraceReport> {
        let rendering = LocalSettings { parallel: 1, ..settings.clone() };
        let server = LocalServer::start(&rendering, folder, RENDERING_CONTEXT).await?;
        let prompts = self.render(&server.client).await;
        server.stop().await?;
        let prompts = prompts?;
        let ctx_size = match self.args.ctx_size {
            Some(size) => size,
            None => context_for(&prompts)?,
        };
        let mut server = LocalServer::start(settings, folder, ctx_size).await?;
        let mut written = 0;
        let steps = if self.args.restart {
            let mut steps = Vec::with_capacity(prompts.len());
            for (index, prompt) in prompts.iter().enumerate() {
                if index > 0 {
                    written += server.stop().await?;
                    server = LocalServer::start(settings, folder, ctx_size).await?;
                }
                steps.extend(self.send_range(&server.client, index, std::slice::from_ref(prompt), known).await?);
            }
            steps
        } else {
            self.send_all(&server.client, &prompts, known).await?
        };
        written += server.stop().await?;
        Ok(TraceReport::new(&self.trace.name, steps, Some(written)))
    }

    /// Every prompt as the server reads it.
    async fn render(&self, client: &Client) -> anyhow::Result<Vec<Prompt>> {
        let mut prompts = Vec::with_capacity(self.trace.requests.len());
        for (index, request) in self.trace.requests.iter().enumerate() {
            let tokens = self.tokens(client, request).await;
            let tokens = tokens.with_context(|| format!("cannot render request {index} of {}", self.trace.name))?;
            let reply = match (self.args.reply_length, &request.reply) {
                (ReplyLength::Logged, Some(text)) => self.tokenize(client, text, false).await?.len().max(1),
                (ReplyLength::Logged, None) | (ReplyLength::One, _) => 1,
            };
            prompts.push(Prompt { tokens, reply });
        }
        Ok(prompts)
    }

    async fn tokens(&self, client: &Client, request: &TraceRequest) -> anyhow::Result<Vec<u32>> {
        let rendered = client.post("/apply-template", &self.body(request, 1)).await?;
        let rendered = rendered.context("the server has no /apply-template, which is needed to count tokens")?;
        if let Some(tokens) = rendered.get("tokens") {
            return token_list(tokens);
        }
        // Other servers render only; their tokens are those of the text.
        let text = rendered.get("prompt").and_then(Value::as_str).context("/apply-template sent no prompt")?;
        self.tokenize(client, text, true).await
    }

    async fn tokenize(&self, client: &Client, text: &str, is_prompt: bool) -> anyhow::Result<Vec<u32>> {
        let body = json!({"model": self.model, "content": text, "add_special": is_prompt, "parse_special": is_prompt});
        let answer = client.post("/tokenize", &body).await?;
        let answer = answer.context("the server has no /tokenize, which is needed to count tokens")?;
        token_list(answer.get("tokens").unwrap_or(&Value::Null))
    }

    fn body<'b>(&'b self, request: &'b TraceRequest, max_tokens: usize) -> Body<'b> {
        Body {
            model: self.model,
            messages: &request.messages,
            tools: &request.tools,
            max_tokens,
            ignore_eos: true,
            poncho: true,
            always: Always::default(),
        }
    }

    async fn send_all(&self, client: &Client, prompts: &[Prompt], known: &mut Known) -> anyhow::Result<Vec<Step>> {
        self.send_range(client, 0, prompts, known).await
    }

    /// Sends the requests from `first` on, in their order, as many at once as allowed but only one of a conversation.
    async fn send_range(
        &self,
        client: &Client,
        first: usize,
        prompts: &[Prompt],
        known: &mut Known,
    ) -> anyhow::Result<Vec<Step>> {
        let mut flight = Flight::new(self.args.at_once);
        let requests = self.trace.requests.iter().enumerate().skip(first);
        for ((index, request), prompt) in requests.zip(prompts) {
            flight.wait_for_place(request.thread.as_deref()).await?;
            let common = known.common(&prompt.tokens);
            known.add(&prompt.tokens);
            let step = NewStep { index, thread: request.thread.clone(), prompt: prompt.tokens.len(), common };
            let body = serde_json::value::to_raw_value(&self.body(request, prompt.reply))?;
            let (client, name) = (client.clone(), self.trace.name.clone());
            flight.start(request.thread.clone(), async move {
                let streamed = client.stream("/v1/chat/completions", &body).await;
                streamed
                    .and_then(|streamed| step.finish(&streamed))
                    .with_context(|| format!("request {index} of {name} failed"))
            });
        }
        flight.land().await
    }
}

/// The requests that are under way.
struct Flight {
    at_once: usize,
    running: JoinSet<(Option<String>, anyhow::Result<Step>)>,
    threads: BTreeMap<Option<String>, usize>,
    steps: Vec<Step>,
}

impl Flight {
    fn new(at_once: u32) -> Self {
        let at_once = usize::try_from(at_once).unwrap_or(usize::MAX);
        Self { at_once, running: JoinSet::new(), threads: BTreeMap::new(), steps: Vec::new() }
    }

    async fn wait_for_place(&mut self, thread: Option<&str>) -> anyhow::Result<()> {
        let thread = thread.map(str::to_owned);
        while self.running.len() >= self.at_once || self.threads.get(&thread).is_some_and(|count| *count > 0) {
            self.wait_for_one().await?;
        }
        Ok(())
    }

    fn start(&mut self, thread: Option<String>, sending: impl Future<Output = anyhow::Result<Step>> + Send + 'static) {
        *self.threads.entry(thread.clone()).or_default() += 1;
        self.running.spawn(async move { (thread, sending.await) });
    }

    async fn wait_for_one(&mut self) -> anyhow::Result<()> {
        let Some(ended) = self.running.join_next().await else { bail!("no request is under way") };
        let (thread, step) = ended.context("a request was interrupted")?;
        if let Some(count) = self.threads.get_mut(&thread) {
            *count = count.saturating_sub(1);
        }
        self.steps.push(step?);
        Ok(())
    }

    /// Waits for all of them; the steps are in the order of the trace then.
    async fn land(mut self) -> anyhow::Result<Vec<Step>> {
        while !self.running.is_empty() {
            self.wait_for_one().await?;
        }
        self.steps.sort_by_key(|step| step.index);
        Ok(self.steps)
    }
}

/// What is known of a request before it is sent.
struct NewStep {
    index: usize,
    thread: Option<String>,
    prompt: usize,
    common: usize,
}

impl NewStep {
    fn finish(self, streamed: &Streamed) -> anyhow::Result<Step> {
        let counted = streamed.usage.get("prompt_tokens").and_then(as_count);
        let counted = counted.context("the usage holds no prompt_tokens")?;
        ensure!(
            counted == self.prompt,
            "the server counts {counted} prompt tokens and its template endpoint gave {}; the two must agree",
            self.prompt
        );
        let cached = streamed.usage.pointer("/prompt_tokens_details/cached_tokens").and_then(as_count);
        let cached = cached.or_else(|| streamed.timings.as_ref()?.get("cache_n").and_then(as_count));
        let cached = cached.context("the usage holds no prompt_tokens_details.cached_tokens")?;
        let hit = streamed.poncho.as_ref().and_then(|facts| facts.get("hit")).and_then(Value::as_str);
        Ok(Step {
            index: self.index,
            thread: self.thread,
            prompt: self.prompt,
            common: self.common,
            cached,
            hit: hit.map(str::to_owned),
            first_token: streamed.first_token,
        })
    }
}

fn as_count(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|count| usize::try_from(count).ok())
}

fn token_list(value: &Value) -> anyhow::Result<Vec<u32>> {
    let tokens = Vec::<u32>::deserialize(value);
    tokens.context("the server's tokens are no list of numbers")
}

/// What the longest request needs, rounded up.
fn context_for(prompts: &[Prompt]) -> anyhow::Result<u32> {
    let longest = prompts.iter().map(|prompt| prompt.tokens.len() + prompt.reply).max().unwrap_or(0);
    u32::try_from((longest + 1).next_multiple_of(CONTEXT_STEP)).context("the trace is too long for any context")
}

/// The bytes that a running server's cache has written, once it is done writing; `None` if it does not say.
async fn written_by(client: &Client) -> anyhow::Result<Option<u64>> {
    for _ in 0..QUEUE_POLLS {
        let Some(facts) = client.get("/api/cache").await? else { return Ok(None) };
        if facts.get("write_queue").and_then(Value::as_u64).unwrap_or(0) == 0 {
            return Ok(facts.pointer("/counters/save_bytes").and_then(Value::as_u64));
        }
        tokio::time::sleep(QUEUE_POLL).await;
    }
    bail!("the server's cache is still writing; wait until it is idle and try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(usage: Value) -> Streamed {
        Streamed { usage, ..Streamed::default() }
    }

    fn step() -> NewStep {
        NewStep { index: 3, thread: None, prompt: 10, common: 4 }
    }

    #[test]
    fn a_step_takes_its_numbers_from_the_usage() {
        let usage = json!({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 3}});
        let facts = Streamed { poncho: Some(json!({"hit": "partial"})), ..streamed(usage) };
        let done = step().finish(&facts).unwrap();
        assert_eq!((done.new_tokens(), done.prefilled(), done.hit.as_deref()), (6, 7, Some("partial")));
        let other = Streamed { timings: Some(json!({"cache_n": 9})), ..streamed(json!({"prompt_tokens": 10})) };
        assert_eq!(step().finish(&other).unwrap().prefilled(), 1, "another server's way to say it");
    }

    #[test]
    fn numbers_that_do_not_agree_or_are_missing_are_no_measurement() {
        for (usage, word) in [
            (json!({"prompt_tokens": 11}), "counts 11"),
            (json!({}), "prompt_tokens"),
            (json!({"prompt_tokens": 10}), "cached_tokens"),
        ] {
            let error = step().finish(&streamed(usage)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn the_context_holds_the_longest_prompt_and_its_reply() {
        let prompt = |tokens, reply| Prompt { tokens: vec![0; tokens], reply };
        assert_eq!(context_for(&[prompt(10, 1), prompt(1022, 1)]).unwrap(), 1024);
        assert_eq!(context_for(&[prompt(1023, 1)]).unwrap(), 2048);
        assert_eq!(context_for(&[prompt(1000, 1000)]).unwrap(), 2048);
    }
}
