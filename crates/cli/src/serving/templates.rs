//! Chat templates: the check of one by llama.cpp, for `poncho create` and for `POST /api/create`, and the one of the settings.

use std::io::Read as _;

use anyhow::{Context, anyhow, bail};
use poncho_cache::{Links, open_regular};
use poncho_engine::backend::ChatError;
use poncho_engine::backend::llama::check_template;

use crate::settings::args::ServeArgs;

/// More than any template has.
const MOST_BYTES: u64 = 1 << 20;

/// llama.cpp loses the reason of a parse error on the way; it prints it on standard error.
const LOST: &str = "std::exception";

/// Why a template cannot be used.
pub(crate) fn usable_template(template: &str) -> Result<(), String> {
    check_template(template).map_err(|error| match error {
        ChatError::BadTemplate { reason } if reason == LOST => {
            "llama.cpp cannot parse it and prints why on standard error".to_owned()
        }
        ChatError::BadTemplate { reason } => reason,
        other => other.to_string(),
    })
}

/// The chat template of the settings, from a flag or a file.
pub(crate) fn chosen_template(args: &ServeArgs) -> anyhow::Result<Option<String>> {
    let (text, from) = match (&args.chat_template, &args.chat_template_file) {
        (Some(text), _) => (text.clone(), "--chat-template".to_owned()),
        (None, Some(path)) => {
            let cannot = || format!("cannot read the chat template {}; check --chat-template-file", path.display());
            let file = open_regular(path, Links::Follow).with_context(cannot)?;
            let mut text = String::new();
            file.take(MOST_BYTES).read_to_string(&mut text).with_context(cannot)?;
            (text, path.display().to_string())
        }
        (None, None) => return Ok(None),
    };
    if !text.contains("{{") && !text.contains("{%") {
        bail!("{from} is not a chat template; give its text in Jinja, or leave it out for the one in the model's file");
    }
    if text.contains("{%") {
        usable_template(&text).map_err(|reason| anyhow!("the chat template of {from} cannot be used: {reason}"))?;
    }
    Ok(Some(text))
}
