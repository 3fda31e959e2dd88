//! The input of Anthropic's endpoints that has no effect here, and the warnings about it.
//!
//! The table lists what Anthropic documents and no struct of `types.rs` has; the functions look at fields and headers
//! that are read and not used, or not in every combination. `docs/ignored-input.md` lists all of them, and a test walks
//! over that list.

use axum::http::HeaderMap;
use poncho_api::{Generate, Prompt};
use serde_json::Value;

use super::types::{Block, Content, MessagesBody};
use crate::http::unknown_fields::short;
use crate::http::warnings::{Code, Ignored, Warnings};

const SERVICE: &str = "it is a service of Anthropic's own servers; leave it out";
const TOOL: &str = "tools are only described to the model; leave it out";
/// The version that Anthropic's reference describes, and the one that its SDKs send since 2.10: messages are the same.
const VERSIONS: [&[u8]; 2] = [b"2023-06-01", b"2026-10-21"];

/// Betas that mean something here: one lifts a limit, the other asks for what every request may ask for.
const USED_BETAS: [&str; 2] = ["interleaved-thinking", "cache-diagnosis"];

/// Of `/v1/messages`.
pub(crate) const MESSAGES: [Ignored; 13] = [
    Ignored::new("*.cache_control", "every prompt is cached as far as it repeats; leave it out"),
    Ignored::new("*.citations", "replies have no citations; ask for sources in the prompt"),
    Ignored::new("service_tier", "there is one tier for all requests; leave it out").but(&["auto", "standard_only"]),
    Ignored::new("container", SERVICE),
    Ignored::new("mcp_servers", "this server runs no tools; call them in the client and send their results"),
    Ignored::new("context_management", "the conversation is used as it is sent; shorten it in the client"),
    Ignored::new("inference_geo", SERVICE),
    Ignored::new("speed", SERVICE).but(&["standard"]),
    Ignored::new("tools.strict", "inputs follow the schema anyway; leave it out").but(&["true"]),
    Ignored::new("tools.defer_loading", TOOL).but(&["false"]),
    Ignored::new("tools.allowed_callers", TOOL),
    Ignored::new("tools.input_examples", "examples are not part of the prompt; write them into the description"),
    Ignored::new("tools.eager_input_streaming", "inputs are streamed as they are written; leave it out").but(&["true"]),
];

/// Fields of a request that are read and have no effect.
pub(crate) fn warn_of_messages(warnings: &mut Warnings, body: &MessagesBody, asked: &Generate) {
    let names_user = body.metadata.as_ref().is_some_and(|metadata| metadata.user_id.is_some());
    let advice =
        "users are distinguished by their API keys; leave it out, or use x-request-id to find a request in the log";
    warnings.ignored_if(names_user, "metadata.user_id", advice);
    if let Some(thinking) = &body.thinking {
        let is_spare = thinking.kind != "enabled" && thinking.budget_tokens.is_some();
        warnings.ignored_if(is_spare, "thinking.budget_tokens", "only thinking of the type enabled has a budget");
        let starts_reply = matches!(&asked.prompt, Prompt::Chat(turn) if !turn.reply_start.is_empty());
        let advice = "the last message begins the reply, and thinking comes before it; end with a message of the user";
        warnings.ignored_if(starts_reply && thinking.kind != "disabled", "thinking", advice);
    }
    let newer = body.output_config.as_ref().and_then(|config| config.format.as_ref());
    let is_double = newer.is_some() && body.output_format.is_some();
    warnings.ignored_if(is_double, "output_format", "output_config.format came too and is used; send one of them");
    let effort = body.output_config.as_ref().and_then(|config| config.effort.as_deref());
    if let Some(effort @ ("xhigh" | "max")) = effort {
        let message =
            format!("the effort `{effort}` was replaced by `high`, the highest that templates know; send that");
        warnings.add(Code::ChangedValue, "output_config.effort", message);
    }
    if let Some(choice) = &body.tool_choice {
        let is_spare = choice.kind != "tool" && choice.name.is_some();
        warnings.ignored_if(is_spare, "tool_choice.name", "only a choice of the type tool has a name");
    }
    for message in &body.messages {
        warn_of_content(warnings, &message.content);
    }
}

fn warn_of_content(warnings: &mut Warnings, content: &Content) {
    let Content::Blocks(blocks) = content else { return };
    for block in blocks {
        let Block { kind, source, .. } = &**block;
        let is_hidden = kind == "redacted_thinking";
        warnings.ignored_if(is_hidden, "messages.content", "a redacted_thinking block cannot be read; leave it out");
        if let Some(Value::Object(source)) = source {
            warnings.unknown_keys("messages.content.source", source, &["type", "media_type", "data", "content"]);
        }
        if let Some(content) = &block.content {
            warn_of_content(warnings, content);
        }
    }
}

/// Headers that have no effect.
pub(crate) fn warn_of_headers(warnings: &mut Warnings, headers: &HeaderMap) {
    if let Some(version) = headers.get("anthropic-version").filter(|version| !VERSIONS.contains(&version.as_bytes())) {
        let version = short(&String::from_utf8_lossy(version.as_bytes()));
        let advice = format!("{version} is not a version that this server knows; send 2023-06-01");
        warnings.ignored("anthropic-version", &advice);
    }
    let betas = headers.get_all("anthropic-beta").iter();
    let betas = betas.map(|betas| String::from_utf8_lossy(betas.as_bytes()).into_owned()).collect::<Vec<_>>().join(",");
    let names = betas.split(',').map(str::trim);
    let other: Vec<&str> =
        names.filter(|beta| !beta.is_empty() && !USED_BETAS.iter().any(|used| beta.starts_with(used))).collect();
    if !other.is_empty() {
        let advice = format!("{} has no effect on this server; leave it out", short(&other.join(", ")));
        warnings.ignored("anthropic-beta", &advice);
    }
}
