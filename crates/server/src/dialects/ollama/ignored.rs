//! The input of Ollama's endpoints that has no effect here, and the warnings about it.
//!
//! The tables list what Ollama documents and no struct of `types.rs` has, and options that stand in the wrong object;
//! the functions look at fields that are read and not used, or not in every combination. `docs/ignored-input.md` lists
//! all of them, and a test walks over that list.

use axum::http::HeaderMap;

use super::types::{MessageBody, Shared};
use crate::dialects::shared::{Reporting, poncho_header, warn_of_headers, warn_of_model};
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Object;
use crate::http::unknown_fields::UnknownField;
use crate::http::warnings::{Ignored, Warnings};
use crate::models::served::ServedModel;

const LOADED: &str = "models are loaded with the settings of the server; see `poncho serve --help`";
const SAMPLER: &str = "this server does not have that sampler; use temperature, top_k, top_p or min_p";
const INSIDE: &str = "it belongs into `options`; move it there";

/// Of `/api/generate`, `/api/chat` and the endpoints that embed.
pub(crate) const REPLY: [Ignored; 25] = [
    Ignored::new("options.low_vram", LOADED),
    Ignored::new("options.main_gpu", LOADED),
    Ignored::new("options.num_batch", LOADED),
    Ignored::new("options.num_gpu", LOADED),
    Ignored::new("options.num_thread", LOADED),
    Ignored::new("options.numa", LOADED),
    Ignored::new("options.use_mlock", LOADED),
    Ignored::new("options.use_mmap", LOADED),
    Ignored::new("options.vocab_only", LOADED),
    Ignored::new("options.f16_kv", LOADED),
    Ignored::new("options.num_keep", "a prompt that is too long is refused and never shortened; leave it out"),
    Ignored::new("options.mirostat", SAMPLER).but(&["0"]),
    Ignored::new("options.mirostat_eta", SAMPLER),
    Ignored::new("options.mirostat_tau", SAMPLER),
    Ignored::new("options.penalize_newline", SAMPLER),
    Ignored::new("options.tfs_z", SAMPLER).but(&["1"]),
    Ignored::new("options.typical_p", SAMPLER).but(&["1"]),
    Ignored::new("num_ctx", INSIDE),
    Ignored::new("num_predict", INSIDE),
    Ignored::new("temperature", INSIDE),
    Ignored::new("top_k", INSIDE),
    Ignored::new("top_p", INSIDE),
    Ignored::new("seed", INSIDE),
    Ignored::new("stop", INSIDE),
    Ignored::new("max_tokens", "it is called `num_predict` here and belongs into `options`"),
];

const SHOW: &str = "`show` reports what is installed; leave it out";

/// Of `/api/show` and `/api/pull`.
pub(crate) const LIBRARY: [Ignored; 4] = [
    Ignored::new("insecure", "models come from the catalogue and from hf: over HTTPS; leave it out").but(&["false"]),
    Ignored::new("system", SHOW),
    Ignored::new("template", SHOW),
    Ignored::new("options", SHOW),
];

/// The unknown fields of a request for a reply or for vectors.
pub(crate) fn of_reply(unknown: Vec<UnknownField>) -> Warnings {
    Warnings::about(unknown, &REPLY)
}

/// The unknown fields of a request about a model.
pub(crate) fn of_library(unknown: Vec<UnknownField>) -> Warnings {
    Warnings::about(unknown, &LIBRARY)
}

/// What the answer reports of a call, with the fields that generate and chat share.
pub(crate) fn reporting(
    app: &SharedApp,
    model: &ServedModel,
    shared: &Shared<'_>,
    headers: &HeaderMap,
    mut warnings: Warnings,
) -> Result<Reporting, ApiError> {
    let context = model.limits().context;
    let asked = shared.options.and_then(|options| options.context());
    if let Some(asked) = asked.filter(|asked| usize::try_from(*asked) != Ok(context)) {
        let advice = format!(
            "it is {asked}, and the model is loaded with {context} tokens for each request; create a model with \
             PARAMETER num_ctx, or start the server with --ctx-size"
        );
        warnings.ignored("options.num_ctx", &advice);
    }
    let is_alone = shared.top_logprobs > 0 && !shared.logprobs;
    warnings.ignored_if(is_alone, "top_logprobs", "it needs logprobs; set logprobs to true");
    warn_of_headers(&mut warnings, headers);
    warn_of_model(&mut warnings, model);
    Ok(Reporting::new(app, shared.poncho.reports || poncho_header(headers)?, warnings))
}

/// Fields that belong to the messages of another role.
pub(crate) fn warn_of_messages(warnings: &mut Warnings, messages: &[Object<MessageBody>]) {
    for message in messages {
        let role = message.role.to_lowercase();
        if role != "assistant" {
            let has_calls = message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
            let thinks = message.thinking.as_ref().is_some_and(|thinking| !thinking.is_empty());
            let advice = "only messages of the assistant have it; move it there or leave it out";
            warnings.ignored_if(has_calls, "messages.tool_calls", advice);
            warnings.ignored_if(thinks, "messages.thinking", advice);
        }
        if role != "tool" {
            let advice = "only messages of a tool have it; leave it out";
            warnings.ignored_if(message.tool_name.is_some(), "messages.tool_name", advice);
            warnings.ignored_if(message.tool_call_id.is_some(), "messages.tool_call_id", advice);
        }
    }
}
