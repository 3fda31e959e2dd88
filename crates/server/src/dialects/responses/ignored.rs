//! The input of `/v1/responses` that has no effect here, and the warnings about it.
//!
//! The table lists what OpenAI documents and `types.rs` does not have; the function looks at fields that are read and not
//! used. `docs/ignored-input.md` lists all of them, and a test walks over that list.

use super::custom::has_grammar;
use super::mcp;
use super::tools::is_web_search;
use super::turn::{LOGPROBS, REASONING};
use super::types::ResponseRequestBody;
use crate::dialects::openai::ignored::warn_of_user;
use crate::http::warnings::{Ignored, Warnings};

const CACHE: &str = "every prompt is cached by its own tokens; leave it out";

/// Of `/v1/responses`.
pub(crate) const RESPONSES: [Ignored; 3] = [
    Ignored::new("context_management", "the conversation is used as it is sent; shorten it, or set truncation to auto"),
    Ignored::new("moderation", "replies are not moderated; leave it out"),
    Ignored::new("*.cache_control", CACHE),
];

/// Fields of a request that are read and have no effect.
pub(crate) fn warn_of_response(warnings: &mut Warnings, body: &ResponseRequestBody) {
    warn_of_user(warnings, body.user.as_deref());
    let labels = "it labels requests for OpenAI's own reports; use x-request-id to find a request in the log";
    warnings.ignored_if(body.safety_identifier.is_some(), "safety_identifier", labels);
    warnings.ignored_if(body.prompt_cache_key.is_some(), "prompt_cache_key", CACHE);
    warnings.ignored_if(body.prompt_cache_retention.is_some(), "prompt_cache_retention", CACHE);
    let other_tier = body.service_tier.as_deref().is_some_and(|tier| !["auto", "default"].contains(&tier));
    warnings.ignored_if(other_tier, "service_tier", "there is one tier for all requests; leave it out");
    let is_uncounted = body.max_tool_calls.is_some() && !mcp::is_used(body.tools.as_deref().unwrap_or_default());
    let tools_are_counted = "it counts calls of MCP servers, and the request has none; leave it out";
    warnings.ignored_if(is_uncounted, "max_tool_calls", tools_are_counted);
    let pads = body.stream_options.as_ref().and_then(|options| options.include_obfuscation);
    let advice = "streams are not padded; leave it out";
    warnings.ignored_if(pads == Some(true), "stream_options.include_obfuscation", advice);
    let verbosity = body.text.as_ref().and_then(|text| text.verbosity.as_deref());
    let is_other = verbosity.is_some_and(|verbosity| verbosity != "medium");
    let advice = "models have no such setting; ask for a short or long reply in the prompt";
    warnings.ignored_if(is_other, "text.verbosity", advice);
    let format = body.text.as_ref().and_then(|text| text.format.as_ref());
    let has_text = format.is_some_and(|format| format.description.is_some());
    warnings.ignored_if(has_text, "text.format.description", "it is not part of the prompt; write it into a message");
    let includes_none = body.include.iter().flatten().any(|what| what != REASONING && what != LOGPROBS);
    let advice = "this server runs no tools and reads no images, so a response has none of it; leave it out";
    warnings.ignored_if(includes_none, "include", advice);
    let searches = body.tools.iter().flatten().any(|tool| is_web_search(&tool.kind));
    let advice = "this server cannot search the web, so the model does not see the tool; define a function";
    warnings.ignored_if(searches, "tools", advice);
    let follows = body.tools.iter().flatten().any(|tool| has_grammar(tool));
    let advice = "the grammar of a custom tool is described to the model and not enforced; check the input of a call";
    warnings.ignored_if(follows, "tools.format", advice);
    if let Some(choice) = body.tool_choice.as_ref().and_then(|choice| choice.as_object()) {
        warnings.unknown_keys("tool_choice", choice, &["type", "name", "mode", "tools", "server_label"]);
    }
}
