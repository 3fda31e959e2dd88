//! `poncho explain`: why the prompt of a request is not cached, and what to do about it.
//!
//! Sends the body of a request, in any dialect, to the server's explain endpoint. It uses a server like `poncho run`
//! does; nothing is computed. Texts of prompts are made harmless before they reach a terminal.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use poncho_client::runtime;
use poncho_terminal::{Outcome, excerpt, print_json, printable_line, show_bytes};
use serde::Deserialize;
use serde_json::Value;

use crate::client::args::ModelArgs;
use crate::client::{Connection, Purpose};
use crate::commands::texts::input;

/// Letters shown on each side of the first difference.
const SHOWN: usize = 60;

#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// File with the body of a request, as a client sends it; `-` for standard input
    #[arg(long, value_name = "FILE")]
    request: PathBuf,

    /// API that the body is written for [default: recognized by its fields]
    #[arg(long, value_name = "DIALECT", value_enum)]
    dialect: Option<Dialect>,

    /// Print JSON on standard output and nothing else
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dialect {
    /// Chat completions, or completions
    #[value(name = "openai")]
    OpenAi,
    /// Messages
    Anthropic,
    /// OpenAI's responses
    Responses,
    /// Chat, or generate
    Ollama,
}

impl Dialect {
    const fn word(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Responses => "responses",
            Self::Ollama => "ollama",
        }
    }
}

/// The answer of the server.
#[derive(Debug, Deserialize)]
struct Answer {
    model: String,
    tokens: u64,
    usable: u64,
    lost: u64,
    offset: Option<u64>,
    message: Option<Place>,
    cause: String,
    reason: String,
    fix: Option<String>,
    row: Option<Row>,
    cached: Option<Around>,
    asked: Option<Around>,
    remote: Option<Remote>,
}

#[derive(Debug, Deserialize)]
struct Place {
    number: u64,
    role: String,
}

#[derive(Debug, Deserialize)]
struct Row {
    key: String,
    tokens: u64,
    tier: Option<String>,
}

/// A longer beginning that other machines have.
#[derive(Debug, Deserialize)]
struct Remote {
    tokens: u64,
    bytes: u64,
    tier: String,
}

#[derive(Debug, Deserialize)]
struct Around {
    before: String,
    after: String,
}

pub(crate) fn run(args: &ExplainArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let body = read_body(&args.request)?;
    let answer = runtime()?.block_on(ask(args, body))?;
    if args.json {
        print_json(out, &answer)?;
        return Ok(Outcome::Good);
    }
    let answer = serde_json::from_value(answer)
        .context("the server sent an explanation that cannot be read; is it a Poncho of this version?")?;
    print(&answer, out)?;
    Ok(Outcome::Good)
}

async fn ask(args: &ExplainArgs, mut body: Value) -> anyhow::Result<Value> {
    let connection = Connection::to_model(&args.model, Purpose::Compute).await?;
    // The body's own model, unless a flag names another one or the body none.
    if let Some(fields) = body.as_object_mut()
        && (args.model.model.is_some() || fields.get("model").is_none_or(Value::is_null))
    {
        fields.insert("model".to_owned(), connection.model.clone().into());
    }
    let path = match args.dialect {
        Some(dialect) => format!("/api/cache/explain?dialect={}", dialect.word()),
        None => "/api/cache/explain".to_owned(),
    };
    let answer = connection.client.post(&path, &body).await;
    connection.close().await?;
    answer
}

fn read_body(path: &Path) -> anyhow::Result<Value> {
    let (text, name) = input::read(path, "a request", "a JSON file")?;
    let body: Value = serde_json::from_str(&text).with_context(|| format!("{name} is not JSON"))?;
    ensure!(body.is_object(), "{name} is not the body of a request; expected a JSON object");
    Ok(body)
}

fn print(answer: &Answer, out: &mut impl Write) -> anyhow::Result<()> {
    let Answer { model, tokens, usable, lost, .. } = answer;
    writeln!(out, "prompt         {tokens} tokens for {}", printable_line(model))?;
    writeln!(out, "cached         {usable} tokens")?;
    if let Some(Remote { tokens, bytes, tier }) = &answer.remote {
        let place = if tier == "peer" { "another node" } else { "the shared tier" };
        writeln!(out, "elsewhere      {tokens} tokens in {place}, {} to fetch", show_bytes(*bytes))?;
    }
    if *lost > 0 {
        writeln!(out, "lost           {lost} tokens are stored and have to be computed again")?;
    }
    writeln!(out, "cause          {}: {}", printable_line(&answer.cause), printable_line(&answer.reason))?;
    if let Some(place) = place(answer) {
        writeln!(out, "place          {place}")?;
    }
    if let Some(fix) = &answer.fix {
        writeln!(out, "fix            {}", printable_line(fix))?;
    }
    if let Some(row) = &answer.row {
        let tier = row.tier.as_deref().unwrap_or("-");
        writeln!(out, "compared with  {} ({} tokens, {tier})", printable_line(&row.key), row.tokens)?;
    }
    if let (Some(cached), Some(asked)) = (&answer.cached, &answer.asked) {
        writeln!(out)?;
        writeln!(out, "before  {}", last_letters(&cached.before))?;
        writeln!(out, "cached  {}", excerpt(&cached.after, SHOWN))?;
        writeln!(out, "asked   {}", excerpt(&asked.after, SHOWN))?;
    }
    Ok(())
}

fn place(answer: &Answer) -> Option<String> {
    let token = answer.offset.map(|offset| format!("token {offset}"))?;
    Some(match &answer.message {
        Some(place) => format!("message {} ({}), {token}", place.number, printable_line(&place.role)),
        None => token,
    })
}

/// The end of a text, on one line.
fn last_letters(text: &str) -> String {
    let skipped = text.chars().count().saturating_sub(SHOWN);
    excerpt(&text.chars().skip(skipped).collect::<String>(), SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_cause_place_cost_and_fix() {
        let answer = serde_json::json!({
            "model": "m", "tokens": 2705, "agree": 9, "usable": 6, "lost": 2690, "offset": 9,
            "message": {"number": 1, "role": "system"}, "cause": "changing_id", "reason": "an id differs",
            "fix": "Move this to the end.", "row": {"key": "ab12", "tokens": 2699, "tier": "disk"},
            "cached": {"before": "system\n", "after": "You are"}, "asked": {"before": "system\n", "after": "id 7\u{1b}[31m"},
            "resumes": {"cached": 9, "asked": 15},
            "remote": {"key": "cd34", "tokens": 2048, "bytes": 47_185_920, "tier": "shared"},
        });
        let mut out = Vec::new();
        print(&serde_json::from_value(answer).unwrap(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "prompt         2705 tokens for m\n\
            cached         6 tokens\n\
            elsewhere      2048 tokens in the shared tier, 45.0 MiB to fetch\n\
            lost           2690 tokens are stored and have to be computed again\n\
            cause          changing_id: an id differs\n\
            place          message 1 (system), token 9\n\
            fix            Move this to the end.\n\
            compared with  ab12 (2699 tokens, disk)\n\n\
            before  system\\n\n\
            cached  You are\n\
            asked   id 7\\u{1b}[31m\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_report_without_a_difference_is_short() {
        let answer = serde_json::json!({
            "model": "m", "tokens": 5, "usable": 0, "lost": 0, "offset": null, "message": null, "cause": "never_seen",
            "reason": "no cached prompt is like this one", "fix": null, "row": null, "cached": null, "asked": null,
        });
        let mut out = Vec::new();
        print(&serde_json::from_value(answer).unwrap(), &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 3);
    }
}
