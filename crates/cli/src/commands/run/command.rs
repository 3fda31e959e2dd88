//! The commands of a chat.
//!
//! Called by `chat.rs`. A command that fails prints why, and the conversation continues unchanged.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use poncho_terminal::{printable_line, show_bytes};
use serde_json::{Value, json};

use super::chat::{Chat, Next};
use super::conversation::Conversation;
use super::input::{Command, HELP};
use super::parameters::{Format, names};
use crate::client::listed_models;
use crate::settings::user_folder;

pub(crate) async fn execute(chat: &mut Chat, command: Command, out: &mut impl Write) -> anyhow::Result<Next> {
    match command {
        Command::Quit => return Ok(Next::End),
        Command::Retry => retry(chat, out).await?,
        command => match answer(chat, command).await {
            Ok(text) => chat.screen.remark(out, text.trim_end())?,
            Err(error) => chat.screen.failure(out, &error)?,
        },
    }
    Ok(Next::Entry)
}

/// Executes a command and returns its message.
async fn answer(chat: &mut Chat, command: Command) -> anyhow::Result<String> {
    Ok(match command {
        Command::Help | Command::Quit | Command::Retry => HELP.to_owned(),
        Command::System(None) => match &chat.conversation.system {
            Some(text) => text.clone(),
            None => "there is no system prompt; /system TEXT sets one".to_owned(),
        },
        Command::System(Some(text)) => {
            chat.conversation.system = Some(text).filter(|text| !text.is_empty());
            "the system prompt applies from the next reply on".to_owned()
        }
        Command::Clear => {
            chat.conversation.clear();
            chat.unanswered = None;
            "the conversation is cleared".to_owned()
        }
        Command::Save(path) => {
            let path = from_home(path);
            chat.conversation.save(&path, &chat.connection.model)?;
            format!("saved {} messages to {}", chat.conversation.len(), path.display())
        }
        Command::Load(path) => {
            let path = from_home(path);
            chat.conversation = Conversation::load(&path)?;
            chat.unanswered = None;
            format!("loaded {} messages from {}", chat.conversation.len(), path.display())
        }
        Command::Stats => stats(chat).await?,
        Command::Set(words) => set(chat, &words)?,
        Command::Show => show(chat).await?,
        Command::Model(None) => {
            let others = listed_models(&chat.connection.client).await?;
            let mark = |name: &String| if *name == chat.connection.model { '*' } else { ' ' };
            others.iter().map(|name| format!("{} {}\n", mark(name), printable_line(name))).collect()
        }
        Command::Model(Some(name)) => {
            let known = listed_models(&chat.connection.client).await?;
            ensure!(known.contains(&name), "the server has no model {name}; /model lists its models");
            chat.connection.model = name;
            format!("switched to {}", chat.connection.model)
        }
    })
}

/// No shell reads the line, so `~/` is replaced here.
fn from_home(path: PathBuf) -> PathBuf {
    match (path.strip_prefix("~"), user_folder::set("HOME")) {
        (Ok(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path,
    }
}

/// Sends the last message again, without the reply that it got.
async fn retry(chat: &mut Chat, out: &mut impl Write) -> anyhow::Result<()> {
    let Some(text) = chat.unanswered.take().or_else(|| chat.conversation.take_last()) else {
        chat.screen.remark(out, "there is no message to answer again")?;
        return Ok(());
    };
    if let Some(why) = chat.parameters.repeats_because() {
        chat.screen.remark(out, &format!("{why}, so the reply may be the same; /set changes that"))?;
    }
    chat.say(text, out).await
}

/// Shows the parameters, or changes one. The forms of Ollama's chat are understood too.
fn set(chat: &mut Chat, words: &[String]) -> anyhow::Result<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Ok(match words.as_slice() {
        [] => {
            let set = chat.parameters.line().unwrap_or_else(|| "nothing is set; the model's defaults apply".to_owned());
            format!("{set}\n/set NAME VALUE, or /set NAME default: {}, format, verbose", names())
        }
        ["verbose"] => {
            chat.is_verbose = true;
            "times and tokens are shown after each reply".to_owned()
        }
        ["quiet"] | ["verbose", "default"] => {
            chat.is_verbose = false;
            "one line is shown after each reply".to_owned()
        }
        ["noformat"] | ["format", "default"] => {
            chat.parameters.set_format(None);
            "replies are plain text from the next one on".to_owned()
        }
        // A schema, or the name of its file, may contain spaces.
        ["format", format @ ..] if !format.is_empty() => {
            chat.parameters.set_format(Some(&Format::read(&format.join(" "))?));
            "replies are JSON from the next one on".to_owned()
        }
        ["system", ..] => bail!("use /system TEXT to set the system prompt"),
        ["parameter", name, value] | [name, value] => chat.parameters.set(name, value)?,
        _ => bail!("write /set NAME VALUE, for example /set temperature 0.7; /set lists the parameters"),
    })
}

/// The model and the settings of the chat, one fact a line.
async fn show(chat: &Chat) -> anyhow::Result<String> {
    let connection = &chat.connection;
    let place = if connection.is_own().await { "in this process" } else { connection.client.authority() };
    let mut lines = vec![("model", format!("{} ({place})", connection.model))];
    if let Some(about) = connection.client.post_if_known("/api/show", &json!({"model": connection.model})).await? {
        let text = |pointer: &str| about.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
        let facts = [
            ("architecture", text("/details/family")),
            ("parameters", text("/details/parameter_size")),
            ("quantisation", text("/details/quantization_level")),
            ("context", text("/parameters").and_then(context_of)),
        ];
        lines.extend(facts.into_iter().filter_map(|(name, text)| Some((name, text?.to_owned()))));
    }
    lines.extend(chat.conversation.system.clone().map(|text| ("system prompt", text)));
    lines.extend(chat.parameters.line().map(|line| ("set", line)));
    Ok(lines.into_iter().map(|(name, text)| format!("{name:<13}  {}\n", printable_line(&text))).collect())
}

/// The context in a list of parameters, one to a line.
fn context_of(parameters: &str) -> Option<&str> {
    parameters.lines().find_map(|line| line.trim().strip_prefix("num_ctx")).map(str::trim)
}

async fn stats(chat: &Chat) -> anyhow::Result<String> {
    let mut text = chat.stats.line();
    let Some(cache) = chat.connection.client.get("/api/cache").await? else { return Ok(text) };
    let tiers = cache.get("tiers").and_then(Value::as_array).context("the server reports no cache tiers")?;
    for tier in tiers {
        let number = |name: &str| tier.get(name).and_then(Value::as_u64).unwrap_or(0);
        let name = printable_line(tier.get("tier").and_then(Value::as_str).unwrap_or_default());
        if number("rows") > 0 {
            text.push_str(&format!("\ncache {name}: {} rows, {}", number("rows"), show_bytes(number("bytes"))));
        }
    }
    Ok(text)
}
