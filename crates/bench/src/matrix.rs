//! `poncho bench matrix`: how long the first token takes for a cold prompt, for the same again and for one with a new tail,
//! over several lengths; and clients that share a system prompt.
//!
//! Called by `main`. It starts a server on an empty cache folder. Every round has prompts of its own; the first round of
//! each length does not count.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use poncho_client::{Client, runtime};
use poncho_terminal::{Align, Outcome, Progress, Table, Unit};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::measure::call::{Answer, Call, tokens_per_word};
use crate::measure::chart::{Chart, Group, shown};
use crate::measure::figures::FigureArgs;
use crate::measure::machine::Machine;
use crate::measure::prompts::Prompts;
use crate::measure::server::{OwnServer, ServerSettings};
use crate::measure::stats::{Spread, milliseconds};

/// Room for the template and the tail beside the longest prompt.
const SPARE: usize = 512;
/// Tokens of a system prompt that clients share, of their tasks and of their replies.
const SHARED: usize = 1000;
const TASK: usize = 32;
const REPLY: usize = 8;
/// Requests of one round of one length.
const REQUESTS: u64 = 4;

#[derive(Debug, clap::Args)]
pub(crate) struct MatrixArgs {
    /// GGUF file of the model
    #[arg(long, value_name = "PATH")]
    pub(crate) model: PathBuf,

    /// Lengths of the prompts in tokens
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "512,1024,2048,4096")]
    pub(crate) prompt_tokens: Vec<usize>,

    /// Number of clients that share a system prompt
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) agents: u32,

    /// Number of measured rounds
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Number of compute threads [default: the physical cores]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,

    #[command(flatten)]
    pub(crate) figures: FigureArgs,
}

/// Milliseconds to the first token for prompts of one length.
#[derive(Debug, Serialize)]
struct Row {
    /// Tokens of the prompt, as the server counts them.
    prompt: usize,
    cold: Option<Spread>,
    exact: Option<Spread>,
    partial: Option<Spread>,
    /// The same prompt from disk, after a restart of the server.
    restarted: Option<Spread>,
}

/// Clients that share a system prompt.
#[derive(Debug, Serialize)]
struct Agents {
    count: u32,
    /// All prompt tokens that were sent in a round.
    sent: Option<Spread>,
    /// Those that were computed.
    prefilled: Option<Spread>,
    /// Milliseconds to the first token of each.
    first_token: Option<Spread>,
    /// Milliseconds until all were done.
    total: Option<Spread>,
}

#[derive(Debug, Serialize)]
struct Found {
    machine: Machine,
    model: String,
    rounds: u32,
    lengths: Vec<Row>,
    agents: Agents,
}

pub(crate) fn run(args: &MatrixArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    ServerSettings::check_model(&args.model)?;
    let found = runtime()?.block_on(measure(args))?;
    found.print(args, out)?;
    args.figures.write_json(&found)?;
    if let Some(folder) = &args.figures.plot {
        found.chart().write(folder, "matrix")?;
    }
    Ok(Outcome::Good)
}

async fn measure(args: &MatrixArgs) -> anyhow::Result<Found> {
    let machine = Machine::look();
    let folder = tempfile::tempdir().context("cannot create a temporary cache folder; set TMPDIR")?;
    let longest = args.prompt_tokens.iter().copied().max().unwrap_or(0).max(SHARED);
    let ctx_size = u32::try_from(longest + longest / 10 + SPARE).context("the prompts are too long for any context")?;
    let settings = ServerSettings {
        model: args.model.clone(),
        ctx_size,
        parallel: args.agents.max(4),
        threads: args.threads,
        cache_size: None,
        min_tokens: Some(64),
    };
    let mut server = OwnServer::start(&settings, folder.path()).await?;
    let prompts = Prompts::new(1, tokens_per_word(&server.client, &server.model).await?);
    let progress = Progress::on_stderr();
    let rounds = u64::from(args.rounds) + 1;
    let per_round = args.prompt_tokens.len() as u64 * REQUESTS + u64::from(args.agents);
    progress.begin("measuring", Unit::Items("requests"), Some(rounds * per_round));
    let mut lengths = Vec::new();
    for size in &args.prompt_tokens {
        let mut prompt = 0;
        let mut waits: [Vec<f64>; 4] = Default::default();
        for round in 0..=args.rounds {
            let system = prompts.text(&format!("matrix-{size}-{round}"), *size);
            let call = Call::new(&system, "Go on.", 1)?;
            let tail = Call::new(&system, &prompts.text(&format!("tail-{size}-{round}"), TASK), 1)?;
            let mut answers = Vec::new();
            for call in [&call, &call, &tail] {
                answers.push(call.send(&server.client, &server.model).await?);
                progress.add(1);
            }
            server.stop().await?;
            server = OwnServer::start(&settings, folder.path()).await?;
            answers.push(call.send(&server.client, &server.model).await?);
            progress.add(1);
            if round > 0 {
                prompt = answers.first().map_or(0, |answer| answer.prompt);
                for (waits, answer) in waits.iter_mut().zip(&answers) {
                    waits.push(milliseconds(answer.first_token));
                }
            }
        }
        let [cold, exact, partial, restarted] = waits.map(|waits| Spread::of(&waits));
        lengths.push(Row { prompt, cold, exact, partial, restarted });
    }
    let agents = agents(args, &server, &prompts, &progress).await?;
    server.stop().await?;
    progress.clear();
    let model = args.model.file_name().unwrap_or(args.model.as_os_str()).to_string_lossy().into_owned();
    Ok(Found { machine, model, rounds: args.rounds, lengths, agents })
}

async fn agents(
    args: &MatrixArgs,
    server: &OwnServer,
    prompts: &Prompts,
    progress: &Progress,
) -> anyhow::Result<Agents> {
    let (mut sent, mut prefilled, mut first_token, mut total) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..=args.rounds {
        let system = prompts.text(&format!("agents-{round}"), SHARED);
        let mut running = JoinSet::new();
        for agent in 0..args.agents {
            let call = Call::new(&system, &prompts.text(&format!("task-{round}-{agent}"), TASK), REPLY)?;
            let (client, model): (Client, String) = (server.client.clone(), server.model.clone());
            running.spawn(async move { call.send(&client, &model).await });
        }
        let mut answers: Vec<Answer> = Vec::new();
        while let Some(answer) = running.join_next().await {
            answers.push(answer??);
            progress.add(1);
        }
        if round > 0 {
            sent.push(answers.iter().map(|answer| answer.prompt).sum::<usize>() as f64);
            let computed: Option<usize> = answers.iter().map(Answer::prefilled).sum();
            prefilled.extend(computed.map(|tokens| tokens as f64));
            first_token.extend(answers.iter().map(|answer| milliseconds(answer.first_token)));
            total.extend(answers.iter().map(|answer| milliseconds(answer.ended)).reduce(f64::max));
        }
    }
    Ok(Agents {
        count: args.agents,
        sent: Spread::of(&sent),
        prefilled: Spread::of(&prefilled),
        first_token: Spread::of(&first_token),
        total: Spread::of(&total),
    })
}

impl Found {
    fn print(&self, args: &MatrixArgs, out: &mut impl Write) -> anyhow::Result<()> {
        use Align::Right;
        let show = |spread: Option<Spread>| spread.map_or_else(|| "-".to_owned(), |spread| shown(spread.median));
        let mut lengths = Table::new([
            ("PROMPT TOKENS", Right),
            ("COLD MS", Right),
            ("EXACT MS", Right),
            ("PARTIAL MS", Right),
            ("AFTER A RESTART MS", Right),
            ("COLD : EXACT", Right),
        ]);
        for row in &self.lengths {
            let gain = row.cold.zip(row.exact).filter(|(_, exact)| exact.median > 0.0);
            let gain = gain.map_or_else(|| "-".to_owned(), |(cold, exact)| shown(cold.median / exact.median));
            let cells = [row.cold, row.exact, row.partial, row.restarted].map(show);
            let [cold, exact, partial, restarted] = cells;
            lengths.row([row.prompt.to_string(), cold, exact, partial, restarted, gain]);
        }
        let mut agents = Table::new([
            ("CLIENTS", Right),
            ("PROMPT TOKENS SENT", Right),
            ("COMPUTED", Right),
            ("FIRST TOKEN MS", Right),
            ("ALL DONE MS", Right),
        ]);
        let Agents { count, sent, prefilled, first_token, total } = &self.agents;
        let [sent, prefilled, first_token, total] = [*sent, *prefilled, *first_token, *total].map(show);
        agents.row([count.to_string(), sent, prefilled, first_token, total]);
        writeln!(out, "{}, {} rounds, medians\n", self.model, self.rounds)?;
        let style = args.figures.style();
        lengths.print_in(style, out)?;
        writeln!(out)?;
        agents.print_in(style, out)?;
        Ok(())
    }

    fn chart(&self) -> Chart {
        let group = |row: &Row| Group {
            label: format!("{} tokens", row.prompt),
            bars: vec![row.cold, row.exact, row.partial, row.restarted],
        };
        Chart {
            title: format!("time to the first token, {}", self.model),
            unit: "ms".to_owned(),
            series: ["cold", "exact", "partial", "after a restart"].map(str::to_owned).to_vec(),
            groups: self.lengths.iter().map(group).collect(),
        }
    }
}
