//! The commands of a chat.
//!
//! Called by `chat.rs`. A command that fails prints why, and the conversation continues unchanged.

use std::io::Write;

use anyhow::{Context, ensure};
use poncho_terminal::{printable, printable_line, show_bytes};
use serde_json::Value;

use super::chat::{Chat, Next};
use super::conversation::Conversation;
use super::input::{Command, HELP};
use crate::client::listed_models;

pub(crate) async fn execute(chat: &mut Chat<'_>, command: Command, out: &mut impl Write) -> anyhow::Result<Next> {
    if command == Command::Quit {
        return Ok(Next::End);
    }
    match answer(chat, command).await {
        Ok(text) => chat.screen.remark(out, text.trim_end())?,
        Err(error) => {
            writeln!(out, "{}", printable(&format!("error: {error:#}")))?;
            out.flush()?;
        }
    }
    Ok(Next::Entry)
}

/// Executes a command and returns its message.
async fn answer(chat: &mut Chat<'_>, command: Command) -> anyhow::Result<String> {
    Ok(match command {
        Command::Help | Command::Quit => HELP.to_owned(),
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
            "the conversation is cleared".to_owned()
        }
        Command::Save(path) => {
            chat.conversation.save(&path, &chat.connection.model)?;
            format!("saved {} messages to {}", chat.conversation.len(), path.display())
        }
        Command::Load(path) => {
            chat.conversation = Conversation::load(&path)?;
            format!("loaded {} messages from {}", chat.conversation.len(), path.display())
        }
        Command::Stats => stats(chat).await?,
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

async fn stats(chat: &Chat<'_>) -> anyhow::Result<String> {
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
