//! `poncho bench replay`: sends the requests of recorded conversations and counts the tokens that are computed again.
//!
//! The tokens of each prompt come from the template of the server, before anything is sent. Which of them are new follows
//! from the earlier prompts (`known.rs`), which were computed from the usage that the server reports. A server of our own
//! gets an empty cache folder for each trace.

pub(crate) mod args;
mod flight;
mod known;
mod report;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use poncho_client::{Client, runtime};
use poncho_terminal::{Outcome, Progress, Unit};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::measure::call::{Always, Body, first_model};
use crate::measure::server::{OwnServer, ServerSettings, written_bytes};
use crate::measure::stream::{Streamed, stream};
use crate::measure::trace::{self, Trace, TraceRequest};
use crate::replay::args::{ReplayArgs, ReplyLength};
use crate::replay::flight::Flight;
use crate::replay::known::Known;
use crate::replay::report::{Mode, Report, Step, TraceReport};

/// Enough to render prompts; nothing is computed in it.
const RENDERING_CONTEXT: u32 = 512;
/// A context that is measured is rounded up to a multiple of this.
const CONTEXT_STEP: usize = 1024;

pub(crate) fn run(args: &ReplayArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let traces = trace::read_all(&args.traces)?;
    let report = runtime()?.block_on(replay_all(args, traces))?;
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
            let settings = server_settings(args)?;
            for trace in traces {
                let folder = CacheFolder::choose(args)?;
                if args.cache_dir.is_none() {
                    known = Known::default();
                }
                reports.push(Replay::new(args, trace, "").on_own_server(&settings, folder.path(), &mut known).await?);
            }
            let name = settings.model.file_name().unwrap_or(settings.model.as_os_str());
            let mode = if args.restart { Mode::Restarted } else { Mode::Warm };
            (name.to_string_lossy().into_owned(), mode)
        }
    };
    Ok(Report { model, mode, traces: reports })
}

fn server_settings(args: &ReplayArgs) -> anyhow::Result<ServerSettings> {
    let model = args.model.clone().context("give a model with --model, or a running server with --url")?;
    ServerSettings::check_model(&model)?;
    Ok(ServerSettings {
        model,
        ctx_size: RENDERING_CONTEXT,
        parallel: args.parallel,
        threads: args.threads,
        cache_size: Some(args.cache_size),
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
            None => Self::Temporary(tempfile::tempdir().context("cannot create a temporary cache folder; set TMPDIR")?),
        })
    }

    fn path(&self) -> &Path {
        match self {
            Self::Kept(folder) => folder,
            Self::Temporary(folder) => folder.path(),
        }
    }
}

/// A request as the server will read it.
struct Prompt {
    tokens: Vec<u32>,
    /// Tokens to generate.
    reply: usize,
}

/// The replay of one trace.
struct Replay<'a> {
    args: &'a ReplayArgs,
    trace: Trace,
    model: String,
    progress: Progress,
}

impl<'a> Replay<'a> {
    fn new(args: &'a ReplayArgs, trace: Trace, model: &str) -> Self {
        Self { args, trace, model: model.to_owned(), progress: Progress::on_stderr() }
    }

    fn begin(&self, verb: &str) {
        let total = u64::try_from(self.trace.requests.len()).ok();
        self.progress.begin(&format!("{verb} {}", self.trace.name), Unit::Items("requests"), total);
    }

    async fn on_running_server(&self, client: &Client, known: &mut Known) -> anyhow::Result<TraceReport> {
        let prompts = self.render(client).await?;
        let before = written_bytes(client).await?;
        self.begin("replaying");
        let steps = self.send_range(client, 0, &prompts, known).await?;
        let after = written_bytes(client).await?;
        let written = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok(TraceReport::new(&self.trace.name, steps, written))
    }

    async fn on_own_server(
        mut self,
        settings: &ServerSettings,
        folder: &Path,
        known: &mut Known,
    ) -> anyhow::Result<TraceReport> {
        let rendering = ServerSettings { parallel: 1, ..settings.clone() };
        let mut server = OwnServer::start(&rendering, folder).await?;
        self.model.clone_from(&server.model);
        let prompts = self.render(&server.client).await?;
        server.stop().await?;
        let ctx_size = match self.args.ctx_size {
            Some(size) => size,
            None => context_for(&prompts)?,
        };
        let settings = ServerSettings { ctx_size, ..settings.clone() };
        let mut server = OwnServer::start(&settings, folder).await?;
        self.begin("replaying");
        let mut written = 0;
        let steps = if self.args.restart {
            let mut steps = Vec::with_capacity(prompts.len());
            for (index, prompt) in prompts.iter().enumerate() {
                if index > 0 {
                    written += server.stop_and_count().await?;
                    server = OwnServer::start(&settings, folder).await?;
                }
                steps.extend(self.send_range(&server.client, index, std::slice::from_ref(prompt), known).await?);
            }
            steps
        } else {
            self.send_range(&server.client, 0, &prompts, known).await?
        };
        written += server.stop_and_count().await?;
        Ok(TraceReport::new(&self.trace.name, steps, Some(written)))
    }

    /// Every prompt as the server reads it.
    async fn render(&self, client: &Client) -> anyhow::Result<Vec<Prompt>> {
        self.begin("rendering");
        let mut prompts = Vec::with_capacity(self.trace.requests.len());
        for (index, request) in self.trace.requests.iter().enumerate() {
            let tokens = self.tokens(client, request).await;
            let tokens = tokens.with_context(|| format!("cannot render request {index} of {}", self.trace.name))?;
            let reply = match (self.args.reply_length, &request.reply) {
                (ReplyLength::Logged, Some(text)) => self.tokenize(client, text, false).await?.len().max(1),
                (ReplyLength::Logged, None) | (ReplyLength::One, _) => 1,
            };
            prompts.push(Prompt { tokens, reply });
            self.progress.add(1);
        }
        Ok(prompts)
    }

    async fn tokens(&self, client: &Client, request: &TraceRequest) -> anyhow::Result<Vec<u32>> {
        let rendered = client.post_if_known("/apply-template", &self.body(request, 1)).await?;
        let rendered = rendered.context("the server has no /apply-template, so tokens cannot be counted")?;
        if let Some(tokens) = rendered.get("tokens") {
            return token_list(tokens);
        }
        // Other servers render only; their tokens are those of the text.
        let text = rendered.get("prompt").and_then(Value::as_str).context("/apply-template sent no prompt")?;
        self.tokenize(client, text, true).await
    }

    async fn tokenize(&self, client: &Client, text: &str, is_prompt: bool) -> anyhow::Result<Vec<u32>> {
        let body = json!({"model": self.model, "content": text, "add_special": is_prompt, "parse_special": is_prompt});
        let answer = client.post_if_known("/tokenize", &body).await?;
        let answer = answer.context("the server has no /tokenize, so tokens cannot be counted")?;
        token_list(answer.get("tokens").unwrap_or(&Value::Null))
    }

    fn body<'b>(&'b self, request: &'b TraceRequest, max_tokens: usize) -> Body<'b> {
        Body {
            model: &self.model,
            messages: &request.messages,
            tools: &request.tools,
            max_tokens,
            ignore_eos: true,
            poncho: true,
            always: Always::default(),
        }
    }

    /// Sends the requests from `first` on, in their order, as many at once as allowed but only one of a conversation.
    async fn send_range(
        &self,
        client: &Client,
        first: usize,
        prompts: &[Prompt],
        known: &mut Known,
    ) -> anyhow::Result<Vec<Step>> {
        let mut flight = Flight::new(self.args.at_once, self.progress.clone());
        let requests = self.trace.requests.iter().enumerate().skip(first);
        for ((index, request), prompt) in requests.zip(prompts) {
            flight.wait_for_place(request.thread.as_deref()).await?;
            let common = known.common(&prompt.tokens);
            known.add(&prompt.tokens);
            let step = NewStep { index, thread: request.thread.clone(), prompt: prompt.tokens.len(), common };
            let body = serde_json::value::to_raw_value(&self.body(request, prompt.reply))?;
            let (client, name) = (client.clone(), self.trace.name.clone());
            flight.start(request.thread.clone(), async move {
                let streamed = stream(&client, &body).await;
                streamed
                    .and_then(|streamed| step.finish(&streamed))
                    .with_context(|| format!("request {index} of {name} failed"))
            });
        }
        flight.land().await
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
        let counted = streamed.count("prompt_tokens")?;
        ensure!(
            counted == self.prompt,
            "the server counts {counted} prompt tokens, but its template endpoint returned {}",
            self.prompt
        );
        let cached = streamed.cached().context("the usage has no prompt_tokens_details.cached_tokens")?;
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

fn token_list(value: &Value) -> anyhow::Result<Vec<u32>> {
    let tokens = Vec::<u32>::deserialize(value);
    tokens.context("the server sent tokens that are not a list of numbers")
}

/// What the longest request needs, rounded up.
fn context_for(prompts: &[Prompt]) -> anyhow::Result<u32> {
    let longest = prompts.iter().map(|prompt| prompt.tokens.len() + prompt.reply).max().unwrap_or(0);
    u32::try_from((longest + 1).next_multiple_of(CONTEXT_STEP)).context("the trace is too long for any context")
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
        assert_eq!(step().finish(&other).unwrap().prefilled(), 1, "as llama-server reports it");
    }

    #[test]
    fn missing_or_contradicting_numbers_are_errors() {
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
