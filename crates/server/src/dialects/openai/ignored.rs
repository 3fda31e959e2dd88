//! The input of OpenAI's endpoints that has no effect here, and the warnings about it.
//!
//! The tables list what OpenAI documents and no struct of `types.rs` has; the functions look at fields that are read and
//! not used, or not in every combination. `docs/ignored-input.md` lists all of them, and a test walks over that list.

use super::types::{ChatRequestBody, CompletionRequestBody, Message};
use crate::http::body::Object;
use crate::http::warnings::{Ignored, Warnings};

const LABEL: &str = "it labels requests for OpenAI's own reports; use x-request-id to find a request in the log";
const STORE: &str = "chat completions are not stored; use /v1/responses, which stores its replies";
const TIER: &str = "there is one tier for all requests; leave it out";
const CACHE: &str = "every prompt is cached by its own tokens; leave it out";
const FUNCTIONS: &str = "it was replaced by tools and tool_choice; send those";

/// Of `/v1/chat/completions`.
pub(crate) const CHAT: [Ignored; 18] = [
    Ignored::new("store", STORE).but(&["false"]),
    Ignored::new("metadata", STORE),
    Ignored::new("service_tier", TIER).but(&["auto", "default"]),
    Ignored::new("safety_identifier", LABEL),
    Ignored::new("prompt_cache_key", CACHE),
    Ignored::new("prompt_cache_retention", CACHE),
    Ignored::new("*.cache_control", CACHE),
    Ignored::new("prediction", "replies are not predicted; leave it out"),
    Ignored::new("verbosity", "models have no such setting; ask for a short or long reply in the prompt")
        .but(&["medium"]),
    Ignored::new("web_search_options", "this server cannot search the web; define a function"),
    Ignored::new("audio", "replies are text; leave it out"),
    Ignored::new("functions", FUNCTIONS),
    Ignored::new("function_call", FUNCTIONS),
    Ignored::new("messages.function_call", "it was replaced by tool_calls; send those"),
    Ignored::new("messages.audio", "audio cannot be read; send its text"),
    Ignored::new("messages.annotations", "annotations are not part of the prompt; leave them out"),
    Ignored::new("messages.refusal", "the text of a refusal belongs into content; send it there"),
    Ignored::new("response_format.json_schema.description", "it is not part of the prompt; write it into a message"),
];

/// Of `/v1/completions` and `/v1/embeddings`.
pub(crate) const PLAIN: [Ignored; 4] = [
    Ignored::new("store", STORE).but(&["false"]),
    Ignored::new("metadata", STORE),
    Ignored::new("service_tier", TIER).but(&["auto", "default"]),
    Ignored::new("safety_identifier", LABEL),
];

/// Fields of a chat request that are read and have no effect.
pub(crate) fn warn_of_chat(warnings: &mut Warnings, body: &ChatRequestBody) {
    warn_of_user(warnings, body.user.as_deref());
    let is_double = body.max_completion_tokens.is_some() && body.max_tokens.is_some();
    warnings.ignored_if(is_double, "max_tokens", "max_completion_tokens came too and is used; send one of them");
    let choice = body.tool_choice.as_ref().and_then(|choice| choice.as_object());
    if let Some(choice) = choice {
        warnings.unknown_keys("tool_choice", choice, &["type", "function", "allowed_tools"]);
        if let Some(function) = choice.get("function").and_then(|function| function.as_object()) {
            warnings.unknown_keys("tool_choice.function", function, &["name"]);
        }
        if let Some(allowed) = choice.get("allowed_tools").and_then(|allowed| allowed.as_object()) {
            warnings.unknown_keys("tool_choice.allowed_tools", allowed, &["mode", "tools"]);
        }
    }
    for message in &body.messages {
        warn_of_message(warnings, message);
    }
}

/// Fields of a completion that are read and have no effect.
pub(crate) fn warn_of_completion(warnings: &mut Warnings, body: &CompletionRequestBody) {
    warn_of_user(warnings, body.user.as_deref());
}

/// `user`, which every endpoint has.
pub(crate) fn warn_of_user(warnings: &mut Warnings, user: Option<&str>) {
    warnings.ignored_if(user.is_some_and(|user| !user.is_empty()), "user", LABEL);
}

/// Fields that belong to the messages of another role.
fn warn_of_message(warnings: &mut Warnings, message: &Object<Message>) {
    if message.role != "assistant" {
        let has_calls = message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
        let advice = "only messages of the assistant have it; move it there or leave it out";
        warnings.ignored_if(has_calls, "messages.tool_calls", advice);
        warnings.ignored_if(message.reasoning_content.is_some(), "messages.reasoning_content", advice);
    }
    let is_misplaced = message.role != "tool" && message.tool_call_id.is_some();
    warnings.ignored_if(is_misplaced, "messages.tool_call_id", "only messages of a tool have it; leave it out");
}
